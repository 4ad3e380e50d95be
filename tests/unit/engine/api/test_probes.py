"""The metrics port: what docs/contract.md promises, and metrics by their names."""

from __future__ import annotations

import asyncio
import itertools
import socket
import threading
import time
import urllib.request
from pathlib import Path

import pytest
from aiohttp import web
from prometheus_client.parser import text_string_to_metric_families

from kvik_engine.api import probe_server
from kvik_engine.api.app import probe_app
from kvik_engine.api.drain import DrainState
from kvik_engine.api.metrics_page import MetricsPage
from kvik_engine.api.ports import bind
from kvik_engine.api.probe_server import ProbeServer
from kvik_engine.api.request_metrics import RequestMetrics
from kvik_engine.ipc.heartbeat import HEARTBEAT_FILE, HeartbeatWriter, Phase
from tests.support.live_api import MODEL, LiveApi, live_api
from tests.support.scripted_core import stats
from tests.support.waiting import until

LOAD_KEYS = {
    *("schema", "state", "step", "kv_blocks_used", "kv_blocks_total", "running", "waiting", "refused_total"),
    *("waiting_prompt_tokens", "prefill_tokens_per_second", "ttft_p90_seconds", "warm_since", "api_keys_outdated"),
}
NAMES = {
    *("kvik_num_requests_running", "kvik_num_requests_waiting", "kvik_kv_cache_utilization", "kvik_kv_cache_fill"),
    *("kvik_kv_blocks", "kvik_prefix_cache_queries_tokens", "kvik_prefix_cache_hits_tokens", "kvik_preemptions"),
    *("kvik_waiting_prompt_tokens", "kvik_requests_refused", "kvik_prompt_tokens", "kvik_generation_tokens"),
    *("kvik_time_to_first_token_seconds", "kvik_time_per_output_token_seconds", "kvik_inter_token_latency_seconds"),
    *("kvik_e2e_request_latency_seconds", "kvik_requests", "kvik_engine_info", "kvik_core_restarts"),
    *("kvik_kv_cache_bytes", "kvik_kv_bytes_per_token", "kvik_served_context_tokens"),
    *("vllm:num_requests_waiting", "vllm:num_requests_running", "vllm:kv_cache_usage_perc"),
    *("vllm:cache_config_info", "vllm:lora_requests_info"),
}


async def test_load_has_the_contracts_keys(api: LiveApi) -> None:
    await api.chat()
    load = (await api.get("/load", api.metrics_url)).json
    assert set(load) == LOAD_KEYS
    assert (load["schema"], load["state"], load["kv_blocks_total"]) == (1, "ready", 100)
    assert load["ttft_p90_seconds"] > 0
    assert load["warm_since"].endswith("Z")


async def test_info_has_the_contracts_keys_and_fits_4_kib(api: LiveApi) -> None:
    reply = await api.get("/info", api.metrics_url)
    assert len(reply.text) <= 4096
    info = reply.json
    assert {"schema", "version", "model", "dtype", "kv", "startup", "effective"} <= set(info)
    assert info["model"] == {"name": MODEL, "revision": None, "digest": None, "parameters": 1000, "context": 256}
    assert info["kv"] == {
        "key_dtype": "fp32",
        "value_dtype": "fp32",
        "bytes_per_token": 64,
        "block_tokens": 16,
        "blocks_total": 100,
        "max_tokens": 1600,
    }
    startup = info["startup"]
    assert startup["weights_loaded"] <= startup["warm"]
    assert (startup["model_fetched"], startup["compiled"]) == (None, None)
    assert info["effective"] == {
        "max_requests": 64,
        "max_batch_tokens": 4096,
        "chunked_prefill_tokens": 512,
        "max_queued_requests": 256,
        "admission": "queue",
        "swap_space": 0,
        "disk_cache_size": None,
        "api_keys": False,
    }


