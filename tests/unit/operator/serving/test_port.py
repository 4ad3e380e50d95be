"""What clients may hold of a port: all of it has an end."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from aiohttp import web

from kvik_operator.certificates import make_pair
from kvik_operator.metrics_api.listener import server_context
from kvik_operator.serving.connection import Bounds
from kvik_operator.serving.port import Port
from tests.support.client_certificates import client_pair
from tests.support.waiting import PATIENCE, settle, until

AMPLE = Bounds(
    connections=8,
    handshake_seconds=PATIENCE,
    head_seconds=PATIENCE,
    taking_seconds=PATIENCE,
    idle_seconds=PATIENCE,
)
"""So that what ends a connection is the bound that a test has made short."""
SHORT = 0.05
LESS_SHORT = 0.5
"""Where a request is to come in time first."""
GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
LARGE = 64 << 20
"""Bytes that no buffers between two processes hold."""

Wires = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@contextlib.asynccontextmanager
async def opened(bounds: Bounds, context: ssl.SSLContext | None = None) -> AsyncIterator[Port]:
    async with Port(application(), "127.0.0.1", 0, bounds) as port:
        port.open(context)
        yield port


@contextlib.asynccontextmanager
async def client_of(port: Port) -> AsyncIterator[Wires]:
    """One that speaks TCP alone."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port.number)
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def application() -> web.Application:
    async def small(_: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def large(_: web.Request) -> web.Response:
        return web.Response(body=bytes(LARGE))

    app = web.Application()
    app.router.add_get("/", small)
    app.router.add_get("/large", large)
    return app


def context() -> ssl.SSLContext:
    pair, _ = make_pair(["x.svc"], datetime.now(UTC))
    return server_context(pair, client_pair("client", datetime.now(UTC))[1])


async def answer_to(wires: Wires, request: bytes) -> bytes:
    reader, writer = wires
    writer.write(request)
    return await asyncio.wait_for(reader.readuntil(b"ok"), PATIENCE)


async def end_of(wires: Wires) -> bytes:
    """What comes before the connection ends."""
    with contextlib.suppress(ConnectionError):
        return await asyncio.wait_for(wires[0].read(), PATIENCE)
    return b""


@pytest.mark.parametrize("begun", [b"", b"GET / HTTP/1.1\r\nX-Slow: "])
async def test_half_a_head_is_cut_off(begun: bytes) -> None:
    async with opened(replace(AMPLE, head_seconds=SHORT)) as port, client_of(port) as wires:
        wires[1].write(begun)
        assert await end_of(wires) == b""


async def test_a_later_head_has_its_time_too_and_an_idle_connection_another() -> None:
    async with opened(replace(AMPLE, head_seconds=LESS_SHORT)) as port, client_of(port) as wires:
        for _ in range(2):
            assert b" 200 OK" in await answer_to(wires, GET)
        assert port.connections == 1
        wires[1].write(GET[:-1])
        assert await end_of(wires) == b""


async def test_an_idle_connection_ends() -> None:
    async with opened(replace(AMPLE, idle_seconds=LESS_SHORT)) as port, client_of(port) as wires:
        assert b" 200 OK" in await answer_to(wires, GET)
        assert await end_of(wires) == b""
        await until(lambda: port.connections == 0)


@pytest.mark.parametrize("pieces", [1, 40])
async def test_a_head_that_is_too_large_is_cut_off(pieces: int) -> None:
    head = GET[:-2] + b"".join(b"X-%d: %s\r\n" % (number, b"a" * 1000) for number in range(40))
    async with opened(AMPLE) as port, client_of(port) as wires:
        size = len(head) // pieces
        with contextlib.suppress(ConnectionError):
            for at in range(0, len(head), size):
                wires[1].write(head[at : at + size])
                await wires[1].drain()
        assert await end_of(wires) == b""


async def test_what_is_no_http_is_refused_without_a_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async with opened(AMPLE) as port, client_of(port) as wires:
        wires[1].write(b"\x16\x03\x01\r\n\r\n")
        assert b" 400 " in await end_of(wires)
    assert caplog.records == []


@pytest.mark.parametrize("headers", [b"", b"Connection: close\r\n"])
async def test_who_takes_nothing_of_an_answer_is_cut_off(headers: bytes) -> None:
    async with opened(replace(AMPLE, taking_seconds=SHORT)) as port, client_of(port) as wires:
        wires[1].write(b"GET /large HTTP/1.1\r\nHost: x\r\n" + headers + b"\r\n")
        await wires[0].readexactly(1)
        await until(lambda: port.connections == 0)
        assert len(await end_of(wires)) < LARGE


async def test_who_takes_an_answer_gets_all_of_it() -> None:
    async with opened(AMPLE) as port, client_of(port) as wires:
        wires[1].write(b"GET /large HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert len(await end_of(wires)) > LARGE


async def test_half_a_handshake_is_cut_off() -> None:
    async with opened(replace(AMPLE, handshake_seconds=SHORT), context()) as port, client_of(port) as wires:
        assert await end_of(wires) == b""
        await until(lambda: port.connections == 0)


async def test_past_the_cap_a_client_waits_until_another_has_gone_handshakes_counted() -> None:
    """300 half heads of clients without a certificate stayed open, and each took a file."""
    async with (
        opened(replace(AMPLE, connections=2), context()) as port,
        client_of(port) as first,
        client_of(port),
        client_of(port) as third,
    ):
        await until(lambda: port.connections == 2)
        hello = asyncio.create_task(third[1].start_tls(trusting_anybody()))
        await settle()
        assert not hello.done()
        first[1].write(b"no TLS at all\r\n\r\n")
        await asyncio.wait_for(hello, PATIENCE)
        assert b" 200 OK" in await answer_to(third, GET)
        assert port.connections == 2


async def test_past_the_cap_the_client_that_asked_longest_ago_makes_room() -> None:
    """64 clients that had each asked once kept the kubelet out for 75 s."""
    async with opened(replace(AMPLE, connections=2)) as port, client_of(port) as silent, client_of(port) as first:
        assert b" 200 OK" in await answer_to(first, GET)
        async with client_of(port) as second:
            assert b" 200 OK" in await answer_to(second, GET)
            assert await end_of(silent) == b""
            assert b" 200 OK" in await answer_to(first, GET)
            async with client_of(port) as third:
                assert b" 200 OK" in await answer_to(third, GET)
                assert await end_of(second) == b""
                assert b" 200 OK" in await answer_to(first, GET)
                assert port.connections == 2


async def test_past_the_cap_a_client_that_is_being_answered_has_its_answer_and_then_makes_room() -> None:
    release, entered = asyncio.Event(), asyncio.Event()

    async def held(_: web.Request) -> web.Response:
        entered.set()
        await release.wait()
        return web.Response(text="ok")

    app = web.Application()
    app.router.add_get("/", held)
    async with Port(app, "127.0.0.1", 0, replace(AMPLE, connections=1)) as port:
        port.open(None)
        async with client_of(port) as busy:
            busy[1].write(GET)
            await asyncio.wait_for(entered.wait(), PATIENCE)
            async with client_of(port) as waiting:
                waiting[1].write(GET)
                await settle()
                release.set()
                assert (await end_of(busy)).endswith(b"ok")
                assert b" 200 OK" in await answer_to(waiting, b"")


async def test_who_is_asked_to_leave_has_its_answer_first_and_who_shakes_hands_is_cut_off() -> None:
    release = asyncio.Event()

    async def held(_: web.Request) -> web.Response:
        entered.set()
        await release.wait()
        return web.Response(text="ok")

    entered, app = asyncio.Event(), web.Application()
    app.router.add_get("/", held)
    async with Port(app, "127.0.0.1", 0, AMPLE) as port:
        port.open(None)
        async with client_of(port) as busy, client_of(port) as idle:
            busy[1].write(GET)
            await entered.wait()
            await until(lambda: port.connections == 2)
            port.open(context())
            async with client_of(port) as greeting:
                await until(lambda: port.connections == 3)
                await settle()
                port.leave()
                assert await end_of(greeting) == await end_of(idle) == b""
            release.set()
            assert (await end_of(busy)).endswith(b"ok")
        await until(lambda: port.connections == 0)


def trusting_anybody() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context
