"""Which conversations a run consists of, how long their parts are and when they begin: all from a seed. Pure."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import dataclass
from typing import Final

KINDS: Final = ("random", "shared-prefix", "multi-turn", "mixed")
SPREAD: Final = 4.0
"""Mixed lengths lie between the given one divided and multiplied by this, and their logarithms are uniform."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Lengths in tokens. `input_tokens` is what a request brings of its own: what follows a shared prefix, or one
    message of a conversation with several turns."""

    kind: str
    input_tokens: int
    output_tokens: int
    prefix_tokens: int
    prefixes: int
    turns: int


@dataclass(frozen=True, slots=True)
class Turn:
    input_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Conversation:
    """Its turns are requests, one after the other, each with all that was said before."""

    number: int
    turns: tuple[Turn, ...]
    prefix: int | None = None
    """Which of the shared beginnings it has; None: one of its own."""


def conversations(workload: Workload, requests: int, seed: str) -> list[Conversation]:
    """So many that their turns are `requests` together."""
    rng = random.Random(f"lengths {seed}")
    turns = workload.turns if workload.kind == "multi-turn" else 1
    made = []
    for number, begin in enumerate(range(0, requests, turns)):
        count = min(turns, requests - begin)
        prefix = number % workload.prefixes if workload.kind == "shared-prefix" else None
        made.append(Conversation(number, tuple(_turn(workload, rng) for _ in range(count)), prefix))
    return made


def arrivals(count: int, rate: float, seed: str) -> list[float]:
    """Seconds after which each conversation begins: a Poisson process of `rate` a second, the first one at 0."""
    rng = random.Random(f"arrivals {seed}")
    gaps = itertools.chain([0.0], (rng.expovariate(rate) for _ in range(count - 1)))
    return list(itertools.accumulate(gaps))


def _turn(workload: Workload, rng: random.Random) -> Turn:
    if workload.kind != "mixed":
        return Turn(workload.input_tokens, workload.output_tokens)
    return Turn(_log_uniform(workload.input_tokens, rng), _log_uniform(workload.output_tokens, rng))


def _log_uniform(middle: int, rng: random.Random) -> int:
    width = math.log(SPREAD)
    return max(1, round(middle * math.exp(rng.uniform(-width, width))))
