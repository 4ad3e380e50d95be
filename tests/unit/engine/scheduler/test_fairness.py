from __future__ import annotations

from kvik_engine.params import SamplingParams
from kvik_engine.request import Request
from kvik_engine.scheduler.fairness import OUTPUT_WEIGHT, ServiceCounters
from kvik_engine.scheduler.policy import WaitingQueue
from kvik_engine.scheduler.preemption import PIN_AFTER
from tests.support.engine_harness import Harness


def make(name: int, tenant: str, *, slo_class: int = 1, priority: int = 0, arrival: float = 0.0) -> Request:
    params = SamplingParams(max_tokens=1, seed=0)
    return Request((1, name), [1, 2, 3], params, slo_class, priority, b"", arrival, tenant)


def start_next(queue: WaitingQueue, served: ServiceCounters, tokens: int = 100) -> int:
    """Admit the next request and charge its tenant; its name."""
    request = next(queue.candidates(0.0)).request
    queue.remove(request)
    served.charge_prompt(request.slo_class, request.tenant, tokens)
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
    served.charge_prompt(2, "a", 10_000)
    queue.add(make(1, "a", slo_class=0))
    queue.add(make(2, "b", slo_class=0, arrival=1.0))
    assert start_next(queue, served) == 1


def test_an_output_token_counts_more_than_a_prompt_token() -> None:
    served = ServiceCounters()
    served.charge_prompt(1, "a", 1)
    served.charge_output(1, "b")
    assert served.served(1, "a") < served.served(1, "b")


def prompt_tokens_of(harness: Harness, tenant: str) -> int:
    """Prompt tokens scheduled by now for the running requests of a tenant."""
    running = [request for request in harness.scheduler.running if request.tenant == tenant]
    return sum(branch.scheduled for request in running for branch in request.live)


def test_running_prompts_of_two_tenants_get_equal_shares_whichever_came_first_or_calls_itself_urgent() -> None:
    harness = Harness(blocks=900, chunked_prefill_tokens=16, max_batch_tokens=64, prefix_cache=False)
    harness.submit(0, [9], max_tokens=400, stop_token_ids=(), tenant="head")
    harness.step()
    for request_id in range(1, 4):
        harness.submit(request_id, [request_id] * 160, max_tokens=2, priority=-100, tenant="greedy")
    harness.step()
    harness.submit(9, [8] * 160, max_tokens=2, priority=100, tenant="modest")
    before = prompt_tokens_of(harness, "greedy")
    for _ in range(8):
        harness.step()
    assert prompt_tokens_of(harness, "modest") == prompt_tokens_of(harness, "greedy") - before == 64
    harness.run()
    for request_id in (1, 2, 3, 9):
        harness.assert_solo(request_id)


def test_short_prompts_of_one_tenant_are_not_held_up_by_a_long_running_one_of_another() -> None:
    """A tenant is charged for a prompt as it is computed: else all others would first get as much as all of it."""
    harness = Harness(blocks=900, chunked_prefill_tokens=16, max_batch_tokens=64, prefix_cache=False)
    harness.submit(0, [9], max_tokens=400, stop_token_ids=(), tenant="head")
    harness.step()
    harness.submit(1, [1] * 640, max_tokens=2, tenant="long")
    harness.step()
    for request_id in range(2, 12):
        harness.submit(request_id, [request_id] * 4, max_tokens=2, tenant="short")
        harness.step()
        harness.step()
        assert (request_id, 0) in harness.heard
    assert (1, 0) not in harness.heard
    harness.run()


def test_a_tenant_pays_for_each_prompt_token_that_is_computed_once_and_for_no_cached_one() -> None:
    """Neither for what is computed again after preemption."""
    harness = Harness(blocks=24, chunked_prefill_tokens=8, max_batch_tokens=32, max_requests=4)
    prompts = {1: [1, 2, 3] * 5, 2: [4, 5, 6, 7] * 4, 3: [8, 9] * 8}
    for request_id, prompt in prompts.items():
        harness.submit(request_id, prompt, max_tokens=20, stop_token_ids=(), tenant="a")
    harness.run()
    assert harness.scheduler.counters.preemptions > 0
    served = harness.scheduler._served.served(1, "a")
    assert served == sum(map(len, prompts.values())) + 3 * 20 * OUTPUT_WEIGHT
    harness.submit(9, [*prompts[1], 1, 1], max_tokens=1, stop_token_ids=(), tenant="a")
    harness.run()
    hit = harness.scheduler.counters.prefix_hit_tokens
    assert hit > 0
    assert harness.scheduler._served.served(1, "a") == served + 17 - hit + OUTPUT_WEIGHT
