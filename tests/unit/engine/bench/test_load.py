"""The load generator against a server that answers as it is told, well and badly."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from kvik_engine.api.ports import bind
from kvik_engine.bench.endpoint import Chats, Endpoint, NotAnEndpoint, base_of, session
from kvik_engine.bench.figures import Answer, Failure, Result
from kvik_engine.bench.load import closed, opened
from kvik_engine.bench.prompts import Message, Script
from kvik_engine.bench.workloads import Conversation, Turn
from tests.support.waiting import until

USAGE = {"prompt_tokens": 12, "completion_tokens": 3, "total_tokens": 15}
HELLO: list[Message] = [{"role": "user", "content": "hello"}]

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def chunk(text: str | None = None, *, finish: str | None = None, **more: Any) -> dict[str, Any]:
    delta = {} if text is None else {"content": text}
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]} | more


WHOLE = [chunk("", role="assistant"), chunk("a"), chunk("b"), chunk("c"), chunk(finish="stop")]
WITH_USAGE = [*WHOLE, {"choices": [], "usage": USAGE}]


def streaming(*events: dict[str, Any], end: bytes = b"data: [DONE]\n\n") -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b": a comment\n\n")
        for event in events:
            await response.write(f"data: {json.dumps(event)}\n\n".encode())
        await response.write(end)
        return response

    return handler


@asynccontextmanager
async def serving(chat: Handler, timeout: float = 60.0, **routes: Handler) -> AsyncIterator[Endpoint]:
    """`routes`: handlers of other paths, by their last part."""
    app = web.Application()
    app.router.add_post("/v1/chat/completions", chat)
    for name, handler in routes.items():
        app.router.add_route("*", f"/v1/{name}" if name == "models" else f"/{name}", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    listening = bind("127.0.0.1", 0)
    await web.SockSite(runner, listening).start()
    try:
        async with session(timeout, None) as http:
            yield Endpoint(http, f"http://127.0.0.1:{listening.getsockname()[1]}")
    finally:
        await runner.cleanup()


async def result_of(chat: Handler, timeout: float = 60.0) -> Result:
    async with serving(chat, timeout) as endpoint:
        return await chats(endpoint).chat(HELLO, 8)


def chats(endpoint: Endpoint, *, ignore_eos: bool = False) -> Chats:
    return Chats(endpoint, "m", ignore_eos=ignore_eos)


async def test_an_answer_is_timed_by_its_events_and_its_tokens_are_those_of_usage() -> None:
    result = await result_of(streaming(*WITH_USAGE))
    assert isinstance(result, Answer)
    assert result.tokens_from_usage
    assert (result.text, result.output_tokens, result.prompt_tokens) == ("abc", 3, 12)
    assert len(result.gaps) == 2
    assert result.sent_at < result.first_at <= result.ended_at
    assert sum(result.gaps) <= result.ended_at - result.first_at


async def test_without_usage_events_are_counted_and_the_output_can_say_so() -> None:
    result = await result_of(streaming(*WHOLE))
    assert isinstance(result, Answer)
    assert not result.tokens_from_usage
    assert (result.output_tokens, result.prompt_tokens) == (3, None)


async def test_a_request_asks_for_a_stream_with_usage_and_for_the_full_length_only_if_told() -> None:
    bodies: list[dict[str, Any]] = []

    async def chat(request: web.Request) -> web.StreamResponse:
        bodies.append(await request.json())
        return await streaming(*WHOLE)(request)

    async with serving(chat) as endpoint:
        for ignore_eos in (False, True):
            await chats(endpoint, ignore_eos=ignore_eos).chat(HELLO, 8)
    assert bodies[0]["model"] == "m"
    assert bodies[0]["stream_options"] == {"include_usage": True}
    assert bodies[0]["max_tokens"] == 8
    assert ["ignore_eos" in body for body in bodies] == [False, True]


async def refused(_: web.Request) -> web.StreamResponse:
    return web.json_response({"error": {"message": "the queue is full"}}, status=429)


async def hangs(_: web.Request) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError


@pytest.mark.parametrize(
    ("chat", "kind", "message"),
    [
        (refused, "HTTP 429", "the queue is full"),
        (streaming(chunk("a"), end=b""), "stream cut off", "before any finish_reason"),
        (streaming(chunk("a"), {"error": {"message": "the core died"}}), "error in the stream", "the core died"),
        (streaming(chunk(finish="stop")), "answer without text", "no first token"),
        (streaming(end=b"data: <html>\n\n"), "unreadable answer", ""),
        (streaming({"choices": ["a"]}), "unreadable answer", ""),
        (streaming(end=b"data: 7\n\n"), "unreadable answer", "no object"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_a_request_that_fails_is_named_and_never_dropped(chat: Handler, kind: str, message: str) -> None:
    result = await result_of(chat)
    assert isinstance(result, Failure)
    assert result.kind == kind
    assert message in result.message


async def test_a_server_that_says_nothing_is_given_up_in_time() -> None:
    result = await result_of(hangs, timeout=0.2)
    assert isinstance(result, Failure)
    assert result.kind == "timed out"


async def test_a_server_that_went_away_is_a_failure_too() -> None:
    async with serving(refused) as endpoint:
        pass
    async with session(5, None) as http:
        gone = await chats(Endpoint(http, endpoint.base)).chat(HELLO, 8)
    assert isinstance(gone, Failure)
    assert gone.kind == "no connection"


async def page(_: web.Request) -> web.StreamResponse:
    return web.Response(text="<html>hello</html>")


async def some_json(_: web.Request) -> web.StreamResponse:
    return web.json_response({"status": "ok"})


async def locked(_: web.Request) -> web.StreamResponse:
    return web.Response(status=401)


@pytest.mark.parametrize(
    ("models", "words"),
    [(page, "not an OpenAI endpoint"), (some_json, "not an OpenAI endpoint"), (locked, "OPENAI_API_KEY")],
)
async def test_what_is_no_openai_endpoint_is_told_before_any_load(models: Handler, words: str) -> None:
    async with serving(refused, models=models) as endpoint:
        with pytest.raises(NotAnEndpoint, match=words):
            await endpoint.models()


async def test_lengths_are_counted_by_the_server_and_not_asked_for_again_where_it_cannot() -> None:
    asked: list[Any] = []

    async def tokenize(request: web.Request) -> web.StreamResponse:
        asked.append(await request.json())
        return web.json_response({"count": 17}) if len(asked) == 1 else web.Response(status=404)

    async with serving(refused, tokenize=tokenize) as endpoint:
        counting = chats(endpoint)
        assert [await counting.count(HELLO) for _ in range(4)] == [17, None, None, None]
    assert len(asked) == 2
    assert asked[0]["messages"] == HELLO


async def test_what_was_not_counted_once_is_not_counted_again_whatever_was_asked_at_the_same_time() -> None:
    release, asked = asyncio.Event(), 0

    async def tokenize(_: web.Request) -> web.StreamResponse:
        nonlocal asked
        asked += 1
        if asked > 1:
            return web.Response(status=503)
        await release.wait()
        return web.json_response({"count": 17})

    async with serving(refused, tokenize=tokenize) as endpoint:
        counting = chats(endpoint)
        first = asyncio.create_task(counting.count(HELLO))
        await until(lambda: asked == 1)
        assert await counting.count(HELLO) is None
        release.set()
        assert await first == 17
        assert await counting.count(HELLO) is None
    assert asked == 2


async def test_a_tokenizer_of_another_kind_is_none() -> None:
    """llama.cpp's `/tokenize` takes content, and answers with tokens alone."""

    async def tokenize(_: web.Request) -> web.StreamResponse:
        return web.json_response({"tokens": []})

    async with serving(refused, tokenize=tokenize) as endpoint:
        assert await chats(endpoint).count(HELLO) is None


