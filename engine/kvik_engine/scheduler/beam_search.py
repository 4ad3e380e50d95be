"""Beam search, decided: which candidates end, which go on, which complete answers are kept, and when to stop. Pure.

Candidates are ranked by the log-probability of all their output tokens. Among the first `width` of that order, those
that end are complete answers; the first `width` that do not end go on. Complete answers are ranked by `params.score`.
The same rules as transformers' beam search, so that its length_penalty and early_stopping mean what users know.

Stop tokens end an answer, and so does a token that completes a stop string. The sampler lists enough candidates that go
on beside all stop tokens; how many complete a stop string nobody knows before. Where too few are left, those of them
that are no answers go on, so that a search keeps its width.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from kvik_engine.params import BeamParams, EarlyStopping, score

_Answer = TypeVar("_Answer")


class Candidate(NamedTuple):
    """Beam number `beam` with one more token."""

    beam: int
    token: int
    token_logprob: float
    logprob: float
    """Of all output tokens, this one included."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What one step of a search comes to. Both best first."""

    ended: tuple[Candidate, ...]
    going_on: tuple[Candidate, ...]


def choose(
    candidates: Iterable[Candidate],
    width: int,
    stops: Container[int],
    completes: Callable[[Candidate], bool] = lambda _: False,
) -> Choice:
    """`stops` are the tokens that end an answer; `completes`: whether a candidate's text comes to a stop string. Of
    equals, the lower beam and then the lower token is first."""
    ended: list[Candidate] = []
    going_on: list[Candidate] = []
    spare: list[Candidate] = []
    for place, candidate in enumerate(sorted(candidates, key=_order)):
        stop = candidate.token in stops
        if not stop and not completes(candidate):
            going_on.append(candidate)
            if len(going_on) == width:
                break
        elif place < width:
            ended.append(candidate)
        elif not stop:
            spare.append(candidate)
    going_on = sorted([*going_on, *spare[: width - len(going_on)]], key=_order)
    return Choice(tuple(ended), tuple(going_on))


def _order(candidate: Candidate) -> tuple[float, int, int]:
    return -candidate.logprob, candidate.beam, candidate.token


@dataclass(slots=True)
class Complete(Generic[_Answer]):
    """The best `width` complete answers so far."""

    width: int
    max_tokens: int
    params: BeamParams
    _kept: list[tuple[float, _Answer]] = field(default_factory=list)
    """With their scores, best first."""

    @property
    def answers(self) -> list[_Answer]:
        """Best first."""
        return [answer for _, answer in self._kept]

    def add(self, answer: _Answer, logprob: float, tokens: int) -> None:
        """An answer of so many output tokens, the one that ended it included. Of equals the earlier one is better."""
        self._kept.append((score(logprob, tokens, self.params.length_penalty), answer))
        self._kept.sort(key=lambda kept: -kept[0])
        del self._kept[self.width :]

    def enough(self, best_logprob: float, tokens: int) -> bool:
        """Whether the search is over, its best beam having this log-probability after so many output tokens."""
        if len(self._kept) < self.width:
            return False
        penalty, (worst, _) = self.params.length_penalty, self._kept[-1]
        match self.params.early_stopping:
            case EarlyStopping.COMPLETE:
                return True
            case EarlyStopping.LIKELY:
                return worst >= score(best_logprob, tokens, penalty)
            case EarlyStopping.SURE:
                # Log-probabilities only fall; dividing by more makes them better when the penalty is positive.
                return worst >= score(best_logprob, self.max_tokens if penalty > 0 else tokens, penalty)
