"""Choices, which know nothing of each other: what a request has unless it is a search. And which of the two it has."""

from __future__ import annotations

from collections.abc import Sequence

from kvik_engine.request import Branch, Finish, Request
from kvik_engine.scheduler.beams import Beams
from kvik_engine.scheduler.continuation import Continuation, Hands
from kvik_engine.scheduler.news import News
from kvik_engine.spelling import Spell
from kvik_engine.step import Sample


class Choices:
    """Each one's sample is its next token. See continuation.Continuation; one object serves all requests."""

    def take(self, branch: Branch, sample: Sample, hands: Hands) -> Sequence[News]:
        hands.accept(branch, sample.token)
        request = branch.request
        stop = sample.token in request.stop_ids
        finish = Finish.STOP if stop else Finish.LENGTH if len(branch.tokens) >= request.token_limit else None
        if finish is not None:
            hands.answered(branch.outputs)
            hands.end(branch, finish)
        return (News(branch, sample, finish, stop),)

    def named(self, live: Sequence[Branch], choice: int) -> Sequence[Branch]:
        return [branch for branch in live if branch.choice == choice]


_CHOICES = Choices()


def continuation_of(request: Request, spell: Spell) -> Continuation:
    """Before the request has run."""
    beam = request.params.beam
    return _CHOICES if beam is None else Beams(request, beam, spell)
