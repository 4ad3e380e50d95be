"""Traces: when which request comes and how long it is, one JSON object a line."""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterable
from pathlib import Path

import msgspec

from kvik_engine.config import SLO_CLASSES
from kvik_engine.simulation.runner import VOCABULARY

MAX_TOKENS = 1 << 24
"""Of a prompt or an answer: far more than any context, and what memory can hold."""
MAX_ARRIVAL = 1e9


class TraceError(ValueError):
    """A trace that cannot be read; the message names the line."""


class TraceRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """One request. Requests of one `prefix_id` and tenant begin with the same `prefix_tokens` tokens."""

    arrival: float
    """Seconds since the trace's begin."""
    prompt_tokens: int
    output_tokens: int
    """How long the answer is, its end token included."""
    max_tokens: int | None = None
    """What the client allows for; the scheduler knows only this. None: exactly the answer's length."""
    slo_class: str = msgspec.field(name="class", default="balanced")
    priority: int = 0
    tenant: str = ""
    prefix_id: str | None = None
    prefix_tokens: int = 0

    @property
    def allowed_tokens(self) -> int:
        return self.output_tokens if self.max_tokens is None else self.max_tokens

    def __post_init__(self) -> None:
        lengths = 1 <= self.prompt_tokens <= MAX_TOKENS and 1 <= self.output_tokens <= self.allowed_tokens <= MAX_TOKENS
        if not (lengths and 0 <= self.arrival <= MAX_ARRIVAL):
            raise ValueError("arrival, prompt_tokens, output_tokens or max_tokens is out of range")
        if self.slo_class not in SLO_CLASSES:
            raise ValueError(f"class is none of {', '.join(SLO_CLASSES)}")
        if not 0 <= self.prefix_tokens <= self.prompt_tokens or (self.prefix_tokens and self.prefix_id is None):
            raise ValueError("prefix_tokens needs a prefix_id and is at most prompt_tokens")


def read_trace(path: Path) -> list[TraceRequest]:
    """The requests by arrival. Raises TraceError."""
    requests = []
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        if line.strip():
            try:
                requests.append(msgspec.json.decode(line, type=TraceRequest))
            except (msgspec.DecodeError, ValueError) as error:
                raise TraceError(f"{path.name}, line {number}: {error}") from error
    return sorted(requests, key=lambda request: request.arrival)


def write_trace(path: Path, requests: Iterable[TraceRequest]) -> None:
    path.write_bytes(b"".join(msgspec.json.encode(request) + b"\n" for request in requests))


def prompt_of(number: int, request: TraceRequest) -> list[int]:
    """Token ids of the request that is `number` in its trace: the shared beginning, then tokens of its own."""
    own = _tokens(f"request {number}", request.prompt_tokens - request.prefix_tokens)
    return [*_tokens(f"prefix {request.prefix_id}", request.prefix_tokens), *own]


def _tokens(seed: str, count: int) -> list[int]:
    ids = array("I", random.Random(seed).randbytes(4 * count))
    return [token % VOCABULARY for token in ids]
