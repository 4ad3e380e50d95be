"""Looks once more at everything from the wire that will index memory, before any kernel sees it.

The API checked all of this already; a failure here means that the API has a bug, and costs one request, not the engine.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

from kvik_engine.ipc.messages import Submit
from kvik_engine.params import SamplingParams

_MAX_SEED = (1 << 64) - 1
_SLO_CLASSES = range(3)
_MAX_LOGPROBS = 1024


@dataclass(frozen=True, slots=True)
class Bounds:
    """What indices must stay under: the vocabulary and the served context in tokens."""

    vocab_size: int
    context: int


def too_long(submit: Submit, bounds: Bounds) -> str | None:
    """Why prompt and outputs are more than the served context; None when they are not."""
    total = len(submit.prompt) + submit.params.max_tokens
    if total <= bounds.context:
        return None
    return f"{len(submit.prompt)} prompt and {submit.params.max_tokens} output tokens, the context is {bounds.context}"


def invalid(submit: Submit, bounds: Bounds) -> str | None:
    """What is out of range; None when nothing is."""
    if not submit.prompt:
        return "the prompt is empty"
    if not _in_vocabulary(submit.prompt, bounds):
        return "a prompt token is outside the vocabulary"
    if submit.slo_class not in _SLO_CLASSES:
        return f"slo_class {submit.slo_class} is unknown"
    return _invalid_params(submit.params, bounds)


def _invalid_params(params: SamplingParams, bounds: Bounds) -> str | None:
    floats = (
        params.temperature,
        params.top_p,
        params.min_p,
        params.presence_penalty,
        params.frequency_penalty,
        params.repetition_penalty,
        *(bias for _, bias in params.logit_bias),
        *(() if params.beam is None else (params.beam.length_penalty,)),
    )
    checks = {
        "max_tokens": params.max_tokens >= 1,
        "n": params.n >= 1,
        "seed": 0 <= params.seed <= _MAX_SEED,
        "finite numbers": all(map(isfinite, floats)),
        "temperature": params.temperature == 0 or 0.01 <= params.temperature <= 2,
        "top_k": params.top_k is None or params.top_k >= 1,
        "top_p": 0 < params.top_p <= 1,
        "min_p": 0 <= params.min_p <= 1,
        "repetition_penalty": 0.01 <= params.repetition_penalty <= 100,
        "logit_bias": _in_vocabulary([token for token, _ in params.logit_bias], bounds),
        "stop_token_ids": _in_vocabulary(params.stop_token_ids, bounds),
        "min_tokens": 0 <= params.min_tokens <= params.max_tokens,
        "beam": params.beam is None or (params.listed or 0) <= bounds.vocab_size,
        "logprobs": params.logprobs is None or 0 <= params.logprobs <= min(_MAX_LOGPROBS, bounds.vocab_size),
    }
    wrong = [name for name, right in checks.items() if not right]
    return f"out of range: {', '.join(wrong)}" if wrong else None


def _in_vocabulary(tokens: list[int] | tuple[int, ...], bounds: Bounds) -> bool:
    return not tokens or (min(tokens) >= 0 and max(tokens) < bounds.vocab_size)
