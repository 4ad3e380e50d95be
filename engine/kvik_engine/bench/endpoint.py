"""One OpenAI endpoint as a client sees it: its models, the length of a prompt, and an answer, event by event."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from kvik_engine.bench.figures import Answer, Failure, Result
from kvik_engine.bench.prompts import Message
from kvik_engine.errors import KvikError

LONGEST_LINE = 1 << 20


class NotAnEndpoint(KvikError):
    """Nobody answers at the URL, or not as an OpenAI endpoint."""


class _Failed(Exception):
    """A request that failed: kind and message."""


def base_of(url: str) -> str:
    """`http://host:8000/v1/` is `http://host:8000`. Raises NotAnEndpoint for what is no http URL."""
    refusal = NotAnEndpoint(f"{url!r} is not a URL such as http://127.0.0.1:8000")
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        whole = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError as error:  # a half bracket, a port that is no port
        raise refusal from error
    if not whole:
        raise refusal
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/v1')}"


@dataclass(slots=True)
class _Seen:
    """What came of one answer so far."""

    texts: list[str] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    """Of the events with text."""
    usage: dict[str, Any] | None = None
    finished: bool = False
    last_at: float = 0.0
    """Of the last event that was part of the answer."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """`http` belongs to the caller; `base` is as base_of gives it."""

    http: aiohttp.ClientSession
    base: str

    async def models(self) -> list[str]:
        """Raises NotAnEndpoint."""
        url = f"{self.base}/v1/models"
        try:
            async with self.http.get(url) as response:
                if response.status in (401, 403):
                    raise NotAnEndpoint(f"{url} answers {response.status}: it wants an API key, in OPENAI_API_KEY")
                body = json.loads(await response.read()) if response.status == 200 else None
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise NotAnEndpoint(f"nobody answers at {url}: {_said(error)}") from error
        except ValueError:
            body = None
        try:
            return [str(model["id"]) for model in body["data"]]  # type: ignore[index]
        except (TypeError, KeyError):
            raise NotAnEndpoint(f"{url} is not an OpenAI endpoint: GET answers {response.status}, no models") from None


class Chats:
    """Chats with one model of an endpoint. `clock` gives seconds."""

    def __init__(
        self, endpoint: Endpoint, model: str, *, ignore_eos: bool, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._http = endpoint.http
        self._base = endpoint.base
        self._model = model
        self._ignore_eos = ignore_eos
        self._clock = clock
        self._counts = True
        """False once the server could not count a chat: half of the prompts exact would be no better than none."""

    async def count(self, messages: Sequence[Message]) -> int | None:
        """Tokens of a chat as the server renders it; None where it has no such endpoint."""
        if not self._counts:
            return None
        body = {"model": self._model, "messages": list(messages), "add_generation_prompt": True}
        count = None
        try:
            async with self._http.post(f"{self._base}/tokenize", json=body) as response:
                if response.status == 200:
                    count = json.loads(await response.read())["count"]
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError, TypeError, KeyError):
            pass  # somebody else's /tokenize, or none
        if isinstance(count, int):
            return count
        self._counts = False
        return None

    async def chat(self, messages: Sequence[Message], output_tokens: int) -> Result:
        """One streamed request. Never raises for what the server does."""
        body: dict[str, Any] = {
            "model": self._model,
            "messages": list(messages),
            "max_tokens": output_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self._ignore_eos:
            body["ignore_eos"] = True
        sent_at = self._clock()
        try:
            seen = await self._answer(body)
            return self._whole(sent_at, seen)
        except _Failed as error:
            kind, message = error.args
        except TimeoutError as error:
            kind, message = "timed out", _said(error)
        except (aiohttp.ClientConnectorError, ConnectionRefusedError) as error:
            kind, message = "no connection", _said(error)
        except (aiohttp.ClientError, OSError) as error:
            kind, message = "connection lost", _said(error)
        except (ValueError, TypeError, AttributeError) as error:  # no JSON, or of another shape
            kind, message = "unreadable answer", _said(error)
        return Failure(kind, message, sent_at, self._clock())

    async def _answer(self, body: dict[str, Any]) -> _Seen:
        async with self._http.post(f"{self._base}/v1/chat/completions", json=body) as response:
            if response.status != 200:
                raise _Failed(f"HTTP {response.status}", _error_message(await response.read()))
            seen = _Seen()
            async for event in _events(response.content):
                self._take(seen, event)
        return seen

    def _take(self, seen: _Seen, event: dict[str, Any]) -> None:
        now = self._clock()
        if event.get("error"):
            raise _Failed("error in the stream", _error_message(json.dumps(event).encode()))
        seen.usage = event.get("usage") or seen.usage
        for choice in event.get("choices") or ():
            seen.last_at = now
            seen.finished = seen.finished or bool(choice.get("finish_reason"))
            delta = choice.get("delta") or {}
            if text := delta.get("content") or delta.get("reasoning_content") or delta.get("reasoning"):
                seen.texts.append(text)
                seen.times.append(now)

    def _whole(self, sent_at: float, seen: _Seen) -> Answer:
        if not seen.finished:
            raise _Failed("stream cut off", "it ended before any finish_reason")
        if not seen.times:
            raise _Failed("answer without text", "no event had any text: there is no first token to time")
        usage = seen.usage or {}
        tokens = usage.get("completion_tokens")
        prompt = usage.get("prompt_tokens")
        return Answer(
            sent_at=sent_at,
            first_at=seen.times[0],
            ended_at=seen.last_at,
            gaps=tuple(later - earlier for earlier, later in itertools.pairwise(seen.times)),
            output_tokens=tokens if isinstance(tokens, int) else len(seen.times),
            prompt_tokens=prompt if isinstance(prompt, int) else None,
            tokens_from_usage=isinstance(tokens, int),
            text="".join(seen.texts),
        )


async def _events(content: aiohttp.StreamReader) -> AsyncIterator[dict[str, Any]]:
    """The JSON of each `data:` line until `[DONE]` or the end. ValueError for a line that is none."""
    async for line in content:
        if not line.startswith(b"data:"):
            continue  # comments, blank lines, other fields
        data = line[5:].strip()
        if data == b"[DONE]":
            return
        event = json.loads(data)
        if not isinstance(event, dict):
            raise ValueError(f"an event that is no object: {data[:80]!r}")
        yield event


def _error_message(body: bytes) -> str:
    try:
        error = json.loads(body)["error"]
        return str(error["message"] if isinstance(error, dict) else error)[:300]
    except (ValueError, KeyError, TypeError):
        return body[:300].decode(errors="replace").strip()


def _said(error: BaseException) -> str:
    return str(error) or type(error).__name__


def session(timeout: float, api_key: str | None) -> aiohttp.ClientSession:
    """For any number of requests at once, each with `timeout` seconds in all and a connection of its own: a server that
    closes one between two requests fails neither of them. To be made inside the running loop."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, force_close=True),
        timeout=aiohttp.ClientTimeout(total=timeout, sock_connect=min(30.0, timeout)),
        headers={} if api_key is None else {"Authorization": f"Bearer {api_key}"},
        read_bufsize=LONGEST_LINE,
    )
