"""Clients that are slow, half open or hostile: bounded, answered where possible, and never at others' cost.

aiohttp leaves most of this open (no head timeout, no cap, an hour of keep-alive), so its defaults are tested here.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource

import pytest
import uvloop
from aiohttp import web

from kvik_engine.api import body, connection, limits
from kvik_engine.api.ports import bind
from tests.support.live_api import LiveApi
from tests.support.raw_requests import BODY, HEAD, Connect
from tests.support.waiting import PATIENCE, settle, until


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def error_of(answer: bytes) -> dict[str, object]:
    error: dict[str, object] = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
    return error


async def test_a_head_that_never_ends_is_answered_and_closed(
    api: LiveApi, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slowloris."""
    monkeypatch.setattr(limits, "HEAD_SECONDS", 0.1)
    reader, writer = await connect()
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nX-Slow: ")
    answer = await reader.read()
    assert status(answer) == 408
    assert b"x-should-retry: false" in answer.lower()
    assert error_of(answer)["type"] == "invalid_request_error"


async def test_a_connection_that_says_nothing_is_closed(
    api: LiveApi, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "HEAD_SECONDS", 0.1)
    reader, _ = await connect()
    assert await reader.read() == b""


async def test_the_second_head_of_a_connection_has_a_limit_too(
    api: LiveApi, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = await connect()
    writer.write(b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n")
    assert status(await reader.readuntil(b"}")) == 200
    monkeypatch.setattr(limits, "HEAD_SECONDS", 0.1)
    writer.write(b"GET /ver")
    assert status(await reader.read()) == 408


async def test_an_idle_connection_is_kept_then_closed(
    api: LiveApi, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "IDLE_SECONDS", 2.0)
    reader, writer = await connect()
    for _ in range(2):
        writer.write(b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n")
        assert status(await reader.readuntil(b"}")) == 200
        await asyncio.sleep(0.1)
    assert await reader.read() == b""


@pytest.mark.parametrize(
    "head",
    [
        b"GET /version HTTP/1.1\r\nX: " + b"a" * 20_000 + b"\r\n\r\n",
        b"GET /version HTTP/1.1\r\n" + b"".join(b"X-%d: a\r\n" % i for i in range(200)) + b"\r\n",
        b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n\r\n",
        b"GET /version HTTP/1.1\r\n" + b"".join(b"X-%d: %s\r\n" % (i, b"a" * 4000) for i in range(8)),
        b"\x00\x01\x02\x03\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /version HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
    ],
)
async def test_a_head_that_is_too_large_or_no_http_is_refused_in_json(
    api: LiveApi, connect: Connect, head: bytes
) -> None:
    """CVE-2025-48956 and its like: one request must not cost the server its memory."""
    reader, writer = await connect()
    writer.write(head)
    answer = await asyncio.wait_for(reader.read(), PATIENCE)
    assert status(answer) in (400, 431)
    assert error_of(answer)["type"] == "invalid_request_error"
    assert (await api.complete()).status == 200


async def test_broken_framing_in_a_body_is_answered_at_once(api: LiveApi, connect: Connect) -> None:
    """Not by the body's timeout, which would also hold what came of it in the budget."""
    reader, writer = await connect()
    head, _, _ = HEAD.partition(b"Content-Length")
    writer.write(head + b"Transfer-Encoding: chunked\r\n\r\n4\r\n{   \r\n")
    await until(lambda: api.service.bodies.taken > 0)
    writer.write(b"ZZ\r\n")
    answer = await asyncio.wait_for(reader.read(), PATIENCE)
    assert status(answer) == 400
    assert answer.count(b"HTTP/1.1 ") == 1
    assert error_of(answer)["message"] == "The request is not valid HTTP."


@pytest.mark.parametrize("path", [b"/v1/models", b"/version", b"/nowhere"])
async def test_a_large_head_that_comes_in_one_piece_is_refused_too(api: LiveApi, connect: Connect, path: bytes) -> None:
    reader, writer = await connect()
    headers = b"".join(b"X-%d: %s\r\n" % (number, b"a" * 1000) for number in range(20))
    writer.write(b"GET %s HTTP/1.1\r\nHost: x\r\n%s\r\n" % (path, headers))
    answer = await reader.read()
    assert status(answer) == 431
    assert b"x-should-retry: false" in answer.lower()
    assert error_of(answer)["type"]


@pytest.mark.parametrize("path", [b"/version", b"/nowhere"])
@pytest.mark.parametrize("value", [b"luck", b"\xff"])
async def test_an_unknown_expectation_is_refused_in_json(
    api: LiveApi, connect: Connect, path: bytes, value: bytes
) -> None:
    """aiohttp does it before any middleware, as text, and fails on bytes that are no UTF-8."""
    reader, writer = await connect()
    writer.write(b"GET %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nExpect: %s\r\n\r\n" % (path, value))
    answer = await asyncio.wait_for(reader.read(), PATIENCE)
    assert status(answer) == 417
    assert error_of(answer)["type"] == "invalid_request_error"


async def test_a_client_may_wait_for_100_continue(api: LiveApi, connect: Connect) -> None:
    reader, writer = await connect()
    head = HEAD % len(BODY)
    writer.write(head.replace(b"\r\n\r\n", b"\r\nExpect: 100-Continue\r\n\r\n"))
    assert await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE) == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(BODY)
    assert status(await asyncio.wait_for(reader.readuntil(b"[DONE]"), PATIENCE)) == 200


async def test_a_body_that_never_comes_times_out(
    api: LiveApi, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(body.BodyReader.__init__, "__defaults__", (0.1,))
    reader, writer = await connect()
    writer.write(HEAD % 1000 + b'{"mess')
    answer = await reader.readuntil(b"}}")
    assert status(answer) == 408
    assert api.core.submits == []


async def test_bodies_share_a_budget_and_give_it_back(api: LiveApi, connect: Connect) -> None:
    """Many large bodies at once must not cost the process its memory."""
    budget = api.service.bodies
    budget.take(limits.MAX_BODIES_BYTES - 10)
    refused = await api.chat()
    assert refused.status == 503
    assert refused.headers["Retry-After"] == "2"
    budget.give_back(limits.MAX_BODIES_BYTES - 10)
    for fields in ({}, {"temperature": 9}, {"model": "x"}):
        await api.chat(**fields)
    _, writer = await connect()
    writer.write(HEAD % 1000 + b"{" * 500)
    await until(lambda: budget.taken == 500)
    writer.transport.abort()
    await until(lambda: budget.taken == 0)


async def test_connections_beyond_the_cap_are_closed_at_once(
    api: LiveApi, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_CONNECTIONS", 3)
    readers = [(await connect())[0] for _ in range(3)]
    await settle()
    refused, _ = await connect()
    with contextlib.suppress(ConnectionResetError):
        assert await asyncio.wait_for(refused.read(), PATIENCE) == b""
    assert not any(reader.at_eof() for reader in readers)


async def test_few_files_lower_the_cap_so_that_probes_still_find_some(
    api: LiveApi, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 1,024 files a flood of connections to the API once took those that /live needed."""
    monkeypatch.setattr(resource, "getrlimit", lambda which: (limits.RESERVED_FILES + 6, 1 << 20))
    readers = [(await connect())[0] for _ in range(3)]
    await settle()
    refused, _ = await connect()
    with contextlib.suppress(ConnectionResetError):
        assert await asyncio.wait_for(refused.read(), PATIENCE) == b""
    assert not any(reader.at_eof() for reader in readers)


@pytest.mark.parametrize(("soft", "hard", "raised"), [(1024, 1 << 20, 4224), (256, 2000, 2000), (8192, 8192, None)])
def test_the_file_limit_is_raised_as_far_as_it_may(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, raised: int | None
) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda which, pair: asked.append(pair))
    connection.raise_file_limit()
    assert asked == ([] if raised is None else [(raised, hard)])


def test_the_cap_holds_on_uvloop_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The product's loop. An error in connection_made leaves a socket there that nothing ever closes."""
    monkeypatch.setattr(limits, "MAX_CONNECTIONS", 0)

    async def connect() -> bytes:
        bound = bind("127.0.0.1", 0)
        runner, server = await connection.listen(web.Application(), bound)
        reader, writer = await asyncio.open_connection(*bound.getsockname())
        try:
            return await asyncio.wait_for(reader.read(), PATIENCE)
        except ConnectionResetError:
            return b""
        finally:
            writer.close()
            server.close()
            await runner.cleanup()

    assert uvloop.run(connect()) == b""


def test_a_body_may_be_as_long_as_the_context_needs() -> None:
    assert limits.max_body_bytes(8192) == (64 << 10) + 16 * 8192