async def test_after_a_restart_info_tells_the_new_cores_times_and_load_the_first_ones(api: LiveApi) -> None:
    """warm_since counts from the pod's first core; startup is of the core that serves now."""
    warm_since = (await api.get("/load", api.metrics_url)).json["warm_since"]
    await api.core.die()
    api.core.warm_at += 3600
    api.core.start()
    await until(lambda: api.client.core_restarts == 1)
    startup = (await api.get("/info", api.metrics_url)).json["startup"]
    assert (startup["weights_loaded"], startup["warm"]) == ("2027-01-15T08:59:59Z", "2027-01-15T09:00:00Z")
    assert (await api.get("/load", api.metrics_url)).json["warm_since"] == warm_since


async def test_metrics_have_their_names_and_the_models_name_on_every_series(api: LiveApi) -> None:
    await api.chat()
    for base in (api.url, api.metrics_url):
        families = list(text_string_to_metric_families((await api.get("/metrics", base)).text))
        assert {f.name for f in families} >= NAMES
        for family in families:
            for sample in family.samples:
                assert sample.labels["model_name"] == MODEL, sample.name


async def test_wrong_paths_and_methods_of_the_metrics_port_are_json(api: LiveApi) -> None:
    assert (await api.get("/v1/models", api.metrics_url)).error["type"] == "invalid_request_error"
    async with api.http.post(api.metrics_url + "/load") as response:
        assert response.status == 405
        assert (await response.json())["error"]["code"] is None


async def test_many_scrapes_share_one_rendering(api: LiveApi) -> None:
    now = 100.0
    page = MetricsPage(
        api.service.config, api.client, RequestMetrics(MODEL), clock=lambda: now, drain=api.service.drain
    )
    first = page.render()
    assert page.render() is first
    now += 0.3
    assert page.render() is not first


async def test_the_swap_space_has_its_metrics_where_there_is_one(api: LiveApi, monkeypatch: pytest.MonkeyPatch) -> None:
    def rendered(**counts: float) -> list[str]:
        monkeypatch.setattr(api.client, "stats", stats(**counts))
        page = (
            MetricsPage(api.service.config, api.client, RequestMetrics(MODEL), drain=api.service.drain)
            .render()
            .decode()
        )
        return [line for line in page.splitlines() if "swap" in line and not line.startswith("#")]

    name = f'model_name="{MODEL}"'
    assert rendered() == [f'kvik_preemptions_total{{mode="swap",{name}}} 0.0']
    with_space = rendered(
        preemptions_swap_total=3,
        swap_blocks_total=10,
        swap_blocks_owned=4,
        swap_blocks_cached=5,
        swapped_out_blocks_total=12,
        swapped_in_blocks_total=8,
    )
    assert with_space == [
        f'kvik_preemptions_total{{mode="swap",{name}}} 3.0',
        f'kvik_swap_blocks{{{name},state="owned"}} 4.0',
        f'kvik_swap_blocks{{{name},state="cached"}} 5.0',
        f'kvik_swap_blocks{{{name},state="free"}} 1.0',
        f'kvik_swapped_blocks_total{{direction="out",{name}}} 12.0',
        f'kvik_swapped_blocks_total{{direction="in",{name}}} 8.0',
    ]


async def test_counts_of_ended_choices_by_reason(api: LiveApi) -> None:
    await api.chat(n=2)
    await api.chat(max_tokens=1)
    api.service.metrics.registry.collect()
    value = api.service.metrics.registry.get_sample_value
    assert value("kvik_requests_total", {"model_name": MODEL, "finish_reason": "stop"}) == 2
    assert value("kvik_requests_total", {"model_name": MODEL, "finish_reason": "length"}) == 1


def test_ttft_p90_looks_at_the_last_minute_only() -> None:
    now = 1000.0
    metrics = RequestMetrics(MODEL, lambda: now)
    assert metrics.ttft_p90() is None
    for i in range(10):
        metrics.first_token(float(i))
    assert metrics.ttft_p90() == 9.0
    now += 61
    metrics.first_token(0.5)
    assert metrics.ttft_p90() == 0.5


