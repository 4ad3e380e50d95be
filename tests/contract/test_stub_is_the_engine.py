"""docs/contract.md, sections 4 to 6: the real engine and the stub that stands in for it look the same to the operator.

Each test runs against both. What holds for one and not for the other would make every test with the stub worthless.
"""

import http.client
import json
import re
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from kvik_operator.autoscale.parse import MAX_BYTES, parse_info, parse_load
from kvik_operator.autoscale.types import EngineState
from kvik_operator.crd.effective import effective
from kvik_operator.crd.quantities import parse_quantity
from kvik_operator.objects.engine_args import serve_args
from kvik_operator.objects.model_source import model_source
from kvik_operator.reconcile.effective_status import effective_status
from tests.support.demo_model import demo_model
from tests.support.live_engine import MODEL, LiveEngine, started
from tests.support.pools import SOURCE, spec_of
from tests.support.stub_process import StubProcess
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(300)

ROOT = Path(__file__).resolve().parents[2]
CONTRACT = (ROOT / "docs" / "contract.md").read_text()
ONE_AT_A_TIME = {"max-requests": "1", "max-queued-requests": "1", "drain-timeout": "60s"}


def make(kind: str, folder: Path, options: dict[str, str] = ONE_AT_A_TIME) -> LiveEngine:
    if kind == "stub":
        return StubProcess(folder, Path("/models/x"), options)
    return LiveEngine(folder, demo_model(), options)


@pytest.fixture(scope="module", params=["stub", "engine"])
def either(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveEngine]:
    with started(make(request.param, tmp_path_factory.mktemp(request.param))) as engine:
        yield engine


def example(section: str) -> dict[str, Any]:
    """The JSON of a section of the contract."""
    block = re.search(rf"^## \d+\. `GET {section}`.*?```json\n(.*?)```", CONTRACT, re.S | re.M)
    assert block is not None
    parsed: dict[str, Any] = json.loads(block[1])
    return parsed


def missing(want: Any, got: Any, where: str = "") -> list[str]:
    """The keys at any depth that `want` has and `got` has not; more are allowed, since the contract may only grow."""
    if not isinstance(want, dict):
        return []
    absent = [f"{where}{name}" for name in want if name not in got]
    deeper = [missing(item, got[name], f"{where}{name}.") for name, item in want.items() if name in got]
    return absent + [name for names in deeper for name in names]


def chat(engine: LiveEngine, max_tokens: int = 4) -> tuple[int, dict[str, str], Any]:
    """Exactly so many tokens, so that a request lasts as long as the test needs it to run."""
    messages = [{"role": "user", "content": "Count to ten."}]
    body = {"model": MODEL, "messages": messages, "max_tokens": max_tokens, "ignore_eos": True}
    status, headers, answer = engine.post("/v1/chat/completions", json.dumps(body).encode())
    return status, headers, json.loads(answer)


def test_load_has_the_keys_of_the_contract_and_is_read_by_the_operator(either: LiveEngine) -> None:
    status, body = either.get("/load")
    assert status == 200
    assert missing(example("/load"), json.loads(body)) == []
    reading = parse_load(body, 0.0)
    assert reading.state is EngineState.READY
    assert reading.warm
    assert (reading.running, reading.waiting, reading.kv_blocks_used) == (0, 0, 0)
    assert reading.kv_blocks_total > 0


def test_info_has_the_keys_of_the_contract_and_fits_the_operators_limit(either: LiveEngine) -> None:
    status, body = either.get("/info")
    assert status == 200
    assert len(body) <= MAX_BYTES
    assert missing(example("/info"), json.loads(body)) == []
    info = parse_info(body)
    assert info.model_name == MODEL
    assert info.context is not None
    assert info.kv_max_tokens is not None
    assert info.startup["warm"] is not None


def test_probes_answer_on_the_metrics_port(either: LiveEngine) -> None:
    assert (either.probe("/live"), either.probe("/ready"), either.probe("/metrics")) == (200, 200, 200)


def test_a_chat_is_answered_in_openais_shape(either: LiveEngine) -> None:
    status, _, answer = chat(either)
    assert status == 200
    assert answer["object"] == "chat.completion"
    assert answer["choices"][0]["message"]["role"] == "assistant"
    assert answer["usage"]["total_tokens"] == answer["usage"]["prompt_tokens"] + answer["usage"]["completion_tokens"]


