"""Beam search, carried out: the beams are branches of one request, and their blocks are shared until they differ.

There are always as many beams as the search is wide: they start as forks of the prompt, like choices, and each that is
not kept makes place, with its row, for a copy of one that is kept twice. All sample before any goes on, so a beam holds
nothing that a later decision takes back. After preemption all of them sample again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kvik_engine.params import BeamParams
from kvik_engine.request import Branch, Finish, Life, Request
from kvik_engine.scheduler.beam_search import Candidate, Choice, Complete, choose
from kvik_engine.scheduler.continuation import Hands
from kvik_engine.scheduler.news import News
from kvik_engine.scheduler.stop_strings import StopStrings
from kvik_engine.spelling import Spell
from kvik_engine.step import Sample


@dataclass(slots=True, eq=False)
class Beam(Branch):
    """A branch whose samples are only candidates: nothing is pending, and what was sampled can be sampled again."""

    logprob: float = 0.0
    """Of all output tokens."""
    told: list[Sample] = field(default_factory=list)
    """Its output tokens, as the client would hear of them."""
    tail: bytes = b""
    """The end of their text, for stop strings."""

    def plan(self, upto: int, step: int, *, samples: bool) -> None:
        Branch.plan(self, upto, step, samples=False)

    def sampled(self) -> None:
        pass

    def settle(self, upto: int) -> None:
        """The last token counts as computed when the next one is chosen: until then it may be computed once more."""
        Branch.settle(self, min(upto, len(self.tokens) - 1))

    def copy(self, choice: int) -> Beam:
        """A new beam with the same past."""
        return Beam(self.request, choice, list(self.tokens), logprob=self.logprob, told=list(self.told), tail=self.tail)


class Answer(NamedTuple):
    """A complete answer, its last sample the one that ended it."""

    samples: Sequence[Sample]
    finish: Finish
    stop: bool
    """Whether the last sample is a stop token, which is not shown."""


class Beams:
    """One search; see continuation.Continuation."""

    def __init__(self, request: Request, params: BeamParams, spell: Spell) -> None:
        width = request.params.n
        self._request = request
        self._beams = [Beam(request, choice, list(request.prompt)) for choice in range(width)]
        request.branches = [*self._beams]
        self._sampled: dict[Branch, Sample] = {}
        self._preemptions = 0
        """Of the request when `_sampled` was begun."""
        self._strings = StopStrings(params.stop, spell)
        self._complete = Complete[Answer](width, request.params.max_tokens, params)

    def take(self, branch: Branch, sample: Sample, hands: Hands) -> Sequence[News]:
        """Once all beams have sampled: choose, and go on or tell."""
        request = self._request
        if branch.life is not Life.RUNNING:
            return ()
        if self._preemptions != request.preemptions:
            self._sampled.clear()
            self._preemptions = request.preemptions
        self._sampled[branch] = sample
        beams = self._beams
        if len(self._sampled) < len(beams):
            return ()
        tokens = beams[0].outputs + 1
        choice = choose(self._candidates(), len(beams), request.stop_ids, self._completes_stop_string)
        for candidate in choice.ended:
            self._complete.add(self._answer(candidate, Finish.STOP), candidate.logprob, tokens)
        if tokens == request.params.max_tokens:
            for candidate in choice.going_on:
                self._complete.add(self._answer(candidate, Finish.LENGTH), candidate.logprob, tokens)
        elif not self._complete.enough(choice.going_on[0].logprob, tokens):
            self._go_on(choice, hands)
            return ()
        return self._tell(hands)

    def named(self, live: Sequence[Branch], choice: int) -> Sequence[Branch]:
        """Beams are no choices before the search is over: with one of them goes the search."""
        return live

    def _candidates(self) -> list[Candidate]:
        """Before the first token all beams are one."""
        params, stops, beams = self._request.params, self._request.stop_ids, self._beams
        outputs = beams[0].outputs
        return [
            Candidate(place, top.token, top.logprob, beam.logprob + top.logprob)
            for place, beam in enumerate(beams if outputs else beams[:1])
            for top in self._sampled[beam].top
            if outputs >= params.min_tokens or top.token not in stops
        ]

    def _completes_stop_string(self, candidate: Candidate) -> bool:
        beam = self._beams[candidate.beam]
        may = beam.outputs >= self._request.params.min_tokens
        return may and bool(self._strings) and self._strings.completed(beam.tail, candidate.token)

    def _go_on(self, choice: Choice, hands: Hands) -> None:
        """A beam that is kept goes on in place, a second time as a copy in the place of one that is not kept."""
        beams = self._beams
        assert len(choice.going_on) == len(beams), "each beam has as many candidates as there are beams"
        kept: dict[int, Candidate] = {}
        again = [one for one in choice.going_on if kept.setdefault(one.beam, one) is not one]
        places = [place for place in range(len(beams)) if place not in kept]
        told = {one: self._told(one) for one in choice.going_on}
        self._sampled.clear()
        for place in places:
            hands.end(beams[place], Finish.PRUNED)
        for place, candidate in zip(places, again, strict=True):
            source = beams[candidate.beam]
            copy = source.copy(place)
            beams[place] = self._request.branches[place] = copy
            hands.split(source, copy)
            self._append(copy, candidate, told[candidate], hands)
        for place, candidate in kept.items():
            self._append(beams[place], candidate, told[candidate], hands)

    def _append(self, beam: Beam, candidate: Candidate, told: Sample, hands: Hands) -> None:
        beam.logprob = candidate.logprob
        beam.told.append(told)
        if self._strings:
            beam.tail = self._strings.tail(beam.tail, candidate.token)
        hands.choose(beam, candidate.token)

    def _tell(self, hands: Hands) -> list[News]:
        """The search is over: the answers become the choices, best first."""
        news = []
        for beam, answer in zip(self._beams, self._complete.answers, strict=True):
            hands.answered(len(answer.samples))
            hands.end(beam, answer.finish)
            *before, last = answer.samples
            news.append(News(beam, last, answer.finish, answer.stop, before))
        return news

    def _answer(self, candidate: Candidate, finish: Finish) -> Answer:
        samples = [*self._beams[candidate.beam].told, self._told(candidate)]
        return Answer(samples, finish, candidate.token in self._request.stop_ids)

    def _told(self, candidate: Candidate) -> Sample:
        """The token as the client hears of it: with logprobs only if it asked for them, and as many as it asked for."""
        sample, asked = self._sampled[self._beams[candidate.beam]], self._request.params.logprobs
        if asked is None:
            return Sample(sample.row, candidate.token)
        return Sample(sample.row, candidate.token, candidate.token_logprob, sample.top[:asked])
