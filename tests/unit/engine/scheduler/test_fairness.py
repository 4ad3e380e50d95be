from __future__ import annotations

from kvik_engine.params import SamplingParams
from kvik_engine.request import Request
from kvik_engine.scheduler.fairness import OUTPUT_WEIGHT, ServiceCounters
from kvik_engine.scheduler.policy import WaitingQueue
from kvik_engine.scheduler.preemption import PIN_AFTER


def make(name: int, tenant: str, *, slo_class: int = 1, priority: int = 0, arrival: float = 0.0) -> Request:
    params = SamplingParams(max_tokens=1, seed=0)
    return Request((1, name), [1, 2, 3], params, slo_class, priority, b"", arrival, tenant)


def start_next(queue: WaitingQueue, served: ServiceCounters, tokens: int = 100) -> int:
    """Admit the next request and charge its tenant; its name."""
    request = next(queue.candidates(0.0)).request
    queue.remove(request)
    served.charge(request.slo_class, request.tenant, prompt_tokens=tokens)
    return request.key[1]


def test_tenants_take_turns_however_many_requests_one_of_them_has() -> None:
    queue = WaitingQueue(PIN_AFTER, served := ServiceCounters())
    for name in range(6):
        queue.add(make(name, "greedy", arrival=-1.0))
    for name in (10, 11):
        queue.add(make(name, "modest"))
    assert [start_next(queue, served) for _ in range(8)] == [0, 10, 1, 11, 2, 3, 4, 5]


def test_service_is_counted_in_tokens_not_in_requests() -> None:
    queue = WaitingQueue(PIN_AFTER, served := ServiceCounters())
    for name in range(4):
        queue.add(make(name, "long"))
        queue.add(make(10 + name, "short"))
    order = [start_next(queue, served, tokens=300 if queue_head < 10 else 100) for queue_head in (0, 10, 10, 10, 0, 10)]
    assert order == [0, 10, 11, 12, 1, 13]


def test_a_priority_orders_the_requests_of_its_own_tenant_only() -> None:
    """Else a tenant that calls everything urgent would get everything."""
    queue = WaitingQueue(PIN_AFTER, served := ServiceCounters())
    for name in range(3):
        queue.add(make(name, "pushy", priority=-100 + name))
    queue.add(make(9, "polite", priority=100))
    assert [start_next(queue, served) for _ in range(4)] == [0, 9, 1, 2]


def test_a_tenant_that_comes_back_has_saved_up_nothing() -> None:
    queue = WaitingQueue(PIN_AFTER, served := ServiceCounters())
    for name in range(20):
        queue.add(make(name, "busy"))
    for _ in range(10):
        start_next(queue, served)
    for name in range(30, 36):
        queue.add(make(name, "idle"))
    order = [start_next(queue, served) for _ in range(6)]
    assert sum(name >= 30 for name in order) == 3


def test_a_tenant_that_finds_an_empty_queue_is_lifted_to_the_one_that_left_last() -> None:
    queue = WaitingQueue(PIN_AFTER, served := ServiceCounters())
    queue.add(make(1, "a"))
    start_next(queue, served)
    queue.add(make(2, "b"))
    assert served.served(1, "b") == served.served(1, "a") == 100


def test_a_class_counts_for_itself() -> None:
    queue = WaitingQueue(PIN_AFTER, served := ServiceCounters())
    served.charge(2, "a", prompt_tokens=10_000)
    queue.add(make(1, "a", slo_class=0))
    queue.add(make(2, "b", slo_class=0, arrival=1.0))
    assert start_next(queue, served) == 1


def test_an_output_token_counts_more_than_a_prompt_token() -> None:
    served = ServiceCounters()
    served.charge(1, "a", prompt_tokens=10, output_tokens=5)
    assert served.served(1, "a") == 10 + 5 * OUTPUT_WEIGHT
