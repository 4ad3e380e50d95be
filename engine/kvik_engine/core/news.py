"""What a step brought, sorted by the API process that must hear of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from kvik_engine.ipc.messages import CoreStats, FinishReason, Frame, Output, OutputToken, Refusal, TopLogprob
from kvik_engine.request import RequestKey
from kvik_engine.scheduler.news import News
from kvik_engine.step import Sample


@dataclass(slots=True)
class _Pile:
    queued: list[int] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)
    outputs: list[Output] = field(default_factory=list)


class NewsByApi:
    """Collects until `take` makes one frame per API process out of it."""

    def __init__(self) -> None:
        self._piles: dict[int, _Pile] = {}

    def queued(self, key: RequestKey) -> None:
        api_id, request_id = key
        self._pile(api_id).queued.append(request_id)

    def refused(self, api_id: int, refusal: Refusal) -> None:
        self._pile(api_id).refused.append(refusal)

    def outputs(self, news: Iterable[News]) -> None:
        for item in news:
            api_id, request_id = item.branch.request.key
            self._pile(api_id).outputs.append(_output(request_id, item))

    def take(self, stats: CoreStats) -> dict[int, Frame]:
        """The frames, and an empty pile again."""
        frames = {
            api_id: Frame(queued=pile.queued, refused=pile.refused, outputs=pile.outputs, stats=stats)
            for api_id, pile in self._piles.items()
        }
        self._piles.clear()
        return frames

    def _pile(self, api_id: int) -> _Pile:
        pile = self._piles.get(api_id)
        if pile is None:
            pile = self._piles[api_id] = _Pile()
        return pile


def _output(request_id: int, news: News) -> Output:
    branch, sample, finish, stop, before = news
    cached_tokens = branch.request.cached_tokens or 0
    if finish is None:
        return Output(request_id, branch.choice, [_token(sample)], cached_tokens=cached_tokens)
    tokens = [] if stop or sample.error is not None else [_token(sample)]
    return Output(
        request_id,
        branch.choice,
        [*map(_token, before), *tokens],
        finish=FinishReason(finish.value),
        stop_tokens=int(stop),
        stop_logprob=sample.logprob if stop else None,
        cached_tokens=cached_tokens,
        error=sample.error,
    )


def _token(sample: Sample) -> OutputToken:
    _, token, logprob, top, _ = sample
    if logprob is None:
        return OutputToken(token)
    return OutputToken(token, logprob, [TopLogprob(other.token, other.logprob) for other in top])
