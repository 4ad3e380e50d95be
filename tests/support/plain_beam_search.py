"""Beam search in its plainest form: whole sequences, every token of the vocabulary, nothing kept between steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvik_engine.params import EarlyStopping, SamplingParams


@dataclass(frozen=True, slots=True)
class Found:
    """One answer. `tokens` are all of its output tokens, also a stop token that ended it."""

    tokens: list[int]
    logprob: float
    stopped: bool

    def score(self, penalty: float) -> float:
        return self.logprob / len(self.tokens) ** penalty

    @property
    def shown(self) -> list[int]:
        return self.tokens[:-1] if self.stopped else self.tokens


def plain_beam_search(
    logprobs_after: Callable[[list[int]], Sequence[float]], prompt: Sequence[int], params: SamplingParams
) -> list[Found]:
    """The `n` best answers, best first. `logprobs_after(tokens)` has one entry for each token that may come next."""
    assert params.beam is not None
    width, rules, most = params.n, params.beam, params.max_tokens
    answers: list[Found] = []

    def keep(more: list[Found]) -> list[Found]:
        return sorted([*answers, *more], key=lambda found: found.score(rules.length_penalty), reverse=True)[:width]

    beams = [Found([], 0.0, False)]
    for length in range(1, most + 1):
        longer = [
            Found([*beam.tokens, token], beam.logprob + logprob, token in params.stop_token_ids)
            for beam in beams
            for token, logprob in enumerate(logprobs_after([*prompt, *beam.tokens]))
            if length > params.min_tokens or token not in params.stop_token_ids
        ]
        longer.sort(key=lambda found: found.logprob, reverse=True)
        answers = keep([found for found in longer[:width] if found.stopped])
        beams = [found for found in longer if not found.stopped][:width]
        if length == most:
            return keep(beams)
        if len(answers) < width:
            continue
        worst, best = answers[-1].score(rules.length_penalty), beams[0]
        at_best = {
            EarlyStopping.COMPLETE: -float("inf"),
            EarlyStopping.LIKELY: best.score(rules.length_penalty),
            EarlyStopping.SURE: best.logprob / (most if rules.length_penalty > 0 else length) ** rules.length_penalty,
        }
        if worst >= at_best[rules.early_stopping]:
            break
    return answers
