"""What the scheduler's policies do to latencies and shares, on a model of a GPU with an 8B model."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from kvik_engine.core.loop import EngineCore
from kvik_engine.request import Request
from kvik_engine.scheduler.policy import AGING_SECONDS, SLO_CLASSES
from kvik_engine.simulation.clients import Record
from kvik_engine.simulation.device import H100_8B
from kvik_engine.simulation.report import Spread
from kvik_engine.simulation.simulate import Outcome, config_of, simulate
from kvik_engine.simulation.trace import TraceRequest
from kvik_engine.simulation.workloads import INTERACTIVE, WORKLOADS, Lengths, Stream, generate

SETTINGS = {
    "slo_class": "interactive",
    "max_requests": 32,
    "max_batch_tokens": 2048,
    "chunked_prefill_tokens": 256,
    "max_queued_requests": 100_000,
}


def run(
    trace: Sequence[TraceRequest],
    *,
    max_steps: int | None = None,
    observe: Callable[[EngineCore], None] | None = None,
    **settings: object,
) -> Outcome:
    config = config_of(H100_8B, **{**SETTINGS, **settings})
    return simulate(trace, H100_8B, config, max_steps=max_steps, observe=observe)


def ttft(records: Sequence[Record]) -> Spread:
    spread = Spread.of(record.ttft for record in records)
    assert spread is not None
    return spread


def test_interactive_first_tokens_come_nearly_as_soon_under_a_batch_overload_as_alone() -> None:
    seconds = 30.0
    alone = run(generate(INTERACTIVE, seconds=seconds, seed=1))
    loaded = run(generate(WORKLOADS["batch-overload"], seconds=seconds, seed=1), max_steps=2400)
    assert loaded.seconds >= seconds, "the overload lasts as long as the interactive requests come"
    interactive = [record for record in loaded.records if record.request.slo_class == "interactive"]
    batch = [record for record in loaded.records if record.request.slo_class == "batch"]
    assert sum(not record.finished for record in batch) > 50, "an overload"
    assert sum(record.tokens for record in batch) > sum(record.tokens for record in interactive), "batch is not stopped"
    assert ttft(interactive).p99 <= 1.5 * ttft(alone.records).p99


def test_short_prompts_are_hardly_held_up_by_long_ones() -> None:
    """In order of arrival the P90 of the short ones was 0.38 s here, and that of the long ones 0.70 s."""
    outcome = run(generate(WORKLOADS["short-and-long"], seconds=30.0, seed=2))
    short = ttft([record for record in outcome.records if record.request.prompt_tokens < 1000])
    long = ttft([record for record in outcome.records if record.request.prompt_tokens > 1000])
    largest_step = 2048 * H100_8B.cost.prefill_token
    assert short.p90 < largest_step
    assert short.p99 < 2 * largest_step
    assert long.p90 < 0.75


def test_a_modest_tenant_keeps_its_fair_share_beside_a_greedy_one() -> None:
    """Both ask for more than half of the device; the greedy one for ten times as much."""
    length = {
        "prompt": Lengths(median=200, sigma=0.5, least=20, most=800),
        "output": Lengths(median=100, sigma=0.5, least=10, most=400),
    }
    streams = (
        Stream(rate=200.0, tenant="greedy", max_tokens=512, **length),  # type: ignore[arg-type]
        Stream(rate=20.0, tenant="modest", max_tokens=512, **length),  # type: ignore[arg-type]
    )
    outcome = run(generate(streams, seconds=20.0, seed=3), max_steps=1800)
    assert outcome.seconds < 20.0, "both still ask for more"
    tokens = dict.fromkeys(("greedy", "modest"), 0)
    for record in outcome.records:
        if record.first is not None:
            computed = record.request.prompt_tokens - record.cached_tokens
            tokens[record.request.tenant] += computed + 2 * record.tokens
    assert tokens["modest"] >= 0.8 * sum(tokens.values()) / 2


def test_one_request_of_a_modest_tenant_waits_for_no_older_backlog_of_a_greedy_one_even_once_it_runs() -> None:
    """Its prompt takes six chunks. Ranked by arrival once admitted, it waited 7.8 s, as if it came last of all."""
    length = {
        "prompt": Lengths(median=1500, sigma=0.3, least=500, most=3000),
        "output": Lengths(median=20, sigma=0.5, least=5, most=60),
    }
    greedy = generate((Stream(rate=40.0, tenant="greedy", max_tokens=64, **length),), seconds=12.0, seed=3)  # type: ignore[arg-type]
    modest = TraceRequest(arrival=3.0, prompt_tokens=1500, output_tokens=20, max_tokens=64, tenant="modest")
    outcome = run(sorted([*greedy, modest], key=lambda request: request.arrival), max_steps=700)
    (record,) = (record for record in outcome.records if record.request.tenant == "modest")
    backlog = [r for r in outcome.records if r.request.arrival < 3.0 and (r.ttft is None or r.ttft > 3.0)]
    assert len(backlog) > 30
    assert record.ttft is not None
    assert record.ttft < 1.0


def everything(seconds: float, seed: int) -> list[TraceRequest]:
    """More than the device can do of every class, with priorities and tenants."""
    kinds = [(slo_class, tenant) for slo_class in ("interactive", "balanced", "batch") for tenant in ("a", "b")]
    lengths = Lengths(median=150, sigma=1.2, least=5, most=4000)
    streams = tuple(
        Stream(rate=4.0, prompt=lengths, output=lengths, max_tokens=4000, slo_class=slo_class, tenant=tenant)
        for slo_class, tenant in kinds
    )
    trace = generate(streams, seconds=seconds, seed=seed)
    return [
        TraceRequest(**{**{f: getattr(r, f) for f in r.__struct_fields__}, "priority": (i * 37) % 201 - 100})
        for i, r in enumerate(trace)
    ]


class Watch:
    """How long a request was the oldest waiting one of its class, at most."""

    def __init__(self) -> None:
        self.longest = 0.0
        self._oldest: dict[int, tuple[Request, float]] = {}

    def __call__(self, core: EngineCore) -> None:
        now = core.now
        for slo_class in SLO_CLASSES:
            oldest = core.scheduler.waiting.of_class(slo_class).oldest()
            known, since = self._oldest.get(slo_class, (None, now))
            if oldest is None:
                self._oldest.pop(slo_class, None)
            elif oldest is known:
                self.longest = max(self.longest, now - since)
            else:
                self._oldest[slo_class] = (oldest, now)


@pytest.mark.parametrize(
    ("steps", "seed"), [(4_000, 1), pytest.param(100_000, 2, marks=[pytest.mark.long, pytest.mark.timeout(1200)])]
)
def test_no_request_starves_under_an_overload_of_every_class(steps: int, seed: int) -> None:
    """The oldest of each class gets its turn by age, be its class, priority, tenant and length as bad as they may."""
    watch = Watch()
    trace = everything(steps / 60, seed)
    outcome = run(trace, max_steps=steps, max_requests=16, kv_cache_size=4 << 30, observe=watch)
    assert outcome.steps == steps
    assert outcome.counters.preemptions > 0
    assert watch.longest < 1.5 * AGING_SECONDS
