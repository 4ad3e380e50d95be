"""POST /v1/chat/completions."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Any

from aiohttp import web

from kvik_engine.api.answer import Answer, Wanted
from kvik_engine.api.auth import tenant_of
from kvik_engine.api.body import received
from kvik_engine.api.choice import Delta
from kvik_engine.api.fitting import fit
from kvik_engine.api.limits import MAX_LOGPROBS, max_body_bytes
from kvik_engine.api.logprobs import chat_logprobs
from kvik_engine.api.messages import chat_prompt
from kvik_engine.api.sampling_fields import resolve_sampling
from kvik_engine.api.schema import ChatRequest
from kvik_engine.api.service import SERVICE, Service
from kvik_engine.errors import UserError
from kvik_engine.text.tokenizer import TextModel


async def chat_completions(request: web.Request) -> web.StreamResponse:
    """Understand, generate, answer."""
    service = request.app[SERVICE]
    wanted = await _understand(request, service)
    shape = _ChatShape(service.text, wants_logprobs=wanted.sampling.logprobs is not None)
    answer = Answer(service, wanted, "chat.completion", "chatcmpl")
    if not wanted.stream:
        return await answer.whole(request, shape.choices)
    first = [shape.first(i) for i in range(wanted.sampling.params.n)]
    return await answer.stream(request, "chat.completion.chunk", first, shape.chunk)


async def _understand(request: web.Request, service: Service) -> Wanted:
    """Read, validate, render, tokenize. UserError for what the client did wrong."""
    arrived_at = time.monotonic()
    async with received(request, service, ChatRequest) as body:
        service.check_model(body.model)
        field = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
        if body.add_special_tokens:
            raise UserError("The chat template writes the special tokens.", param="add_special_tokens")
        max_tokens = (field, getattr(body, field))
        sampling = resolve_sampling(
            body, service.served, max_tokens=max_tokens, logprobs=_logprobs(body), tenant=tenant_of(request)
        )
        context = service.model.max_tokens
        tokens = await service.in_thread(chat_prompt, service.text, body.messages, max_chars=max_body_bytes(context))
        prompt = fit(tokens, sampling, context, param="messages", default=None)
        return Wanted.of(body, [prompt], sampling, arrived_at)


def _logprobs(body: ChatRequest) -> int | None:
    if body.top_logprobs is not None:
        if not body.logprobs:
            raise UserError("top_logprobs needs logprobs to be true.", param="top_logprobs")
        if not 0 <= body.top_logprobs <= MAX_LOGPROBS:
            raise UserError(f"top_logprobs must be at least 0 and at most {MAX_LOGPROBS}.", param="top_logprobs")
    return (body.top_logprobs or 0) if body.logprobs else None


class _ChatShape:
    """Deltas as chat choices."""

    def __init__(self, text: TextModel, *, wants_logprobs: bool) -> None:
        self._text = text
        self._wants_logprobs = wants_logprobs

    def first(self, index: int) -> dict[str, Any]:
        """The role chunk of a choice."""
        delta = {"role": "assistant", "content": ""}
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    def chunk(self, delta: Delta) -> dict[str, Any]:
        return {
            "index": delta.index,
            "delta": {"content": delta.text} if delta.text else {},
            "logprobs": self._logprobs([delta]),
            "finish_reason": delta.finish,
        }

    def choices(self, deltas: list[Delta]) -> list[dict[str, Any]]:
        """Whole choices, in order of their index."""
        by_index: dict[int, list[Delta]] = defaultdict(list)
        for delta in deltas:
            by_index[delta.index].append(delta)
        return [
            {
                "index": index,
                "message": {"role": "assistant", "content": "".join(d.text for d in own), "refusal": None},
                "logprobs": self._logprobs(own),
                "finish_reason": own[-1].finish,
            }
            for index, own in sorted(by_index.items())
        ]

    def _logprobs(self, deltas: list[Delta]) -> dict[str, Any] | None:
        tokens = [token for delta in deltas for token in delta.tokens]
        return chat_logprobs(self._text, tokens) if self._wants_logprobs and tokens else None
