"""Which of several candidates a client gets, best first. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from kvik_engine.params import score


def best(candidates: Sequence[tuple[float, int]], wanted: int, length_penalty: float) -> list[int]:
    """Places of the `wanted` best among (log-probability, tokens); of equals the earlier one.

    For `best_of` the penalty is 1: the best is "the one with the highest log probability per token" (OpenAI's
    reference). A beam search brings its own.
    """
    scores = [score(logprob, tokens, length_penalty) for logprob, tokens in candidates]
    return sorted(range(len(scores)), key=lambda place: -scores[place])[:wanted]
