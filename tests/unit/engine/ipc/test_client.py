"""EngineClient against a scripted core on the real socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kvik_engine.errors import EngineDead, NotServing, QueueFull, UserError
from kvik_engine.ipc.client import EngineClient
from kvik_engine.ipc.messages import Abort, FinishReason, Output, OutputToken, Refusal
from kvik_engine.ipc.stream import RequestStream
from kvik_engine.params import SamplingParams
from tests.support.scripted_core import ScriptedCore, connected
from tests.support.waiting import PATIENCE, settle, until


@pytest.fixture
async def core(tmp_path: Path) -> ScriptedCore:
    return ScriptedCore(tmp_path / "core.sock")


@pytest.fixture
async def client(core: ScriptedCore) -> AsyncIterator[EngineClient]:
    async with connected(core) as client:
        yield client


async def submit(client: EngineClient, *, n: int = 1, max_tokens: int = 50) -> tuple[RequestStream, asyncio.Event]:
    wake = asyncio.Event()
    params = SamplingParams(max_tokens=max_tokens, seed=1, n=n)
    stream = await client.submit(prompt=[1, 2], params=params, slo_class=1, priority=0, wake=wake)
    return stream, wake


async def read(stream: RequestStream, wake: asyncio.Event, choices: int = 1) -> dict[int, bytes]:
    """All tokens by choice, until so many choices have ended."""
    text: dict[int, bytes] = {}
    async with asyncio.timeout(PATIENCE):
        while True:
            wake.clear()
            for output in stream.take():
                text[output.choice] = text.get(output.choice, b"") + bytes(t.token for t in output.tokens)
                choices -= output.finish is not None
            if not choices:
                return text
            await wake.wait()


async def test_a_request_is_answered_choice_by_choice(client: EngineClient) -> None:
    stream, wake = await submit(client, n=3)
    assert await read(stream, wake, 3) == dict.fromkeys(range(3), b"Hello, world")


async def test_news_that_nobody_reads_is_joined(core: ScriptedCore, client: EngineClient) -> None:
    """A slow reader's queue is bounded by its own tokens."""
    stream, _ = await submit(client)
    await until(lambda: not core.running)
    await settle()
    outputs = stream.take()
    assert [bytes(t.token for t in o.tokens) for o in outputs] == [b"Hello, world"]
    assert outputs[0].finish is FinishReason.STOP
    assert (outputs[0].stop_tokens, outputs[0].cached_tokens) == (1, 16)


async def test_a_bug_in_reading_news_is_logged_and_the_core_is_asked_again(
    client: EngineClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A reader task that ended would leave the pod NotReady for ever, without a line."""
    with monkeypatch.context() as patched:
        patched.setattr(client, "_take", lambda frame: {}[frame])
        with pytest.raises(EngineDead):
            await submit(client)
    await until(lambda: client.ready)
    assert [record.message for record in caplog.records if record.exc_info] == ["reading from the core failed"]
    stream, wake = await submit(client)
    assert await read(stream, wake) == {0: b"Hello, world"}


async def test_a_finished_request_is_not_aborted(core: ScriptedCore, client: EngineClient) -> None:
    stream, wake = await submit(client)
    await read(stream, wake)
    client.release(stream)
    client.release(stream)
    await settle()
    assert core.aborts == []
    assert client.running == 0


async def test_a_request_released_early_is_aborted_once(core: ScriptedCore, client: EngineClient) -> None:
    core.gate.clear()
    stream, _ = await submit(client)
    client.release(stream)
    client.release(stream)
    await until(lambda: core.aborts)
    await settle()
    assert core.aborts == [Abort(7, stream.request_id)]
    assert core.running == 0


async def test_a_caller_cancelled_before_the_core_answered_leaves_nothing_behind(
    core: ScriptedCore, client: EngineClient
) -> None:
    """vllm PR #18485: abort before a request was ever scheduled."""
    core.queue = False
    task = asyncio.create_task(submit(client))
    await settle()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: core.aborts)
    assert client.running == 0


async def test_a_stop_string_ends_one_choice_with_the_accepted_length(core: ScriptedCore, client: EngineClient) -> None:
    core.gate.clear()
    stream, wake = await submit(client, n=2)
    stream.stop_choice(0, 5)
    core.gate.set()
    assert await read(stream, wake) == {1: b"Hello, world"}
    assert core.aborts == [Abort(7, stream.request_id, 0, 5)]


@pytest.mark.parametrize(
    ("refusal", "error"),
    [
        (Refusal(0, "queue_full", "full", 3.0), QueueFull),
        (Refusal(0, "too_long", "long"), UserError),
        (Refusal(0, "duplicate", "twice"), RuntimeError),
    ],
)
async def test_a_refusal_is_an_error_of_its_kind(
    core: ScriptedCore, client: EngineClient, refusal: Refusal, error: type[Exception]
) -> None:
    core.refuse = refusal
    with pytest.raises(error):
        await submit(client)
    assert client.running == 0


async def test_a_dead_core_fails_all_streams_after_what_it_had_said(core: ScriptedCore, client: EngineClient) -> None:
    stream, wake = await submit(client)
    await wake.wait()
    core.gate.clear()
    await settle()
    await core.die()
    await until(lambda: not client.ready)
    assert stream.take()
    with pytest.raises(EngineDead):
        stream.take()
    with pytest.raises(NotServing):
        await submit(client)


async def test_a_core_that_died_after_news_wakes_its_reader_until_it_was_told(client: EngineClient) -> None:
    """The news alone may show nothing, such as the beginning of a stop string: its reader waits for more."""
    wake = asyncio.Event()
    stream = RequestStream(1, 1, 1, wake, lambda abort: None)
    stream.deliver(Output(1, 0, [OutputToken(72)]))
    stream.fail()
    wake.clear()
    assert len(stream.take()) == 1
    assert wake.is_set()
    with pytest.raises(EngineDead):
        stream.take()


async def test_a_core_that_dies_before_it_answered_fails_the_submit(core: ScriptedCore, client: EngineClient) -> None:
    core.queue = False
    task = asyncio.create_task(submit(client))
    await settle()
    await core.die()
    with pytest.raises(EngineDead):
        await task


async def test_the_client_connects_to_the_next_core(tmp_path: Path, core: ScriptedCore, client: EngineClient) -> None:
    await core.die()
    await until(lambda: not client.ready)
    core.warm_at += 60
    core.start()
    await until(lambda: client.ready)
    stream, wake = await submit(client)
    assert await read(stream, wake) == {0: b"Hello, world"}
    assert client.core_restarts == 1


async def test_the_same_core_over_a_new_connection_is_no_restart(core: ScriptedCore, client: EngineClient) -> None:
    """A core drops an API process that leaves too much unread."""
    await core.die()
    await until(lambda: not client.ready)
    core.start()
    await until(lambda: client.ready)
    assert client.core_restarts == 0


async def test_the_core_hears_that_an_api_process_went_away(core: ScriptedCore, client: EngineClient) -> None:
    core.gate.clear()
    await submit(client)
    await client.stop()
    await until(lambda: core.gone)
    assert core.gone == [7]


async def test_the_socket_is_for_the_own_user_only(core: ScriptedCore, client: EngineClient) -> None:
    assert core.path.stat().st_mode & 0o777 == 0o600
