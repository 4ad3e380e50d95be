"""An OpenAI endpoint that computes nothing: what a load generator measures of it is the generator's own.

`python -m bench.null_server PORT MILLISECONDS`: each token is an event of its own, so long after the one before; with 0
all of an answer comes at once.
"""

from __future__ import annotations

import asyncio
import json
import sys

from aiohttp import web
from aiohttp.typedefs import Handler

MODEL = "null"


async def models(_: web.Request) -> web.Response:
    return web.json_response({"data": [{"id": MODEL}]})


def chats(pause: float) -> Handler:
    """`pause`: seconds between tokens."""

    async def chat(request: web.Request) -> web.StreamResponse:
        tokens = (await request.json())["max_tokens"]
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        events = [_event({"choices": [{"delta": {"content": " word"}}]})] * (tokens - 1)
        events.append(_event({"choices": [{"delta": {"content": " word"}, "finish_reason": "length"}]}))
        usage = _event({"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": tokens}})
        if pause == 0:
            await response.write(b"".join(events))
        else:
            for event in events:
                await asyncio.sleep(pause)
                await response.write(event)
        await response.write(usage + b"data: [DONE]\n\n")
        return response

    return chat


def _event(fields: dict[str, object]) -> bytes:
    return b"data: " + json.dumps({"id": "x", "object": "chat.completion.chunk", **fields}).encode() + b"\n\n"


def main() -> None:
    port, pause = int(sys.argv[1]), float(sys.argv[2]) / 1000
    app = web.Application()
    app.add_routes([web.get("/v1/models", models), web.post("/v1/chat/completions", chats(pause))])
    web.run_app(app, host="127.0.0.1", port=port, print=None)


if __name__ == "__main__":
    main()