def test_a_url_may_end_in_v1_and_anything_else_that_is_none_is_refused() -> None:
    for url in ("http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/", "h:1"):
        assert base_of(url) == "http://h:1"
    assert base_of("https://h/gateway/v1") == "https://h/gateway"
    for url in (
        "ftp://h",
        "http://",
        "",
        "http://[abc",
        "http://h:70000",
        "http://h:port",
        "http://h:0",
        "http://[::g]",
    ):
        with pytest.raises(NotAnEndpoint):
            base_of(url)


def script(number: int, turns: int = 1) -> Script:
    says = tuple({"role": "user", "content": f"{number}.{turn}"} for turn in range(turns))
    return Script(Conversation(number, (Turn(1, 4),) * turns), (), says)


class Server:
    """Answers when told to, and knows how many requests it had at once."""

    def __init__(self) -> None:
        self.heard: list[list[Message]] = []
        self.now = self.most = 0
        self.failing: set[str] = set()

    async def chat(self, messages: Any, _: int) -> Result:
        self.heard.append(list(messages))
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        self.now -= 1
        if messages[-1]["content"] in self.failing:
            return Failure("HTTP 500", "", 0, 1)
        return Answer(0, 1, 2, (), 4, 1, text=f"to {messages[-1]['content']}")


async def test_a_closed_load_has_as_many_requests_at_once_as_it_has_clients() -> None:
    server = Server()
    assert len(await closed([script(n) for n in range(20)], 3, server.chat)) == 20
    assert server.most == 3
    assert len({messages[-1]["content"] for messages in server.heard}) == 20


async def test_a_turn_comes_after_the_answer_to_the_one_before_and_carries_both() -> None:
    server = Server()
    await closed([script(0, turns=3)], 5, server.chat)
    assert [message["content"] for message in server.heard[2]] == ["0.0", "to 0.0", "0.1", "to 0.1", "0.2"]
    assert [message["role"] for message in server.heard[2]] == ["user", "assistant"] * 2 + ["user"]


async def test_what_follows_a_turn_that_failed_counts_as_failed_and_is_not_sent() -> None:
    server = Server()
    server.failing = {"0.1"}
    results = await closed([script(0, turns=4)], 1, server.chat)
    kinds = [result.kind if isinstance(result, Failure) else "answered" for result in results]
    assert kinds == ["answered", "HTTP 500", "not sent", "not sent"]
    assert len(server.heard) == 2


async def test_an_open_load_does_not_wait_for_answers() -> None:
    """A closed loop would hide how late the others are."""
    server, released = Server(), asyncio.Event()

    async def held(messages: Any, tokens: int) -> Result:
        result = await server.chat(messages, tokens)
        await released.wait()
        return result

    load = asyncio.create_task(opened([script(n) for n in range(6)], [0.0] * 6, held))
    await until(lambda: len(server.heard) == 6)
    assert not load.done()
    released.set()
    results, _ = await load
    assert len(results) == 6


async def test_how_late_a_conversation_began_is_told_at_its_worst() -> None:
    """The clock is read when the load begins, and before and after the wait for each conversation."""
    readings = iter([10.0, 10.0, 10.0, 11.25, 11.5, 12.0, 12.0])
    arrivals = [0.0, 1.0, 2.0]
    _, late = await opened([script(n) for n in range(3)], arrivals, Server().chat, lambda: next(readings))
    assert late == 0.5
