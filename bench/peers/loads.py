"""The loads that servers are compared under, and what their clients say: written once, the same for every server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from kvik_engine.bench.prompts import Count, Script, write
from kvik_engine.bench.workloads import Workload, conversations

SEED: Final = 0
WARMUP: Final = 2
"""Requests before each load, of other words."""


@dataclass(frozen=True, slots=True)
class Load:
    """A closed load."""

    name: str
    what: str
    workload: Workload
    clients: int
    requests: int


@dataclass(frozen=True, slots=True)
class Written:
    """A load with all that its clients say."""

    load: Load
    before: Sequence[Script]
    measured: Sequence[Script]


def _workload(kind: str, input_tokens: int, output_tokens: int) -> Workload:
    return Workload(kind, input_tokens, output_tokens, prefix_tokens=512, prefixes=2, turns=1)


LOADS: Final = (
    Load("1 client", "128 tokens in, 64 out", _workload("random", 128, 64), 1, 16),
    Load("8 clients", "256 in, 64 out", _workload("random", 256, 64), 8, 32),
    Load("16 clients", "two prefixes of 512, 64 in, 32 out", _workload("shared-prefix", 64, 32), 16, 64),
)


def shortened(load: Load) -> Load:
    """A fourth of its requests, to see whether everything works."""
    return replace(load, requests=load.requests // 4)


async def written(load: Load, count: Count) -> Written:
    """By a server that counts tokens. RuntimeError where it does not, or where a prompt cannot be made that long."""
    parts = []
    for requests, seed in ((WARMUP, f"warm-up {SEED}"), (load.requests, str(SEED))):
        talks = conversations(load.workload, requests, seed)
        scripts = await write(load.workload, talks, f"{seed} {load.name}", count)
        if not scripts.exact:
            raise RuntimeError(f"{load.name}: its prompts are not as long as they should be")
        parts.append(scripts.scripts)
    return Written(load, *parts)
