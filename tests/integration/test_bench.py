"""`kvik bench` as a user runs it, against the stub engine and against the real one."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from kvik_engine.bench.endpoint import Chats, Endpoint, session
from kvik_engine.bench.figures import Answer
from kvik_engine.exits import EXIT_START_ERROR
from tests.cluster.free_ports import free_ports
from tests.support.live_engine import LiveEngine, started
from tests.support.stub_process import StubProcess

LATENCIES = ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms")


def bench(url: str, *options: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "OPENAI_API_KEY"}
    command = [sys.executable, "-m", "kvik_engine", "bench", url, *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=280, check=False, env=environment)


def told_by(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.stdout, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def url_of(engine: LiveEngine) -> str:
    return f"http://127.0.0.1:{engine.port}"


def check_latencies(told: dict[str, Any]) -> None:
    for name in LATENCIES:
        spread = told[name]
        assert 0 <= spread["p50"] <= spread["p90"] <= spread["p99"], name
    assert told["ttft_ms"]["p50"] <= told["e2e_ms"]["p50"]


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveEngine]:
    """It has no tokenizer, runs one request at a time and lets four wait."""
    options = {"max-requests": "1", "max-queued-requests": "4"}
    with started(StubProcess(tmp_path_factory.mktemp("stub"), "unused", options)) as running:
        yield running


def test_a_stub_without_tokenizer_is_measured_with_lengths_that_are_said_to_be_approximate(stub: LiveEngine) -> None:
    options = ("--requests=12", "--concurrency=4", "--input-tokens=20", "--output-tokens=6", "--slo-ttft=1m")
    done = bench(url_of(stub), *options, "--json")
    told = told_by(done)
    assert done.stderr == "kvik bench: making prompts of the lengths asked for: 12\n"
    table = bench(url_of(stub), "--requests=3", "--output-tokens=4", "--rate=50").stdout
    assert (told["completed"], told["failed"], told["tokens_from"]) == (12, 0, "usage")
    assert told["prompt_lengths"] == "approximate"
    assert (told["prompt_tokens"], told["output_tokens"]) == (12 * 20, 12 * 6)
    assert told["goodput_requests_per_second"] == pytest.approx(told["requests_per_second"])
    check_latencies(told)
    assert "approximate" in table
    assert "50 conversations a second (Poisson)" in table
    assert [line.split()[0] for line in table.splitlines()[-4:]] == ["TTFT", "TPOT", "ITL", "E2E"]


def test_a_picture_is_written_beside_the_table_and_a_bad_name_is_refused_before_any_load(
    stub: LiveEngine, tmp_path: Path
) -> None:
    picture = tmp_path / "run.svg"
    done = bench(url_of(stub), "--requests=3", "--output-tokens=4", f"--plot={picture}")
    assert "output tokens/s" in done.stdout
    title = next(ET.fromstring(picture.read_text()).iter("{http://www.w3.org/2000/svg}text"))
    assert title.text == done.stdout.splitlines()[0]
    for name, words in ((tmp_path / "run.png", "does not end in .svg"), (tmp_path / "no" / "run.svg", "no folder")):
        refused = bench(url_of(stub), f"--plot={name}")
        assert (refused.returncode, refused.stdout) == (2, "")
        assert words in refused.stderr


def test_refused_requests_are_in_the_count_and_in_the_exit_code(stub: LiveEngine) -> None:
    done = bench(url_of(stub), "--requests=12", "--concurrency=12", "--output-tokens=40", "--json", "--warmup=0")
    told = told_by(done)
    assert done.returncode == 1
    assert told["completed"] + told["failed"] == 12
    assert told["failures"]["HTTP 429"]["count"] == told["failed"] > 0


@pytest.mark.parametrize(
    "options",
    [
        ("--workload=random", "--concurrency=3", "--ignore-eos"),
        ("--workload=shared-prefix", "--prefix-tokens=64", "--rate=20", "--ignore-eos"),
        pytest.param(("--workload=multi-turn", "--turns=3", "--concurrency=2"), marks=pytest.mark.long),
        pytest.param(("--workload=mixed", "--input-tokens=160", "--concurrency=2"), marks=pytest.mark.long),
    ],
    ids=["random", "shared-prefix", "multi-turn", "mixed"],
)
def test_the_real_engine_under_each_workload(engine: LiveEngine, options: tuple[str, ...]) -> None:
    common = ("--requests=6", "--input-tokens=48", "--output-tokens=4", "--json")
    told = told_by(bench(url_of(engine), *common, *options))
    assert (told["completed"], told["failed"]) == (6, 0)
    assert (told["prompt_lengths"], told["tokens_from"]) == ("exact", "usage")
    if "--ignore-eos" in options:
        prefix = 64 if "--prefix-tokens=64" in options else 0
        assert told["prompt_tokens"] == 6 * (48 + prefix)
        assert told["output_tokens"] == 6 * 4
        check_latencies(told)


async def test_a_server_that_closes_a_connection_after_each_answer_fails_no_request() -> None:
    """It never says `Connection: close`: whoever sends a second request on a connection gets nothing."""
    event = b'data: {"choices": [{"delta": {"content": "a"}, "finish_reason": "length"}]}\n\n'
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(event) + event

    serving = list[asyncio.Task[Any] | None]()

    async def serve_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.append(asyncio.current_task())
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = re.search(rb"content-length: (\d+)", head)
        assert length is not None
        await reader.readexactly(int(length[1]))
        writer.write(answer)
        await reader.read(1)
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(serve_one, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, session(20.0, None) as http:
        chats = Chats(Endpoint(http, f"http://127.0.0.1:{port}"), "m", ignore_eos=False)
        results = [await chats.chat([{"role": "user", "content": "a"}], 1) for _ in range(3)]
    await asyncio.gather(*(task for task in serving if task is not None))
    assert [type(result) for result in results] == [Answer] * 3


def test_a_url_where_nobody_answers_is_a_clear_error_and_no_table_of_zeros() -> None:
    (port,) = free_ports("127.0.0.1", 1)
    done = bench(f"http://127.0.0.1:{port}")
    assert (done.returncode, done.stdout) == (EXIT_START_ERROR, "")
    assert done.stderr.startswith(f"kvik bench: nobody answers at http://127.0.0.1:{port}/v1/models")


def test_a_port_that_speaks_http_and_not_openai_is_told_apart(engine: LiveEngine) -> None:
    done = bench(f"http://127.0.0.1:{engine.metrics_port}")
    assert done.returncode == EXIT_START_ERROR
    assert "is not an OpenAI endpoint" in done.stderr


def test_options_that_fit_nothing_are_refused(engine: LiveEngine) -> None:
    for options, words in (
        (("--turns=3",), "--turns is for --workload multi-turn"),
        (("--model=other",), "--model other is none of them"),
        (("--input-tokens=2",), "tokens at least, not 2"),
    ):
        done = bench(url_of(engine), *options)
        assert done.returncode == EXIT_START_ERROR
        assert words in done.stderr
