"""What came of a step, and of aborts: tokens are computed and accepted, branches end, requests with their last one."""

from __future__ import annotations

from kvik_engine.request import Branch, Finish, Life, Request
from kvik_engine.scheduler.news import News
from kvik_engine.scheduler.plan_builder import PlannedStep
from kvik_engine.scheduler.state import State
from kvik_engine.step import Sample, StepResult


def settle(state: State, planned: PlannedStep, result: StepResult) -> list[News]:
    """Take the results of the oldest planned step."""
    assert planned.step == result.step, "results come in the order of the plans"
    samples = iter(result.samples)
    news: list[News] = []
    for work, branches in zip(planned.work, planned.branches, strict=True):
        upto = work.start + work.length
        for branch in branches:
            if branch.life is Life.RUNNING:
                branch.settle(upto)
                state.kv.commit(branch)
        if work.sampled_rows:
            for branch in branches:
                _take(state, branch, next(samples), news)
    state.kv.settle(planned.step)
    state.offload.settle(planned.step, result.seconds, planned.prefill_tokens)
    return news


def abort(state: State, request: Request, choice: int | None, accepted_outputs: int | None) -> None:
    """End a request or one choice of it in whatever state it is. Samples still to come are dropped."""
    accepted = None if accepted_outputs is None else request.prompt_length + accepted_outputs
    for branch in request.live:
        if choice is None or branch.choice == choice:
            _end(state, branch, Finish.ABORTED, accepted)


def _take(state: State, branch: Branch, sample: Sample, news: list[News]) -> None:
    """Accept one sample. Samples of branches that ended meanwhile are dropped."""
    branch.pending -= 1
    if branch.life is Life.FINISHED:
        return
    request = branch.request
    if sample.error is not None:
        for live in request.live:
            _end(state, live, Finish.ERROR, accepted=0)
            news.append(News(live, sample, Finish.ERROR))
        return
    branch.tokens.append(sample.token)
    state.counters.generation_tokens += 1
    state.served.charge_output(request.slo_class, request.tenant)
    stop = sample.token in request.stop_ids
    finish = Finish.STOP if stop else Finish.LENGTH if len(branch.tokens) >= request.token_limit else None
    if finish is not None:
        state.lengths.add(branch.outputs)
        _end(state, branch, finish)
    news.append(News(branch, sample, finish, stop))


def _end(state: State, branch: Branch, finish: Finish, accepted: int | None = None) -> None:
    """End a branch, and its request with the last one."""
    request = branch.request
    state.kv.release(branch, accepted)
    state.offload.end(branch, accepted)
    state.rows.give_back(branch)
    branch.end(finish)
    if request.live:
        return
    if request.life is Life.RUNNING:
        state.running.remove(request)
    state.waiting.remove(request)
    request.end()
    state.full_from = None
