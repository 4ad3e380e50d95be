"""Answers when nothing is wrong with the request: full, starting, draining, core dead."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from kvik_engine.api.drain import DrainState, refuses_at
from kvik_engine.ipc.messages import Refusal
from tests.support.live_api import MODEL, LiveApi, Reply, live_api
from tests.support.waiting import PATIENCE, settle, until


@pytest.mark.parametrize("stream", [True, False])
async def test_a_full_queue_is_429_with_retry_after_also_for_streams(api: LiveApi, stream: bool) -> None:
    api.core.refuse = Refusal(0, "queue_full", "The queue is full.", 2.3)
    reply = await api.chat(stream=stream)
    assert reply.status == 429
    assert reply.headers["Retry-After"] == "3"
    assert reply.error["code"] == "rate_limit_exceeded"
    assert "x-should-retry" not in reply.headers


async def test_retry_after_is_at_most_a_minute(api: LiveApi) -> None:
    api.core.refuse = Refusal(0, "queue_full", "The queue is full.", 9000.0)
    assert (await api.chat()).headers["Retry-After"] == "60"


async def test_a_prompt_that_can_never_fit_names_its_own_field(api: LiveApi) -> None:
    api.core.refuse = Refusal(0, "too_long", "This can never fit.")
    for reply, param in ((await api.chat(), "messages"), (await api.complete(), "prompt")):
        assert reply.status == 400
        assert (reply.error["param"], reply.error["code"]) == (param, "context_length_exceeded")


async def test_more_choices_than_rows_is_a_matter_of_n(tmp_path: Path) -> None:
    async with live_api(tmp_path, max_requests=2) as small:
        assert (await small.chat(n=3)).error["param"] == "n"
        assert (await small.chat(n=2)).status == 200


async def test_more_prompts_than_rows_and_queue_take_is_no_matter_of_waiting(tmp_path: Path) -> None:
    """They would be refused with 429 on an idle engine too, however often the client tries."""
    async with live_api(tmp_path, max_requests=4, max_queued_requests=1) as small:
        reply = await small.complete(prompt=["a"] * 4, n=2)
        assert (reply.status, reply.error["param"]) == (400, "prompt")
        assert (await small.complete(prompt=["a"] * 3, n=2)).status == 200
        assert (await small.complete(prompt=["a"] * 6)).status == 400
        assert (await small.complete(prompt=["a"] * 5)).status == 200


async def test_a_prompt_refused_for_a_fault_of_ours_aborts_the_others(api: LiveApi) -> None:
    api.core.gate.clear()
    api.core.refuse = Refusal(0, "invalid", "This should not have been sent.")
    api.core.refuses = lambda submit: submit.prompt == [1]
    assert (await api.complete(prompt=[[1], [2], [3]])).status == 500
    await until(lambda: api.core.running == api.client.running == 0)


async def test_one_refused_prompt_of_many_aborts_the_others(api: LiveApi) -> None:
    api.core.gate.clear()
    task = asyncio.create_task(api.complete(prompt=["a", "b"]))
    await until(lambda: len(api.core.submits) == 2)
    task.cancel()
    await until(lambda: api.core.running == 0)
    api.core.refuse = Refusal(0, "queue_full", "full", 1.0)
    assert (await api.complete(prompt=["a", "b", "c"])).status == 429
    assert api.client.running == 0


async def test_a_dead_core_is_503_before_and_one_error_event_after_the_stream_began(api: LiveApi) -> None:
    api.core.gate.clear()
    streams = [asyncio.create_task(api.chat(stream=True)) for _ in range(8)]
    whole = asyncio.create_task(api.chat())
    await until(lambda: len(api.core.submits) == 9)
    await settle()
    await api.core.die()
    for reply in await asyncio.gather(*streams):
        assert reply.status == 200
        errors = [e for e in reply.events if "error" in e]
        assert len(errors) == 1
        assert reply.events[-1]["error"]["type"] == "server_error"
    value = api.service.metrics.registry.get_sample_value
    failed = await whole
    assert value("kvik_requests_total", {"model_name": MODEL, "finish_reason": "error"}) == 9
    assert value("kvik_requests_total", {"model_name": MODEL, "finish_reason": "aborted"}) is None
    assert failed.status == 503
    assert failed.headers["Retry-After"] == "5"
    refused = await api.chat()
    assert refused.status == 503
    assert refused.error["type"] == "server_error"
    assert (await api.get("/health")).status == 503
    assert (await api.get("/ready", api.metrics_url)).status == 503
    assert (await api.get("/live", api.metrics_url)).status == 200, "restarting the core is launch's, not the kubelet's"
    api.core.gate.set()
    api.core.warm_at += 60
    api.core.start()
    await until(lambda: api.client.ready)
    assert (await api.chat()).status == 200
    page = (await api.get("/metrics")).text
    assert f'kvik_core_restarts_total{{model_name="{MODEL}"}} 1.0' in page


async def drained(api: LiveApi, *, linger: float, timeout: float) -> None:
    await api.service.drain.run(linger=linger, timeout=timeout)


async def test_draining_accepts_then_refuses_and_ends_when_streams_have_finished(
    api: LiveApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/contract.md, section 6: ready while it accepts, `Connection: close`, then 503 with Retry-After.

    llm-d-router #2188: what was sent to a pod that had just been told to end was lost.
    """
    monkeypatch.setattr("kvik_engine.api.drain.LONGEST_LINGER", 0.0)
    api.core.gate.clear()
    running = asyncio.create_task(api.chat(stream=True))
    await until(lambda: api.core.submits)
    drain = asyncio.create_task(drained(api, linger=2.0, timeout=100))
    await until(lambda: api.service.drain.state is DrainState.LINGERING)
    assert (await api.get("/ready", api.metrics_url)).status == 200
    late = asyncio.create_task(api.chat())
    await until(lambda: len(api.core.submits) == 2)
    await until(lambda: api.service.drain.state is DrainState.REFUSING)
    refused = await api.chat()
    assert refused.status == 503
    assert int(refused.headers["Retry-After"]) >= 1
    assert refused.headers["Connection"] == "close"
    assert not drain.done()
    assert (await api.get("/load", api.metrics_url)).json["state"] == "draining"
    api.core.gate.set()
    replies: list[Reply] = await asyncio.gather(running, late)
    assert replies[0].events[-1]["choices"][0]["finish_reason"] == "stop"
    assert replies[1].status == 200
    assert replies[1].headers["Connection"] == "close"
    await asyncio.wait_for(drain, PATIENCE)
    assert (await api.get("/ready", api.metrics_url)).status == 503


