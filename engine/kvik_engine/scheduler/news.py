"""What the scheduler tells: news of branches, and totals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kvik_engine.request import Branch, Finish
from kvik_engine.step import Sample


class News(NamedTuple):
    """What a settled step brought for one branch: a token unless it failed, and how it ended if it did.

    `stop` is true when the token is a stop token: it ends the branch and is not shown. `before` are samples of tokens
    before it that were not told yet: a search tells only at its end. Neither is set for a branch that goes on.
    """

    branch: Branch
    sample: Sample
    finish: Finish | None
    stop: bool = False
    before: Sequence[Sample] = ()


@dataclass(slots=True)
class Counters:
    """Totals since the start."""

    preemptions: int = 0
    swaps: int = 0
    """Preemptions that kept the KV in the host's memory."""
    prefix_query_tokens: int = 0
    prefix_hit_tokens: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
