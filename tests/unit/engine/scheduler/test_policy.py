from __future__ import annotations

from kvik_engine.params import SamplingParams
from kvik_engine.request import Request
from kvik_engine.scheduler.fairness import ServiceCounters
from kvik_engine.scheduler.policy import AGING_SECONDS, BLOCKING_SECONDS, Candidate, WaitingQueue, rank
from kvik_engine.scheduler.preemption import PIN_AFTER


def make(name: int, *, slo_class: int = 1, priority: int = 0, arrival: float = 0.0, preemptions: int = 0) -> Request:
    params = SamplingParams(max_tokens=1, seed=0)
    request = Request((1, name), [1, 2, 3], params, slo_class, priority, b"", arrival)
    request.preemptions = preemptions
    return request


def queue_of(*requests: Request) -> WaitingQueue:
    queue = WaitingQueue(PIN_AFTER, ServiceCounters())
    for request in requests:
        queue.add(request)
    return queue


def first(queue: WaitingQueue, now: float) -> Candidate:
    return next(queue.candidates(now))


def drained(queue: WaitingQueue, now: float) -> list[int]:
    """Names in the order in which the queue would let them start."""
    names = []
    while len(queue):
        request = first(queue, now).request
        queue.remove(request)
        names.append(request.key[1])
    return names


def test_class_comes_before_priority_and_priority_before_arrival() -> None:
    queue = queue_of(
        make(1, slo_class=2, priority=-100),
        make(2, slo_class=1, priority=5),
        make(3, slo_class=1, priority=5, arrival=1.0),
        make(4, slo_class=0, priority=100, arrival=2.0),
        make(5, slo_class=1, priority=-1, arrival=3.0),
    )
    assert drained(queue, now=3.0) == [4, 5, 2, 3, 1]


def test_only_the_best_waiting_request_is_tried_so_that_none_slips_past_it() -> None:
    queue = queue_of(make(1), make(2, arrival=1.0), make(3, slo_class=2))
    assert [(c.request.key[1], c.blocks_from) for c in queue.candidates(1.0)] == [(1, 0)]


def test_a_request_that_waited_long_is_tried_first_and_lets_others_pass() -> None:
    old, new = make(1, slo_class=2), make(2, slo_class=0, arrival=AGING_SECONDS)
    queue = queue_of(old, new)
    assert first(queue, AGING_SECONDS - 0.1).request is new
    candidates = list(queue.candidates(AGING_SECONDS))
    assert [c.request for c in candidates] == [old, new]
    assert [c.blocks_from for c in candidates] == [None, 0]


def test_age_gives_a_turn_once_in_a_while_so_that_a_backlog_does_not_push_out_a_better_class() -> None:
    backlog = [make(i, slo_class=2) for i in range(3)]
    queue = queue_of(*backlog, make(9, slo_class=0, arrival=19.0))
    candidate = first(queue, 20.0)
    assert candidate.aged
    queue.remove(candidate.request)
    queue.took_aged_turn(2, 20.0)
    assert first(queue, 20.0).request.key == (1, 9)
    assert first(queue, 20.0 + AGING_SECONDS).aged


def test_a_request_whose_turn_was_due_long_lets_first_its_own_class_and_then_nobody_pass() -> None:
    queue = queue_of(make(1, slo_class=1))

    def blocks_from(due_for: float) -> int | None:
        return first(queue, AGING_SECONDS + due_for).blocks_from

    assert blocks_from(BLOCKING_SECONDS - 1) is None
    assert blocks_from(BLOCKING_SECONDS) == 1
    assert blocks_from(10 * BLOCKING_SECONDS) == 0


def test_an_old_backlog_that_moves_holds_nobody_up() -> None:
    """The turn is due since the last one, not since the oldest request came."""
    queue = queue_of(make(1, slo_class=2))
    queue.took_aged_turn(2, 5000.0)
    assert first(queue, 5000.0 + AGING_SECONDS) == Candidate(first(queue, 5010.0).request, None, True, True)


def test_the_low_priority_of_a_class_gets_its_turn_too() -> None:
    queue = queue_of(make(1, priority=100), make(2, priority=-100, arrival=AGING_SECONDS))
    assert first(queue, AGING_SECONDS).request.key == (1, 1)


def test_a_preempted_request_keeps_its_place() -> None:
    """vllm #41951: a preempted request lost its place."""
    queue = queue_of(make(2, arrival=2.0), make(3, arrival=3.0))
    queue.add(make(1, arrival=1.0, preemptions=1))
    assert drained(queue, now=3.0) == [1, 2, 3]


def test_the_turn_by_age_goes_to_the_oldest_also_after_preemption() -> None:
    queue = queue_of(make(1, arrival=0.0), make(3, arrival=3.0))
    queue.add(make(2, arrival=2.0, preemptions=1))
    queue.remove(first(queue, 0.0).request)
    aged = first(queue, 3.0 + AGING_SECONDS)
    assert (aged.request.key[1], aged.aged) == (2, True)


def test_a_request_preempted_often_goes_first_of_all() -> None:
    queue = queue_of(make(1, slo_class=0))
    queue.add(make(2, slo_class=2, arrival=9.0, preemptions=PIN_AFTER))
    candidates = list(queue.candidates(9.0))
    assert [(c.request.key[1], c.blocks_from, c.urgent) for c in candidates] == [(2, 0, True)]


def test_room_that_was_made_for_a_request_is_taken_by_nobody_else() -> None:
    pinned, promised = make(1, slo_class=2, preemptions=PIN_AFTER), make(2, slo_class=0)
    queue = queue_of(pinned, promised)
    queue.promise(promised)
    assert [candidate.request for candidate in queue.candidates(0.0)] == [promised]
    queue.remove(promised)
    assert first(queue, 0.0).request is pinned


def test_the_queue_knows_how_many_prompt_tokens_wait() -> None:
    requests = [make(i) for i in range(3)]
    queue = queue_of(*requests)
    queue.remove(requests[1])
    queue.remove(requests[1])
    assert (len(queue), queue.prompt_tokens) == (2, 6)


def test_aborted_requests_behind_a_stuck_one_do_not_pile_up() -> None:
    queue = queue_of(make(0))
    for i in range(1, 5000):
        request = make(i, arrival=float(i))
        queue.add(request)
        queue.remove(request)
    own = queue.of_class(1)
    assert sum(len(heap) for heap in own._heaps.values()) < 200
    assert len(own._arrivals) < 200


def test_a_request_that_comes_back_after_its_old_entry_was_left_is_found_once() -> None:
    early, late = make(1), make(2, arrival=1.0)
    queue = queue_of(early, late)
    queue.remove(late)
    queue.add(late)
    assert drained(queue, now=1.0) == [1, 2]


def test_running_requests_are_ranked_without_ties() -> None:
    requests = [make(2), make(1), make(3, slo_class=0), make(4, priority=-1)]
    assert [request.key[1] for request in sorted(requests, key=rank)] == [3, 4, 1, 2]
