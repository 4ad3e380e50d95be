"""What came of a step, and of aborts: tokens are computed, and each request goes on from its samples."""

from __future__ import annotations

from collections.abc import Sequence

from kvik_engine.request import Branch, Finish, Life, Request
from kvik_engine.scheduler.hands import StateHands
from kvik_engine.scheduler.news import News
from kvik_engine.scheduler.plan_builder import PlannedStep
from kvik_engine.scheduler.state import State
from kvik_engine.step import Sample, StepResult


def settle(state: State, planned: PlannedStep, result: StepResult, full_rate: float | None) -> list[News]:
    """Take the results of the oldest planned step. `full_rate`: prefill tokens a second of full steps, if known."""
    assert planned.step == result.step, "results come in the order of the plans"
    samples = iter(result.samples)
    news: list[News] = []
    hands = StateHands(state)
    for work, branches in zip(planned.work, planned.branches, strict=True):
        upto = work.start + work.length
        for branch in branches:
            if branch.life is Life.RUNNING:
                branch.settle(upto)
                state.kv.commit(branch)
        if work.sampled_rows:
            for branch in branches:
                _take(hands, branch, next(samples), news)
    state.kv.settle(planned.step)
    state.offload.settle(planned.step, result.seconds, planned.prefill_tokens, full_rate)
    return news


def abort(state: State, request: Request, choice: int | None, accepted_outputs: int | None) -> None:
    """End a request or one choice of it in whatever state it is. Samples still to come are dropped."""
    accepted = None if accepted_outputs is None else request.prompt_length + accepted_outputs
    branches: Sequence[Branch] = request.live
    if choice is not None and branches:
        branches = state.continuations[request].named(branches, choice)
    for branch in branches:
        StateHands(state).end(branch, Finish.ABORTED, accepted)


def _take(hands: StateHands, branch: Branch, sample: Sample, news: list[News]) -> None:
    """Let the request go on from one sample. Samples of branches that ended meanwhile are dropped."""
    branch.sampled()
    if branch.life is Life.FINISHED:
        return
    request = branch.request
    if sample.error is not None:
        for live in request.live:
            hands.end(live, Finish.ERROR, accepted=0)
            news.append(News(live, sample, Finish.ERROR))
        return
    news.extend(hands.state.continuations[request].take(branch, sample, hands))
