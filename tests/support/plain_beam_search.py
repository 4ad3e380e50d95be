"""Beam search in its plainest form: whole sequences, every token of the vocabulary, nothing kept between steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvik_engine.params import EarlyStopping, SamplingParams
from kvik_engine.spelling import Spell, unspelled


@dataclass(frozen=True, slots=True)
class Found:
    """One answer. `tokens` are all of its output tokens, also a stop token that ended it."""

    tokens: list[int]
    logprob: float
    stopped: bool
    """By a stop token."""
    complete: bool = False
    """By a stop string."""

    def score(self, penalty: float) -> float:
        return self.logprob / len(self.tokens) ** penalty

    @property
    def shown(self) -> list[int]:
        return self.tokens[:-1] if self.stopped else self.tokens


def plain_beam_search(
    logprobs_after: Callable[[list[int]], Sequence[float]],
    prompt: Sequence[int],
    params: SamplingParams,
    spell: Spell = unspelled,
) -> list[Found]:
    """The `n` best answers, best first. `logprobs_after(tokens)` has one entry for each token that may come next."""
    assert params.beam is not None
    width, rules, most = params.n, params.beam, params.max_tokens
    answers: list[Found] = []

    def keep(more: list[Found]) -> list[Found]:
        return sorted([*answers, *more], key=lambda found: found.score(rules.length_penalty), reverse=True)[:width]

    def listed(logprobs: Sequence[float]) -> list[tuple[int, float]]:
        """All tokens with theirs; with stop strings only the best, since then they may be too few to go on."""
        best = sorted(enumerate(logprobs), key=lambda one: one[1], reverse=True)
        return best[: params.listed] if rules.stop else best

    def comes_to_stop(tokens: list[int]) -> bool:
        """Whether there is a stop string that was not there without the last token."""
        assert params.beam is not None
        before, text = (b"".join(map(spell, some)) for some in (tokens[:-1], tokens))
        return len(tokens) > params.min_tokens and any(
            text.rfind(stop.encode()) > before.rfind(stop.encode()) for stop in params.beam.stop
        )

    beams = [Found([], 0.0, False)]
    for length in range(1, most + 1):
        longer = [
            Found(
                [*beam.tokens, token],
                beam.logprob + logprob,
                token in params.stop_token_ids,
                comes_to_stop([*beam.tokens, token]),
            )
            for beam in beams
            for token, logprob in listed(logprobs_after([*prompt, *beam.tokens]))
            if length > params.min_tokens or token not in params.stop_token_ids
        ]
        longer.sort(key=lambda found: found.logprob, reverse=True)
        answers = keep([found for found in longer[:width] if found.stopped or found.complete])
        beams = [found for found in longer if not found.stopped and not found.complete][:width]
        spare = [found for found in longer[width:] if found.complete and not found.stopped]
        beams = sorted([*beams, *spare[: width - len(beams)]], key=lambda found: found.logprob, reverse=True)
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
