"""The caps of a step."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The step's caps: rows, tokens, and the tokens that prefills share while any row decodes."""

    max_requests: int
    max_batch_tokens: int
    chunked_prefill_tokens: int
