"""Who may queue, and who is told at once that it is too late."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvik_engine.config import EngineConfig
from kvik_engine.core.build import gate
from kvik_engine.core.gate import GoodputGate, QueueGate, TokenRate, predicted_ttft, tokens_ahead
from kvik_engine.params import SamplingParams
from kvik_engine.request import Request
from kvik_engine.simulation.device import H100_8B
from kvik_engine.simulation.report import Report, report
from kvik_engine.simulation.simulate import config_of, simulate
from kvik_engine.simulation.workloads import INTERACTIVE, Lengths, Stream, faster, generate
from tests.support.engine_harness import Harness


def full(**waiting: int) -> Harness:
    """One running request, and so many waiting ones: `batch=3`, or by tenant `greedy=3`."""
    harness = Harness(max_requests=1, max_queued_requests=4)
    harness.submit(0, [1, 2, 3], max_tokens=50, stop_token_ids=(), slo_class=0)
    harness.step()
    number = 1
    for name, count in waiting.items():
        for _ in range(count):
            slo_class, tenant = (2, "") if name == "batch" else (1, name)
            harness.submit(number, [1, 2, 3], slo_class=slo_class, tenant=tenant)
            number += 1
    harness.step()
    return harness


def test_a_backlog_of_batch_work_keeps_no_better_class_out() -> None:
    harness = full(batch=6)
    assert sorted(harness.refused) == [5, 6]
    harness.submit(10, [1, 2], slo_class=1)
    harness.submit(11, [1, 2], slo_class=2)
    harness.step()
    assert 10 not in harness.refused
    assert harness.refused[11].code == "queue_full"


def test_a_tenant_finds_its_share_of_the_queue_although_another_has_filled_it() -> None:
    harness = full(greedy=6)
    assert sorted(harness.refused) == [5, 6]
    for number in (10, 11, 12):
        harness.submit(number, [1, 2], tenant="modest")
    harness.submit(13, [1, 2], tenant="greedy")
    harness.step()
    assert sorted(harness.refused) == [5, 6, 12, 13]
    harness.run()


def test_the_rate_counts_steps_that_computed_no_prompt() -> None:
    rate = TokenRate()
    rate.count(0.2, 100)
    assert rate.tokens_per_second is None, "too little is known"
    rate.count(0.2, 0)
    assert rate.tokens_per_second == pytest.approx(250, rel=0.05)
    for _ in range(100):
        rate.count(1.0, 1000)
    assert rate.tokens_per_second == pytest.approx(1000, rel=0.01)


def make(prompt: int, *, slo_class: int = 0, tier: int = 0, arrival: float = 0.0, tenant: str = "") -> Request:
    request = Request((1, 99), [1] * prompt, SamplingParams(max_tokens=1, seed=0), slo_class, 0, b"", arrival, tenant)
    request.tier = tier
    return request


def test_what_is_ahead_of_a_request_follows_the_order_of_the_queue() -> None:
    harness = Harness(max_requests=1, chunked_prefill_tokens=8, max_batch_tokens=8, blocks=400)
    for number, (length, slo_class) in enumerate(((2, 1), (6, 0), (60, 0), (5, 1), (7, 2))):
        harness.submit(number, [1 + number] * length, slo_class=slo_class, max_tokens=9, stop_token_ids=())
        harness.core.step()
    (running,) = harness.scheduler.running
    assert running.prompt_length == 6, "it took the place of the one of a lower class"
    assert tokens_ahead(make(1), harness.scheduler) == 0
    assert tokens_ahead(make(50, tier=2), harness.scheduler) == 60
    assert tokens_ahead(make(1, slo_class=1), harness.scheduler) == 60 + 2 + 5
    assert tokens_ahead(make(1, slo_class=2), harness.scheduler) == 60 + 2 + 5 + 7
    harness.run()


def test_other_tenants_are_ahead_only_with_what_fairness_lets_them_have_first() -> None:
    harness = Harness(max_requests=1, chunked_prefill_tokens=64, max_batch_tokens=64, blocks=400)
    harness.submit(0, [1, 2], max_tokens=50, stop_token_ids=(), tenant="running")
    harness.step()
    for number in range(1, 9):
        harness.submit(number, [number] * 30, tenant="greedy")
    harness.submit(9, [9] * 5, tenant="other")
    harness.step()
    scheduler = harness.scheduler
    assert tokens_ahead(make(10, slo_class=1, tenant="greedy"), scheduler) == 8 * 30 + 5
    assert tokens_ahead(make(10, slo_class=1, tenant="modest"), scheduler) == 10 + 5
    harness.submit(10, [10] * 20, tenant="modest")
    harness.step()
    assert tokens_ahead(make(10, slo_class=1, tenant="modest"), scheduler) == 20 + 30 + 5
    assert tokens_ahead(make(10, slo_class=1, tenant="greedy"), scheduler) == 8 * 30 + 5 + 20
    harness.run()


def test_a_tenant_is_not_too_late_because_of_the_backlog_of_another() -> None:
    lengths = {
        "prompt": Lengths(median=300, sigma=0.3, least=100, most=600),
        "output": Lengths(median=20, sigma=0.5, least=5, most=60),
        "slo_class": "interactive",
        "max_tokens": 64,
    }
    rates = {"greedy": 100.0, "modest": 3.0}
    streams = tuple(Stream(rate=rate, tenant=tenant, **lengths) for tenant, rate in rates.items())  # type: ignore[arg-type]
    outcome = simulate(generate(streams, seconds=10.0, seed=3), H100_8B, interactive("goodput"), max_steps=900)
    come = [r for r in outcome.records if r.request.arrival < outcome.seconds - 1.0]
    refused = {tenant: [r.refused for r in come if r.request.tenant == tenant] for tenant in rates}
    assert refused["greedy"].count("too_late") > 100
    assert len(refused["modest"]) > 15
    assert not any(refused["modest"])


def test_the_prediction_counts_the_time_that_has_passed_and_needs_a_backlog_and_a_rate() -> None:
    harness = Harness(max_requests=1, blocks=400)
    harness.submit(0, [1, 2], max_tokens=30, stop_token_ids=())
    harness.submit(1, [1] * 90)
    harness.step()
    late = make(10, slo_class=1, tier=2, arrival=3.0)
    assert predicted_ttft(late, harness.scheduler, 50.0, now=4.0) == pytest.approx(1.0 + 100 / 50.0)
    assert predicted_ttft(late, harness.scheduler, None, now=4.0) is None
    assert predicted_ttft(make(10), harness.scheduler, 50.0, now=4.0) is None
    harness.run()


def test_an_idle_engine_refuses_nobody_however_slow_it_was() -> None:
    harness = Harness(blocks=400)
    queue = QueueGate(harness.scheduler, 4)
    goodput = GoodputGate(queue, harness.scheduler, ttft=0.001, slo_class=1)
    for _ in range(10):
        queue.drained.count(1.0, 1)
    goodput.begin()
    assert goodput.refusal(make(1000, slo_class=1), now=0.0) is None


def interactive(admission: str) -> EngineConfig:
    return config_of(
        H100_8B,
        slo_class="interactive",
        slo_ttft=0.5,
        admission=admission,
        max_requests=32,
        max_batch_tokens=2048,
        chunked_prefill_tokens=256,
        max_queued_requests=64,
    )


def overloaded(admission: str, rate: float) -> Report:
    trace = generate(faster(INTERACTIVE, rate), seconds=15.0, seed=1)
    return report(simulate(trace, H100_8B, interactive(admission)))


def test_under_overload_goodput_admission_serves_more_requests_in_time() -> None:
    queue, goodput = (overloaded(admission, rate=10.0).groups[0] for admission in ("queue", "goodput"))
    assert queue.ttft is not None
    assert queue.ttft.p50 > 0.5, "an overload"
    assert goodput.ttft is not None
    assert goodput.ttft.p90 < 2 * 0.5
    assert goodput.goodput > 3 * queue.goodput
    assert goodput.finished > 0.8 * queue.finished


def test_without_overload_goodput_admission_refuses_nobody() -> None:
    assert overloaded("goodput", rate=2.0).groups[0].refused == 0


def test_goodput_without_a_target_is_no_gate() -> None:
    """cli.option_rules refuses it; here it could only be a mistake of ours."""
    scheduler = Harness().scheduler
    for admission in ("goodput", "hope"):
        with pytest.raises(AssertionError, match="goodput"):
            gate(replace(interactive(admission), slo_ttft=None), scheduler)


def test_what_the_prefix_cache_has_is_no_work_ahead() -> None:
    """Nine requests with a system prompt of 1,000 tokens made a backlog of thousands, and a prediction of seconds."""
    system = [1 + i % 60 for i in range(1000)]
    harness = Harness(blocks=2000, chunked_prefill_tokens=64, max_batch_tokens=64, max_requests=4)
    harness.submit(0, system, max_tokens=1)
    harness.run()
    for number in range(1, 9):
        harness.submit(number, [*system, number, number, number], max_tokens=50, min_tokens=50)
    for _ in range(2):
        harness.step()
    assert len(harness.scheduler.waiting) == 4
    assert harness.scheduler.prompt_tokens_left == 4 * 3

    request = Request((1, 20), [*system, 20, 20], SamplingParams(max_tokens=1, seed=0), 1, 0, b"", harness.now)
    harness.scheduler.place(request)
    assert tokens_ahead(request, harness.scheduler) == 4 * 3
    assert predicted_ttft(request, harness.scheduler, 100.0, harness.now) == pytest.approx((4 * 3 + 2) / 100.0)