def test_running_waiting_and_refused_requests_show_in_load(either: LiveEngine) -> None:
    """One runs, one waits, the third is refused, and afterwards all is as before."""
    refused = parse_load(either.get("/load")[1], 0.0).refused_total
    with ThreadPoolExecutor(2) as pool:
        busy = [pool.submit(chat, either, 100)]
        wait_until(lambda: either.load["running"] == 1, pause=0.01)
        busy.append(pool.submit(chat, either, 1))
        wait_until(lambda: either.load["waiting"] == 1, pause=0.01)
        assert either.load["kv_blocks_used"] > 0
        status, headers, answer = chat(either)
        assert [future.result()[0] for future in busy] == [200, 200]
    assert status == 429
    assert int(headers["Retry-After"]) >= 1
    assert set(answer["error"]) == {"message", "type", "param", "code"}
    wait_until(lambda: either.load["kv_blocks_used"] == 0 and either.load["running"] == 0)
    after = parse_load(either.get("/load")[1], 0.0)
    assert (after.waiting, after.refused_total - refused) == (0, 1)


def test_a_request_without_messages_is_the_clients_mistake(either: LiveEngine) -> None:
    status, _, body = either.post("/v1/chat/completions", b'{"model": "%s"}' % MODEL.encode())
    error = json.loads(body)["error"]
    assert (status, error["type"], error["param"]) == (400, "invalid_request_error", "messages")


POOL = {
    "model": {"source": SOURCE, "name": MODEL, "dtype": "FP32"},
    "resources": {"device": "CPU"},
    "batching": {"maxRequests": 3, "admission": "Goodput"},
    "kvCache": {"size": "128Mi", "swapSpace": "64Mi", "diskCache": {"size": "256Mi"}},
    "apiKeys": {"secretRef": {"name": "clients"}},
}


@pytest.mark.parametrize("kind", ["stub", "engine"])
def test_an_engine_of_a_pool_says_the_pools_effective_values_and_asks_for_the_keys_of_its_secret(
    kind: str, tmp_path: Path
) -> None:
    """It is started with the operator's own words, but for where a pod has its volumes."""
    spec = spec_of(**POOL)
    values = effective(spec, "chat")
    words = serve_args(spec, values, model_source(SOURCE), None)[2:]
    options = dict(word.removeprefix("--").split("=", 1) for word in words)
    keys = tmp_path / "keys"
    keys.write_text("alice:alices-key\n")
    options |= {"disk-cache": str(tmp_path / "disk"), "api-keys-file": str(keys)}
    with started(make(kind, tmp_path / "engine", options)) as engine:
        said = json.loads(engine.get("/info")[1])["effective"]
        shown = effective_status(values)
        assert (said["max_requests"], said["admission"]) == (3, shown["batching"]["admission"].lower())
        assert said["swap_space"] == parse_quantity(shown["kvCache"]["swapSpace"])
        assert said["disk_cache_size"] == parse_quantity(shown["kvCache"]["diskCache"]["size"])
        assert said["api_keys"] is ("apiKeys" in shown)
        assert [engine.probe(path) for path in ("/live", "/ready", "/load", "/metrics")] == [200] * 4
        assert engine.get("/health", engine.port)[0] == 200
        assert _models(engine, None) == _models(engine, "bobs-key-2") == chat(engine)[0] == 401
        assert _models(engine, "alices-key") == 200
        keys.write_text("alice:alices-next-key\n")
        wait_until(lambda: _models(engine, "alices-key") == 401, 60)
        assert _models(engine, "alices-next-key") == 200


def _models(engine: LiveEngine, key: str | None) -> int | None:
    return engine.get("/v1/models", engine.port, key)[0]


@pytest.mark.parametrize("kind", ["stub", "engine"])
def test_sigterm_drains_as_the_contract_says(kind: str, tmp_path: Path) -> None:
    engine = make(kind, tmp_path)
    with started(engine):
        assert engine.process is not None
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(chat, engine, 100)
            wait_until(lambda: engine.load["running"] == 1, pause=0.01)
            begin = time.monotonic()
            engine.process.send_signal(signal.SIGTERM)
            wait_until(lambda: engine.load["state"] == "draining", pause=0.01)
            assert engine.probe("/ready") == 200
            status, headers, _ = chat(engine, 1)
            assert (status, headers.get("Connection", "").lower()) == (200, "close")
            assert running.result()[0] == 200
        assert engine.process.wait(90) == 0
        assert time.monotonic() - begin >= 5
        with pytest.raises(ConnectionRefusedError):
            http.client.HTTPConnection("127.0.0.1", engine.port, timeout=2).connect()