def test_new_work_is_refused_when_half_of_the_timeout_is_over_and_at_once_without_a_linger_time() -> None:
    """On a busy cluster, endpoints are updated late: a request that comes meanwhile was sent in good faith."""
    assert refuses_at(begun=100.0, linger=5.0, timeout=60.0) == 135.0
    assert refuses_at(begun=100.0, linger=0.0, timeout=60.0) == 100.0


async def test_while_a_stream_runs_a_draining_engine_refuses_nothing(api: LiveApi) -> None:
    """kube-proxy goes back to it while no other pod is ready."""
    api.core.gate.clear()
    running = asyncio.create_task(api.chat(stream=True))
    await until(lambda: api.core.submits)
    drain = asyncio.create_task(drained(api, linger=0.1, timeout=120))
    await until(lambda: api.service.drain.draining)
    await asyncio.sleep(0.3)
    late = asyncio.create_task(api.chat())
    await until(lambda: len(api.core.submits) == 2)
    assert (await api.get("/ready", api.metrics_url)).status == 200
    assert not drain.done()
    api.core.gate.set()
    assert (await running).events[-1]["choices"][0]["finish_reason"] == "stop"
    assert (await late).status == 200
    await asyncio.wait_for(drain, PATIENCE)


async def test_the_quiet_that_ends_a_drain_begins_where_the_latest_request_ended(api: LiveApi) -> None:
    """A client that was told nothing of `Connection: close` sends its next request as soon as its stream has ended."""
    api.core.gate.clear()
    running = asyncio.create_task(api.chat(stream=True))
    await until(lambda: api.core.submits)
    drain = asyncio.create_task(drained(api, linger=600.0, timeout=1.0))
    await until(lambda: api.service.drain.draining)
    came = api.service.drain.latest
    api.core.gate.set()
    await running
    await until(lambda: api.service.drain.active == 0)
    ended = api.service.drain.latest
    assert ended > came
    assert (await api.chat()).headers["Connection"] == "close"
    assert api.service.drain.latest > ended
    assert not drain.done()
    api.service.drain.abort()
    await asyncio.wait_for(drain, PATIENCE)


async def test_draining_ends_at_the_timeout(api: LiveApi) -> None:
    api.core.gate.clear()
    running = asyncio.create_task(api.chat(stream=True))
    await until(lambda: api.core.submits)
    await asyncio.wait_for(drained(api, linger=0.0, timeout=0.1), PATIENCE)
    api.client.fail_all()
    assert "error" in (await running).events[-1]


async def test_a_second_signal_ends_the_wait(api: LiveApi) -> None:
    api.core.gate.clear()
    running = asyncio.create_task(api.chat(stream=True))
    await until(lambda: api.core.submits)
    drain = asyncio.create_task(drained(api, linger=600, timeout=600))
    await settle()
    api.service.drain.abort()
    await asyncio.wait_for(drain, PATIENCE)
    running.cancel()


async def test_kvik_drain_makes_the_engine_unready_first(api: LiveApi) -> None:
    """dynamo #11173: nothing took the traffic off one pod before it was deleted."""
    api.service.drain.ready = False
    assert (await api.get("/ready", api.metrics_url)).status == 503
    assert (await api.chat()).status == 200


async def test_a_bug_inside_a_stream_is_one_error_event(api: LiveApi, monkeypatch: pytest.MonkeyPatch) -> None:
    def explode(*_: Any) -> Any:
        raise RuntimeError("secret at 0x7f00")

    monkeypatch.setattr("kvik_engine.api.chat._ChatShape.chunk", explode)
    reply = await api.chat(stream=True)
    assert reply.events[-1]["error"]["type"] == "server_error"
    assert "0x7f00" not in reply.text
    await until(lambda: api.core.running == 0)


async def test_an_exception_is_500_without_its_text(api: LiveApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """CVE-2026-22778: messages of unexpected errors held addresses."""

    def explode(*_: Any, **__: Any) -> Any:
        raise RuntimeError("secret at 0x7f00")

    monkeypatch.setattr("kvik_engine.api.chat.fit", explode)
    reply = await api.chat()
    assert reply.status == 500
    assert "0x7f00" not in reply.text
    assert reply.error["type"] == "server_error"
