"""What chat and completions share in answering: run a generation, whole or as a stream of events."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from kvik_engine.api.choice import Delta
from kvik_engine.api.error_body import json_response
from kvik_engine.api.generation import Generation, Prompt
from kvik_engine.api.limits import KEEPALIVE_COMMENT_SECONDS
from kvik_engine.api.sampling_fields import Sampling
from kvik_engine.api.schema import SamplingFields
from kvik_engine.api.service import Service
from kvik_engine.api.sse import EventStream
from kvik_engine.errors import KvikError

log = logging.getLogger(__name__)

Chunk = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Wanted:
    """A request, understood: what outlives its body."""

    prompts: Sequence[Prompt]
    sampling: Sampling
    stream: bool
    include_usage: bool
    arrived_at: float

    @classmethod
    def of(cls, body: SamplingFields, prompts: Sequence[Prompt], sampling: Sampling, arrived_at: float) -> Wanted:
        options = body.stream_options
        include_usage = options is not None and bool(options.include_usage)
        return cls(prompts, sampling, bool(body.stream), include_usage, arrived_at)


class Answer:
    """One response, to be given whole or as a stream."""

    def __init__(self, service: Service, wanted: Wanted, kind: str, id_prefix: str) -> None:
        self._service = service
        self._wanted = wanted
        self._kind = kind
        self._id = f"{id_prefix}-{secrets.token_hex(16)}"
        self._created = int(time.time())

    def envelope(self, kind: str, choices: Sequence[Chunk]) -> Chunk:
        """The fields around `choices`."""
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self._service.config.model_name,
            "choices": choices,
            "system_fingerprint": None,
        }

    async def whole(self, request: web.Request, choices: Callable[[list[Delta]], list[Chunk]]) -> web.StreamResponse:
        """Wait for all choices, then answer. Returns when the answer is written: draining waits for it."""
        async with self._generation() as generation:
            deltas = await generation.all()
        response = json_response({**self.envelope(self._kind, choices(deltas)), "usage": usage(generation)})
        await response.prepare(request)
        await response.write_eof()
        return response

    async def stream(
        self,
        request: web.Request,
        chunk_kind: str,
        first: Sequence[Chunk],
        chunk: Callable[[Delta], Chunk],
    ) -> web.StreamResponse:
        """Answer with events. Nothing is sent before the core has queued the request, so a refusal keeps its status."""
        events = EventStream(request)
        error: BaseException | None = None
        try:
            async with self._generation() as generation:
                await events.start()
                if first:
                    await events.send(*(self._event(chunk_kind, [choice]) for choice in first))
                async for deltas in _news(generation, events):
                    await events.send(*(self._event(chunk_kind, [chunk(delta)]) for delta in deltas))
                if self._wanted.include_usage:
                    await events.send({**self.envelope(chunk_kind, []), "usage": usage(generation)})
        except ConnectionError:
            raise
        except Exception as failed:
            if not events.started:
                raise
            if not isinstance(failed, KvikError):
                log.exception("a stream failed", extra={"id": self._id})
            error = failed
        return await events.finish(error)

    def _generation(self) -> Generation:
        service, wanted = self._service, self._wanted
        return Generation(
            service.client,
            service.text.bytes,
            service.metrics,
            wanted.prompts,
            wanted.sampling,
            arrived_at=wanted.arrived_at,
        )

    def _event(self, kind: str, choices: list[Chunk]) -> Chunk:
        event = self.envelope(kind, choices)
        return {**event, "usage": None} if self._wanted.include_usage else event


def usage(generation: Generation) -> Chunk:
    """Token counts of the whole request."""
    return {
        "prompt_tokens": generation.prompt_tokens,
        "completion_tokens": generation.completion_tokens,
        "total_tokens": generation.prompt_tokens + generation.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": generation.cached_tokens},
    }


async def _news(generation: Generation, events: EventStream) -> AsyncIterator[list[Delta]]:
    """Deltas as they come, with a comment after each quarter of a minute without one."""
    while (deltas := await generation.next(KEEPALIVE_COMMENT_SECONDS)) is not None:
        if deltas:
            yield deltas
        else:
            await events.comment()
