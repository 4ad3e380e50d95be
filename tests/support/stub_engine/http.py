"""The stub's two ports, as docs/contract.md and the OpenAI API describe them; `PUT /stub` is for tests alone."""

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator
from typing import Any

from aiohttp import web

from tests.support.stub_engine.engine import DrainingError, Overrides, QueueFullError, StubEngine


def metrics_app(engine: StubEngine) -> web.Application:
    async def live(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def ready(_: web.Request) -> web.Response:
        return web.Response(status=200 if engine.ready else 503, text="ok\n" if engine.ready else "not ready\n")

    async def load(_: web.Request) -> web.Response:
        return await _misbehaving(engine) or web.json_response(engine.load())

    async def info(_: web.Request) -> web.Response:
        misbehaviour = await _misbehaving(engine)
        if misbehaviour is not None:
            return misbehaviour
        return web.json_response(engine.info()) if engine.warm else web.Response(status=503)

    async def metrics(_: web.Request) -> web.Response:
        waiting = engine.load()["waiting"]
        return web.Response(text=f"kvik_num_requests_waiting {waiting}\n", content_type="text/plain")

    async def stub(request: web.Request) -> web.Response:
        engine.overrides = Overrides(**await request.json())
        return web.Response(status=204)

    app = web.Application()
    for path, handler in {"/live": live, "/ready": ready, "/load": load, "/info": info, "/metrics": metrics}.items():
        app.router.add_get(path, handler)
    app.router.add_put("/stub", stub)
    return app


def api_app(engine: StubEngine) -> web.Application:
    async def models(_: web.Request) -> web.Response:
        model = {"id": engine.options.model_name, "object": "model", "created": 0, "owned_by": "kvik"}
        return web.json_response({"object": "list", "data": [model]})

    async def health(_: web.Request) -> web.Response:
        return web.Response(status=200 if engine.ready else 503)

    async def chat(request: web.Request) -> web.StreamResponse:
        return await _chat(engine, request)

    app = web.Application(middlewares=[_asks_for_keys(engine)])
    app.router.add_get("/v1/models", models)
    app.router.add_get("/health", health)
    app.router.add_post("/v1/chat/completions", chat)
    app.on_response_prepare.append(_close_while_draining(engine))
    return app


async def _misbehaving(engine: StubEngine) -> web.Response | None:
    if engine.overrides.silent:
        await asyncio.Event().wait()
    status = engine.overrides.status
    return None if status is None else web.Response(status=status)


def _asks_for_keys(engine: StubEngine) -> Any:
    @web.middleware
    async def authenticate(request: web.Request, handler: Any) -> web.StreamResponse:
        key = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if request.path != "/health" and not engine.knows(key):
            return _error(401, "invalid_request_error", "Incorrect API key provided.", code="invalid_api_key")
        answer: web.StreamResponse = await handler(request)
        return answer

    return authenticate


def _close_while_draining(engine: StubEngine) -> Any:
    async def on_prepare(_: web.Request, response: web.StreamResponse) -> None:
        if engine.draining:
            response.headers["Connection"] = "close"
            response.force_close()

    return on_prepare


async def _chat(engine: StubEngine, request: web.Request) -> web.StreamResponse:
    try:
        body = await request.json()
        words = " ".join(str(message.get("content", "")) for message in body["messages"]).split()
        max_tokens = int(body.get("max_completion_tokens") or body.get("max_tokens") or 16)
    except (ValueError, KeyError, TypeError, AttributeError):
        return _error(400, "invalid_request_error", "messages is required", param="messages")
    if not engine.warm:
        return _error(503, "server_error", "the model is still loading", retry_after=1)
    tokens = engine.generate(len(words), max_tokens)
    try:
        first = await anext(tokens, None)
    except QueueFullError:
        return _error(429, "rate_limit_exceeded", "the queue is full", code="rate_limit_exceeded", retry_after=1)
    except DrainingError:
        return _error(503, "server_error", "the server is draining", retry_after=1)
    usage = {"prompt_tokens": len(words), "completion_tokens": max_tokens, "total_tokens": len(words) + max_tokens}
    head = {
        "id": f"chatcmpl-{uuid.uuid4().hex}",
        "created": int(time.time()),
        "model": body.get("model") or engine.options.model_name,
    }
    if body.get("stream"):
        wanted = (body.get("stream_options") or {}).get("include_usage")
        return await _stream(request, head, first, tokens, usage if wanted else None)
    text = (first or "") + "".join([token async for token in tokens])
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "finish_reason": "length"}
    return web.json_response(head | {"object": "chat.completion", "choices": [choice], "usage": usage})


async def _stream(
    request: web.Request,
    head: dict[str, Any],
    first: str | None,
    tokens: AsyncIterator[str],
    usage: dict[str, int] | None,
) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    await response.prepare(request)

    async def send(delta: dict[str, Any], finish_reason: str | None = None) -> None:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
        chunk = head | {"object": "chat.completion.chunk", "choices": [choice]}
        await response.write(f"data: {json.dumps(chunk)}\n\n".encode())

    await send({"role": "assistant", "content": first or ""})
    async for token in tokens:
        await send({"content": token})
    await send({}, "length")
    if usage is not None:
        told = head | {"object": "chat.completion.chunk", "choices": [], "usage": usage}
        await response.write(f"data: {json.dumps(told)}\n\n".encode())
    await response.write(b"data: [DONE]\n\n")
    await response.write_eof()
    return response


def _error(
    status: int,
    kind: str,
    message: str,
    *,
    param: str | None = None,
    code: str | None = None,
    retry_after: int | None = None,
) -> web.Response:
    headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
    body = {"error": {"message": message, "type": kind, "param": param, "code": code}}
    return web.json_response(body, status=status, headers=headers)
