"""POST /v1/completions."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Any

from aiohttp import web

from kvik_engine.api.answer import Answer, Wanted
from kvik_engine.api.auth import tenant_of
from kvik_engine.api.body import received
from kvik_engine.api.choice import Delta
from kvik_engine.api.fitting import check_token_ids, fit
from kvik_engine.api.limits import MAX_CHOICES, MAX_LOGPROBS, MAX_PROMPTS
from kvik_engine.api.logprobs import completion_logprobs
from kvik_engine.api.sampling_fields import Sampling, resolve_sampling
from kvik_engine.api.schema import CompletionRequest
from kvik_engine.api.service import SERVICE, Service
from kvik_engine.errors import UserError
from kvik_engine.text.tokenizer import TextModel

DEFAULT_MAX_TOKENS = 16


async def completions(request: web.Request) -> web.StreamResponse:
    """Understand, generate, answer."""
    service = request.app[SERVICE]
    wanted = await _understand(request, service)
    shape = _CompletionShape(service.text, wants_logprobs=wanted.sampling.logprobs is not None)
    answer = Answer(service, wanted, "text_completion", "cmpl")
    if not wanted.stream:
        return await answer.whole(request, shape.choices)
    return await answer.stream(request, "text_completion", [], shape.chunk)


async def _understand(request: web.Request, service: Service) -> Wanted:
    """Read, validate, tokenize. UserError for what the client did wrong."""
    arrived_at = time.monotonic()
    async with received(request, service, CompletionRequest) as body:
        service.check_model(body.model)
        max_tokens = ("max_tokens", body.max_tokens)
        sampling = resolve_sampling(
            body, service.served, max_tokens=max_tokens, logprobs=_logprobs(body), tenant=tenant_of(request)
        )
        ids = await service.in_thread(_token_ids, service, body, sampling)
        context = service.model.max_tokens
        prompts = [fit(tokens, sampling, context, param="prompt", default=DEFAULT_MAX_TOKENS) for tokens in ids]
        return Wanted.of(body, prompts, sampling, arrived_at)


def _token_ids(service: Service, body: CompletionRequest, sampling: Sampling) -> list[list[int]]:
    """Of each prompt. UserError for what is no prompt, and for more of them than are taken."""
    prompts = split_prompts(body.prompt)
    n = _n(sampling)
    if len(prompts) * sampling.params.n > MAX_CHOICES:
        raise UserError(f"{n} times the number of prompts is more than {MAX_CHOICES}.", param=n)
    taken = service.config.max_requests // sampling.params.n + service.config.max_queued_requests
    if len(prompts) > taken:  # 429 would send the client round for ever
        message = f"The engine takes at most {taken} prompts of {n}={sampling.params.n} at once, running or waiting."
        raise UserError(message, param="prompt")
    return _encode(service.text, prompts, service.model.vocab_size, body.add_special_tokens)


def _n(sampling: Sampling) -> str:
    """The field that says how many choices run."""
    return "n" if sampling.params.n == sampling.returned else "best_of"


def split_prompts(prompt: Any) -> list[str | list[int]]:
    """A prompt is a text, token ids, or a list of either; UserError for anything else."""
    if isinstance(prompt, str):
        return [prompt]
    if not isinstance(prompt, list) or not prompt:
        raise UserError("prompt must be a text, token ids, or a list of either, and not empty.", param="prompt")
    if _is_ids(prompt):
        return [prompt]
    if len(prompt) > MAX_PROMPTS:
        raise UserError(f"prompt has more than {MAX_PROMPTS} entries.", param="prompt")
    for i, entry in enumerate(prompt):
        if not isinstance(entry, str) and not (isinstance(entry, list) and _is_ids(entry)):
            raise UserError("A prompt must be a text or a list of token ids.", param=f"prompt[{i}]")
    return prompt


def _is_ids(value: list[Any]) -> bool:
    return all(type(entry) is int for entry in value)


def _encode(
    text: TextModel, prompts: list[str | list[int]], vocab_size: int, add_special_tokens: bool | None
) -> list[list[int]]:
    special = add_special_tokens is not False
    ids = []
    for prompt in prompts:
        if isinstance(prompt, str):
            ids.append(text.encode(prompt, add_special_tokens=special) if prompt else [])
        else:
            check_token_ids(prompt, vocab_size, param="prompt")
            ids.append(prompt)
    return ids


def _logprobs(body: CompletionRequest) -> int | None:
    if body.logprobs is not None and not 0 <= body.logprobs <= MAX_LOGPROBS:
        raise UserError(f"logprobs must be at least 0 and at most {MAX_LOGPROBS}.", param="logprobs")
    return body.logprobs


class _CompletionShape:
    """Deltas as completion choices."""

    def __init__(self, text: TextModel, *, wants_logprobs: bool) -> None:
        self._text = text
        self._wants_logprobs = wants_logprobs

    def chunk(self, delta: Delta) -> dict[str, Any]:
        return self._choice(delta.index, delta.text, [delta])

    def choices(self, deltas: list[Delta]) -> list[dict[str, Any]]:
        """Whole choices, in order of their index."""
        by_index: dict[int, list[Delta]] = defaultdict(list)
        for delta in deltas:
            by_index[delta.index].append(delta)
        return [self._choice(i, "".join(d.text for d in own), own) for i, own in sorted(by_index.items())]

    def _choice(self, index: int, text: str, deltas: list[Delta]) -> dict[str, Any]:
        tokens = [token for delta in deltas for token in delta.tokens]
        logprobs = completion_logprobs(self._text, tokens) if self._wants_logprobs and tokens else None
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": deltas[-1].finish}
