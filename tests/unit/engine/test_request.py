from itertools import product

import pytest

from kvik_engine.params import SamplingParams
from kvik_engine.request import Branch, Finish, IllegalTransition, Life, LifeEvent, Request, after
from kvik_engine.step import Row

LEGAL = {
    (Life.WAITING, LifeEvent.START): Life.RUNNING,
    (Life.WAITING, LifeEvent.LOAD): Life.LOADING,
    (Life.WAITING, LifeEvent.FINISH): Life.FINISHED,
    (Life.LOADING, LifeEvent.START): Life.RUNNING,
    (Life.LOADING, LifeEvent.PREEMPT): Life.WAITING,
    (Life.LOADING, LifeEvent.FINISH): Life.FINISHED,
    (Life.RUNNING, LifeEvent.PREEMPT): Life.WAITING,
    (Life.RUNNING, LifeEvent.FINISH): Life.FINISHED,
}


def make_request(*, prompt: int = 5, max_tokens: int = 4, n: int = 1) -> Request:
    return Request(
        key=(1, 1),
        prompt=list(range(prompt)),
        params=SamplingParams(max_tokens=max_tokens, seed=0, n=n),
        slo_class=1,
        priority=0,
        salt=b"",
        arrival=0.0,
    )


def started_branch(**kwargs: int) -> Branch:
    branch = make_request(**kwargs).branches[0]
    branch.row = Row(0)
    branch.start(len(branch.tokens), computed=0, scheduled=0)
    return branch


@pytest.mark.parametrize(("life", "event"), list(product(Life, LifeEvent)))
def test_every_pair_of_state_and_event_is_legal_or_refused(life: Life, event: LifeEvent) -> None:
    if (life, event) in LEGAL:
        assert after(life, event) is LEGAL[life, event]
    else:
        with pytest.raises(IllegalTransition):
            after(life, event)


@pytest.mark.parametrize(("life", "event"), list(product(Life, LifeEvent)))
def test_branches_and_requests_live_by_the_same_table(life: Life, event: LifeEvent) -> None:
    request = make_request()
    branch = request.branches[0]
    branch.row = Row(0)
    request.life = branch.life = life
    on_request = {LifeEvent.START: request.start, LifeEvent.PREEMPT: request.preempt, LifeEvent.FINISH: request.end}
    on_branch = {
        LifeEvent.LOAD: lambda: branch.load(4, computed=0),
        LifeEvent.START: lambda: branch.start(5, computed=0, scheduled=0),
        LifeEvent.PREEMPT: branch.preempt,
        LifeEvent.FINISH: lambda: branch.end(Finish.STOP),
    }
    acts = [on_branch[event], *([on_request[event]] if event in on_request else [])]
    for act in acts:
        if (life, event) in LEGAL:
            act()
        else:
            with pytest.raises(IllegalTransition):
                act()
    want = LEGAL.get((life, event), life)
    assert branch.life is want
    assert request.life is (want if event in on_request else life)


def test_the_next_step_can_be_planned_before_the_last_one_is_settled() -> None:
    branch = started_branch(prompt=5)
    branch.plan(5, step=1, samples=True)
    assert (branch.computed, branch.scheduled, branch.known, branch.todo) == (0, 5, 6, 1)
    assert branch.decoding
    branch.plan(6, step=2, samples=True)
    assert (branch.computed, branch.scheduled, branch.known) == (0, 6, 7)
    branch.settle(5)
    assert branch.computed == 5


def test_the_last_token_of_a_branch_is_never_computed() -> None:
    branch = started_branch(prompt=5, max_tokens=1)
    branch.plan(5, step=1, samples=True)
    assert branch.known == branch.request.token_limit
    assert branch.todo == 0
    assert not branch.decoding


def test_scheduling_more_tokens_than_are_known_is_refused() -> None:
    branch = started_branch(prompt=5)
    with pytest.raises(AssertionError):
        branch.plan(6, step=1, samples=False)


def test_preemption_keeps_the_tokens_and_the_samples_still_to_come() -> None:
    branch = started_branch(prompt=5)
    branch.plan(5, step=1, samples=True)
    branch.preempt()
    assert (branch.computed, branch.scheduled, branch.known, branch.row) == (0, 0, 6, None)


def test_the_first_live_branch_leads() -> None:
    request = make_request(n=3)
    assert request.leader is request.branches[0]
    request.branches[0].end(Finish.ABORTED)
    assert request.leader is request.branches[1]
    assert request.live == request.branches[1:]
