"""Clients that leave, stall or wait in silence: what they asked for is given up at once, and only once."""

from __future__ import annotations

import asyncio
import contextlib
import json
from random import Random

import aiohttp
import pytest
from aiohttp import web

from kvik_engine.api import answer, limits, tokenize
from kvik_engine.api.connection import Connection
from kvik_engine.api.metrics_page import MetricsPage
from tests.support.live_api import CHAT, MODEL, LiveApi
from tests.support.raw_requests import BODY, HEAD, Connect
from tests.support.waiting import PATIENCE, settle, until


class Stalled(asyncio.Protocol):
    """A client that sends its request and takes nothing of the answer."""

    def __init__(self, request: bytes) -> None:
        self.request = request
        self.closed = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(self.request)
        transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set()


async def stalled(api: LiveApi, request: bytes) -> tuple[asyncio.Transport, Stalled]:
    return await asyncio.get_running_loop().create_connection(lambda: Stalled(request), "127.0.0.1", api.port)


async def test_a_client_gone_while_its_body_is_read_leaves_nothing(api: LiveApi, connect: Connect) -> None:
    _, writer = await connect()
    writer.write(HEAD % 1000 + b"{")
    await until(lambda: api.service.drain.active == 1)
    writer.transport.abort()
    await until(lambda: api.service.drain.active == 0)
    assert api.core.submits == []


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_gone_while_its_request_waits_frees_it(api: LiveApi, connect: Connect, stream: bool) -> None:
    """ATOM PR #1562: requests without streaming were never cancelled.

    llm-d-autoscaling #769: entries of clients that had left kept a pool saturated for ever.
    """
    api.core.queue = True
    api.core.gate.clear()
    data = json.dumps(CHAT | {"stream": stream}).encode()
    _, writer = await connect()
    writer.write(HEAD % len(data) + data)
    await until(lambda: api.core.submits)
    writer.transport.abort()
    await until(lambda: api.core.aborts)
    await until(lambda: api.client.running == 0)
    assert len(api.core.aborts) == 1
    assert api.core.running == 0


async def test_a_client_gone_before_the_core_answered_frees_it(api: LiveApi, connect: Connect) -> None:
    api.core.queue = False
    _, writer = await connect()
    writer.write(HEAD % len(BODY) + BODY)
    await until(lambda: api.client.running == 1)
    writer.transport.abort()
    await until(lambda: api.core.aborts)
    assert api.client.running == 0


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_gone_while_tokens_flow_frees_it(api: LiveApi, connect: Connect, stream: bool) -> None:
    api.core.reply = lambda submit: b"x" * 200
    data = json.dumps(CHAT | {"stream": stream, "n": 4}).encode()
    _, writer = await connect()
    writer.write(HEAD % len(data) + data)
    await until(lambda: api.core.submits)
    writer.transport.abort()
    await until(lambda: api.core.aborts)
    await until(lambda: api.core.running == 0)
    assert len(api.core.aborts) == 1, "one abort for all choices"


async def test_clients_that_leave_at_random_leave_nothing(api: LiveApi) -> None:
    random = Random(1)

    async def leave_at_some_time() -> None:
        with contextlib.suppress(TimeoutError, aiohttp.ClientError):
            await asyncio.wait_for(api.chat(stream=random.random() < 0.5, n=2), random.random() * 0.05)

    for _ in range(10):
        await asyncio.gather(*(leave_at_some_time() for _ in range(30)))
    await until(lambda: api.core.running == api.client.running == api.service.drain.active == 0)
    assert len({a.request_id for a in api.core.aborts}) == len(api.core.aborts), "at most one abort a request"
    assert (await api.chat()).status == 200


async def test_a_finished_request_is_never_aborted(api: LiveApi, connect: Connect) -> None:
    """ATOM PR #1589: 58,455 useless aborts."""
    reader, writer = await connect()
    writer.write(HEAD % len(BODY) + BODY)
    await reader.readuntil(b"[DONE]")
    writer.transport.abort()
    await settle(50)
    assert api.core.aborts == []


async def test_a_reader_that_takes_nothing_is_cut_off_and_its_request_aborted(
    api: LiveApi, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """opencode PR #19423: a stalled client grew the server to 187 GB."""
    monkeypatch.setattr(limits, "WRITE_SECONDS", 0.05)
    write = web.StreamResponse.write

    async def write_much(self: web.StreamResponse, data: bytes) -> None:
        """Fill the sockets' buffers sooner than tokens would."""
        await write(self, data + b": " + b"z" * (1 << 20) + b"\n\n")

    monkeypatch.setattr(web.StreamResponse, "write", write_much)
    api.core.reply = lambda submit: b"y" * 250
    data = json.dumps(CHAT | {"stream": True, "n": 8}).encode()
    transport, _ = await stalled(api, HEAD % len(data) + data)
    await until(lambda: api.core.submits)
    await until(lambda: api.core.aborts)
    await until(lambda: api.core.running == api.client.running == 0)
    transport.abort()
    assert len(api.core.aborts) == 1
    value = api.service.metrics.registry.get_sample_value
    await until(lambda: value("kvik_requests_total", {"model_name": MODEL, "finish_reason": "aborted"}) == 8)
    assert not [r for r in caplog.records if r.levelname == "ERROR"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/tokenize", "/metrics"])
async def test_what_nobody_reads_ends_its_connection(api: LiveApi, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    """However it is written: aiohttp waits for ever for a client that takes nothing."""
    monkeypatch.setattr(limits, "WRITE_SECONDS", 0.1)
    much = "z" * (32 << 20)
    monkeypatch.setattr(answer, "usage", lambda generation: much)
    monkeypatch.setattr(tokenize, "_tokens", lambda *_: [much])
    monkeypatch.setattr(MetricsPage, "render", lambda self: much.encode())
    body = b"" if path == "/metrics" else json.dumps({"prompt": "a"} if path == "/tokenize" else CHAT).encode()
    head = HEAD.replace(b"/v1/chat/completions", path.encode()).replace(b"POST", b"POST" if body else b"GET")
    lost = asyncio.Event()
    connection_lost = Connection.connection_lost

    def note(self: Connection, exc: BaseException | None) -> None:
        connection_lost(self, exc)
        lost.set()

    monkeypatch.setattr(Connection, "connection_lost", note)
    transport, client = await stalled(api, head % len(body) + body)
    await asyncio.wait_for(lost.wait(), PATIENCE)
    await until(lambda: api.service.drain.active == 0)
    transport.resume_reading()
    await asyncio.wait_for(client.closed.wait(), PATIENCE)


async def test_a_silent_stream_gets_comments(api: LiveApi, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer, "KEEPALIVE_COMMENT_SECONDS", 0.05)
    api.core.gate.clear()
    reader, writer = await connect()
    writer.write(HEAD % len(BODY) + BODY)
    for _ in range(3):
        await asyncio.wait_for(reader.readuntil(b": waiting\n\n"), PATIENCE)
    api.core.gate.set()
    assert b'"finish_reason":"stop"' in await asyncio.wait_for(reader.readuntil(b"[DONE]"), PATIENCE)


async def test_nothing_is_sent_before_the_core_took_the_request(api: LiveApi, connect: Connect) -> None:
    api.core.queue = False
    reader, writer = await connect()
    writer.write(HEAD % len(BODY) + BODY)
    await until(lambda: api.client.running == 1)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(reader.read(1), 0.1)