async def test_a_hung_core_fails_liveness_and_readiness(api: LiveApi) -> None:
    """vllm #36960, #45414: running 0 or stuck, waiting n, healthy for ever."""
    run_dir = Path(api.service.config.run_dir)
    past = time.monotonic() - 11
    HeartbeatWriter(run_dir / HEARTBEAT_FILE, lambda: past).beat(Phase.READY, step=3, unfinished=2)
    for path in ("/live", "/ready"):
        assert (await api.get(path, api.metrics_url)).status == 503
    HeartbeatWriter(run_dir / HEARTBEAT_FILE).beat(Phase.STARTING)
    assert (await api.get("/live", api.metrics_url)).status == 200


async def test_a_stuck_event_loop_fails_liveness(api: LiveApi) -> None:
    api.status.ticked_at = time.monotonic() - 31
    assert (await api.get("/live", api.metrics_url)).status == 503


def get(port: int, path: str) -> int:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=3) as response:
        return int(response.status)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_api_whose_probes_cannot_be_served_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """It once served without: the kubelet kills such a pod, and nothing says why."""
    monkeypatch.setattr(probe_server, "_START_SECONDS", 0.2)

    def no_app() -> web.Application:
        raise OSError("too many open files")

    with bind("127.0.0.1", 0) as listening, pytest.raises(RuntimeError, match=r"does not answer after 0\.2 s"):
        ProbeServer(no_app, listening).start()


async def test_probes_are_answered_while_the_apis_loop_is_busy(api: LiveApi) -> None:
    """vllm PR #38157: a tokenizer on the loop kept probes waiting for 30 s, and the kubelet killed healthy pods."""
    page = MetricsPage(api.service.config, api.client, api.service.metrics, drain=api.service.drain)
    listening: socket.socket = bind("127.0.0.1", 0)
    port = listening.getsockname()[1]
    probes = ProbeServer(lambda: probe_app(api.status, page), listening)
    probes.start()
    answered: list[tuple[int, float]] = []

    def ask() -> None:
        for _ in range(20):
            started = time.monotonic()
            answered.append((get(port, "/live"), time.monotonic() - started))

    await asyncio.to_thread(get, port, "/live")
    asking = threading.Thread(target=ask)
    asking.start()
    while asking.is_alive():  # this thread's event loop does nothing else
        sum(range(1000))
    probes.stop()
    assert [status for status, _ in answered] == [200] * 20


async def test_goodput_counts_requests_of_the_own_class_whose_first_token_was_in_time(tmp_path: Path) -> None:
    async with live_api(tmp_path, slo_ttft=30.0, slo_class="balanced") as api:
        await api.chat()
        await api.chat(slo_class="batch")
        page = (await api.get("/metrics")).text
    assert f'kvik_requests_within_slo_total{{model_name="{MODEL}"}} 1.0' in page
    assert f'kvik_requests_with_slo_total{{model_name="{MODEL}"}} 1.0' in page


async def test_a_late_first_token_is_a_request_with_a_target_that_was_not_met(tmp_path: Path) -> None:
    async with live_api(tmp_path, slo_ttft=1e-9, slo_class="balanced") as api:
        await api.chat()
        page = (await api.get("/metrics")).text
    assert f'kvik_requests_with_slo_total{{model_name="{MODEL}"}} 1.0' in page
    assert f'kvik_requests_within_slo_total{{model_name="{MODEL}"}} 0.0' in page


async def test_metrics_tell_an_engine_that_drains_from_one_that_serves(api: LiveApi) -> None:
    page = MetricsPage(
        api.service.config, api.client, RequestMetrics(MODEL), clock=itertools.count().__next__, drain=api.service.drain
    )
    assert f'kvik_draining{{model_name="{MODEL}"}} 0.0' in page.render().decode()
    api.service.drain.state = DrainState.LINGERING
    assert f'kvik_draining{{model_name="{MODEL}"}} 1.0' in page.render().decode()
    api.service.drain.state = DrainState.SERVING


async def test_without_a_target_there_is_no_goodput(api: LiveApi) -> None:
    await api.chat()
    page = (await api.get("/metrics")).text
    assert "within_slo" not in page
    assert "with_slo" not in page
