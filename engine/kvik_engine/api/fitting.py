"""Fitting a request to the served context. Pure but for the seeds it draws."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace

from kvik_engine.api.generation import Prompt
from kvik_engine.api.sampling_fields import Sampling
from kvik_engine.errors import UserError


def fit(
    tokens: list[int],
    sampling: Sampling,
    context: int,
    *,
    param: str,
    default: int | None,
    draw_seed: Callable[[], int] = lambda: secrets.randbits(64),
) -> Prompt:
    """The prompt with its output length: the client's wish, else `default` (None = all that is left), clamped.

    Without a seed of the client each prompt draws one here, so that the core has no randomness of its own and equal
    prompts of one request differ.

    UserError: an empty prompt, or prompt and wish together longer than `context`.
    """
    if not tokens:
        raise UserError("The prompt is empty.", param=param)
    wanted = sampling.wanted_tokens
    left = context - len(tokens)
    if wanted is not None and wanted > context:
        raise UserError(
            f"{sampling.max_tokens_field} is larger than this model's context length of {context} tokens.",
            param=sampling.max_tokens_field,
            code="context_length_exceeded",
        )
    if left < (wanted or 1):
        raise UserError(
            f"This model's maximum context length is {context} tokens. However, you requested {wanted or 1} output "
            f"tokens and your prompt contains {len(tokens)} input tokens, for a total of "
            f"{len(tokens) + (wanted or 1)} tokens. Please reduce the length of the prompt or the output.",
            param=param,
            code="context_length_exceeded",
        )
    length = wanted or (left if default is None else min(default, left))
    if sampling.params.min_tokens > length:
        raise UserError(f"min_tokens is larger than the {length} tokens that can be generated.", param="min_tokens")
    seed = draw_seed() if sampling.seed is None else sampling.seed
    return Prompt(tokens, replace(sampling.params, max_tokens=length, seed=seed), param)


def check_token_ids(tokens: list[int], vocab_size: int, *, param: str) -> None:
    """UserError for an id outside of the vocabulary."""
    if any(not 0 <= token < vocab_size for token in tokens):
        raise UserError(f"{param} holds a token id outside of the vocabulary of {vocab_size}.", param=param)
