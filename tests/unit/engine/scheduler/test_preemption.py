from __future__ import annotations

from collections.abc import Sequence

from kvik_engine.params import SamplingParams
from kvik_engine.request import Request
from kvik_engine.scheduler.preemption import (
    PIN_AFTER,
    OutputLengths,
    choose_victim,
    enough_victims,
    head_of,
    remaining_work,
)


def make(
    name: int, *, slo_class: int = 1, arrival: float = 0.0, max_tokens: int = 10, n: int = 1, preemptions: int = 0
) -> Request:
    request = Request((1, name), [1], SamplingParams(max_tokens=max_tokens, seed=0, n=n), slo_class, 0, b"", arrival)
    request.preemptions = preemptions
    return request


def victim(
    running: Sequence[Request],
    needy: Request,
    *,
    scheduled: Sequence[Request] = (),
    p75: int | None = None,
    now: float = 0.0,
) -> Request | None:
    return choose_victim(running, needy=needy, head=head_of(running), scheduled=set(scheduled), p75=p75, now=now)


def test_the_head_is_the_oldest_request_of_the_highest_class() -> None:
    old_batch, new, old = make(1, slo_class=2), make(2, arrival=2.0), make(3, arrival=1.0)
    assert head_of([old_batch, new, old]) is old
    assert head_of([]) is None


def test_the_lowest_class_gives_way_first_however_little_it_has_left() -> None:
    head, batch, big = make(1), make(2, slo_class=2, max_tokens=2), make(3, max_tokens=1000)
    assert victim([head, batch, big], needy=head) is batch


def test_within_a_class_the_largest_remaining_work_gives_way() -> None:
    head, small, big = make(1), make(2, max_tokens=20), make(3, max_tokens=200)
    assert victim([head, small, big], needy=small) is big


def test_the_running_p75_of_answers_caps_the_estimate() -> None:
    request = make(1, max_tokens=1000)
    assert remaining_work(request, None) == 1000
    assert remaining_work(request, 50) == 50
    request.branches[0].tokens.extend([5] * 60)
    assert remaining_work(request, 50) == 1
    assert remaining_work(make(1, max_tokens=30, n=2), 50) == 60


def test_p75_follows_the_last_answers() -> None:
    lengths = OutputLengths()
    assert lengths.p75 is None
    for length in range(1, 101):
        lengths.add(length)
    assert lengths.p75 == 76
    for _ in range(512):
        lengths.add(7)
    assert lengths.p75 == 7


def test_age_protects_a_request_that_waited_long() -> None:
    head, old, new = make(0, arrival=-1.0), make(1, max_tokens=120), make(2, arrival=100.0, max_tokens=60)
    assert victim([head, old, new], needy=head, now=0.0) is old
    assert victim([head, old, new], needy=head, now=100.0) is new


def test_the_head_is_never_a_victim() -> None:
    head, other = make(1, max_tokens=1000), make(2, arrival=1.0, max_tokens=2)
    assert victim([head, other], needy=other) is other
    assert victim([head], needy=head) is None


def test_a_request_scheduled_in_this_step_is_never_a_victim() -> None:
    """vllm #23347 and #49097: the victim already had work in the step that was being planned."""
    head, big, small = make(1), make(2, max_tokens=1000), make(3, max_tokens=2)
    assert victim([head, big, small], needy=small, scheduled=[head, big]) is small
    assert victim([head, big, small], needy=small, scheduled=[head, big, small]) is None


def test_nobody_takes_from_a_better_class() -> None:
    head, interactive, batch = make(1, slo_class=0), make(2, slo_class=0, arrival=1.0), make(3, slo_class=2)
    assert victim([head, interactive, batch], needy=batch) is batch
    assert victim([head, interactive, batch], needy=batch, scheduled=[batch]) is None


def test_a_request_preempted_often_gives_way_to_the_head_alone() -> None:
    """vllm #18115: preempted and readmitted over and over."""
    head, pinned, other = make(1), make(2, max_tokens=1000, preemptions=PIN_AFTER), make(3, arrival=1.0)
    assert victim([head, pinned, other], needy=other) is other
    assert victim([head, pinned], needy=head) is pinned


def test_a_request_admitted_for_its_age_is_not_taken_back_at_once_by_a_better_class() -> None:
    """Else its turn by age is worth nothing, and under constant load of a better class it starves."""
    head, aged, other = make(1, slo_class=0), make(2, slo_class=2, max_tokens=1000), make(3, slo_class=2)
    aged.aged = True
    waiting = make(9, slo_class=0, arrival=1.0)

    def chosen(running: Sequence[Request]) -> list[Request]:
        return enough_victims(running, waiting=waiting, enough=bool, p75=None, now=0.0)

    assert chosen([head, aged, other]) == [other]
    assert chosen([head, aged]) == []
    assert victim([head, aged], needy=waiting) is None
    assert victim([head, aged], needy=head) is aged


def test_a_waiting_request_takes_no_more_victims_than_it_needs_and_none_in_vain() -> None:
    better = make(1, slo_class=0)
    batch = [make(i, slo_class=2, max_tokens=i * 10) for i in range(2, 5)]
    waiting = make(9, slo_class=1)

    def chosen(enough: int, running: Sequence[Request]) -> list[Request]:
        return enough_victims(running, waiting=waiting, enough=lambda v: len(v) >= enough, p75=None, now=0.0)

    assert chosen(2, [better, *batch]) == [batch[2], batch[1]]
    assert chosen(4, [better, *batch]) == []
    assert chosen(1, [better, make(5, slo_class=1)]) == []


def test_the_fewest_victims_are_found_by_asking_a_few_times() -> None:
    """At every step in which a request waits for a lower class, so with n candidates n questions are too many."""
    running = [make(i, slo_class=2, max_tokens=1000 - i) for i in range(100)]
    asked: list[int] = []

    def chosen(needed: int) -> list[Request]:
        def enough(victims: Sequence[Request]) -> bool:
            asked.append(len(victims))
            return len(victims) >= needed

        asked.clear()
        return enough_victims(running, waiting=make(200, slo_class=0), enough=enough, p75=None, now=0.0)

    for needed in range(1, 101):
        assert chosen(needed) == running[:needed]
        assert len(asked) <= 1 + 7
    assert chosen(101) == []
    assert asked == [100]
