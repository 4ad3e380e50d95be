"""What chat and completions share in answering: run a generation, whole or as a stream of events."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
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


class Answer:
    """One response. `shape` gives the API its form: see ChatShape and CompletionShape."""

    def __init__(self, service: Service, request: SamplingFields, kind: str, id_prefix: str) -> None:
        self._service = service
        self._request = request
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

    @property
    def include_usage(self) -> bool:
        options = self._request.stream_options
        return options is not None and bool(options.include_usage)

    def generation(self, prompts: Sequence[Prompt], sampling: Sampling, arrived_at: float) -> Generation:
        service = self._service
        return Generation(service.client, service.text.bytes, service.metrics, prompts, sampling, arrived_at=arrived_at)

    async def whole(self, generation: Generation, choices: Callable[[list[Delta]], list[Chunk]]) -> web.StreamResponse:
        """Wait for all choices, then answer."""
        async with generation:
            deltas = await generation.all()
            return json_response({**self.envelope(self._kind, choices(deltas)), "usage": usage(generation)})

    async def stream(
        self,
        request: web.Request,
        generation: Generation,
        chunk_kind: str,
        first: Sequence[Chunk],
        chunk: Callable[[Delta], Chunk],
    ) -> web.StreamResponse:
        """Answer with events. Nothing is sent before the core has queued the request, so a refusal keeps its status."""
        async with generation:
            events = EventStream(request)
            await events.start()
            error: BaseException | None = None
            try:
                if first:
                    await events.send(*(self._event(chunk_kind, [choice]) for choice in first))
                async for deltas in _news(generation, events):
                    await events.send(*(self._event(chunk_kind, [chunk(delta)]) for delta in deltas))
                if self.include_usage:
                    await events.send({**self.envelope(chunk_kind, []), "usage": usage(generation)})
            except ConnectionError:
                raise
            except Exception as failed:
                if not isinstance(failed, KvikError):
                    log.exception("a stream failed", extra={"id": self._id})
                error = failed
            return await events.finish(error)

    def _event(self, kind: str, choices: list[Chunk]) -> Chunk:
        event = self.envelope(kind, choices)
        return {**event, "usage": None} if self.include_usage else event


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
