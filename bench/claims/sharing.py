"""Claims 8 and 9: who is served when there is more to do than can be done."""

from collections.abc import Sequence

from bench.claims.claim import CPU_CLOCK, Claim, Measured
from bench.claims.engine import Arrival, Engine, Served, demo_config, demo_runner
from bench.claims.workload import prompt
from kvik_engine.bench.figures import percentile

ROWS, INTERACTIVE, BATCH = 8, 12, 24
INTERACTIVE_PROMPT, INTERACTIVE_OUTPUT, BATCH_PROMPT, BATCH_OUTPUT = 64, 8, 256, 48
_EVERY = 0.7
"""Seconds between interactive requests."""


def slo_classes() -> Measured:
    baseline, ours = _interactive_ttft(1, 1), _interactive_ttft(0, 2)
    alone = _interactive_ttft(0, None)
    ok = ours < baseline
    return Measured(
        baseline=baseline,
        ours=ours,
        ratio=baseline / ours,
        ok=ok,
        reason=None if ok else "interactive requests wait as long without classes",
        figures={"P99 TTFT without any batch request": alone, "ours of that": ours / alone},
    )


def _interactive_ttft(interactive: int, batch: int | None) -> float:
    """P99, with requests of these classes; None leaves the batch requests out."""
    arrivals = [
        Arrival(
            prompt=prompt(INTERACTIVE_PROMPT, seed=n),
            output_tokens=INTERACTIVE_OUTPUT,
            at=0.5 + n * _EVERY,
            slo_class=interactive,
        )
        for n in range(INTERACTIVE)
    ]
    asked = len(arrivals)
    if batch is not None:
        arrivals += [
            Arrival(prompt=prompt(BATCH_PROMPT, seed=900 + n), output_tokens=BATCH_OUTPUT, slo_class=batch)
            for n in range(BATCH)
        ]
    engine = Engine(demo_runner(), demo_config(blocks=1000, max_requests=ROWS))
    served = engine.serve(arrivals, until=lambda all_: _answered(all_, INTERACTIVE_PROMPT) == asked)
    return percentile(sorted(one.ttft for one in served if len(one.arrival.prompt) == INTERACTIVE_PROMPT), 0.99)


def _answered(served: Sequence[Served], prompt_tokens: int) -> int:
    return sum(bool(one.token_times) and len(one.arrival.prompt) == prompt_tokens for one in served)


GREEDY, MODEST, TENANT_PROMPT = 60, 20, 64
TENANT_OUTPUTS = (16, 32, 24, 40, 8, 48)


def tenants() -> Measured:
    """While both have requests waiting, the fair share of each is half of the tokens."""
    without, ours = _modest_share(("", "")), _modest_share(("greedy", "modest"))
    kept = ours / 0.5
    return Measured(
        baseline=without / 0.5,
        ours=kept,
        ratio=kept / (without / 0.5),
        ok=kept >= 0.8,
        reason=None if kept >= 0.8 else f"only {kept:.0%} of its fair share",
    )


def _modest_share(names: tuple[str, str]) -> float:
    """Of the output tokens between the modest tenant's arrival and the start of its last request, how many it got."""
    greedy, modest = (
        [
            Arrival(prompt=prompt(TENANT_PROMPT, seed=seed + n), output_tokens=_output(n), at=at, tenant=name)
            for n in range(count)
        ]
        for name, count, seed, at in ((names[0], GREEDY, 0, 0.0), (names[1], MODEST, 700, 0.1))
    )
    own_prompts = {tuple(one.prompt) for one in modest}

    def own(one: Served) -> bool:
        return tuple(one.arrival.prompt) in own_prompts

    engine = Engine(demo_runner(), demo_config(blocks=1000, max_requests=ROWS))
    served = engine.serve(
        [*greedy, *modest], until=lambda all_: sum(own(one) and bool(one.token_times) for one in all_) == MODEST
    )
    begin = min(one.arrival.at for one in served if own(one))
    counted = {True: 0, False: 0}
    for one in served:
        counted[own(one)] += sum(moment >= begin for moment in one.token_times)
    return counted[True] / (counted[True] + counted[False])


def _output(number: int) -> int:
    return TENANT_OUTPUTS[number % len(TENANT_OUTPUTS)]


CLAIMS = (
    Claim(
        id="8",
        what="Interactive requests begin soon although batch work is waiting",
        baseline="the same requests without classes",
        unit="seconds, P99 time to first token of interactive requests",
        wanted="lower",
        concurrency=f"{BATCH} batch at once, then {INTERACTIVE} interactive, one each {_EVERY} s; {ROWS} rows",
        prompt_tokens=f"{INTERACTIVE_PROMPT} interactive, {BATCH_PROMPT} batch",
        output_tokens=f"{INTERACTIVE_OUTPUT} interactive, {BATCH_OUTPUT} batch",
        clock=CPU_CLOCK,
        measure=slo_classes,
    ),
    Claim(
        id="9",
        what="A greedy tenant leaves a modest one its share",
        baseline="the same requests without tenants, in the order of arrival",
        unit="of its fair share (half of the output tokens while both have requests waiting)",
        wanted="0.8 or more",
        concurrency=f"{GREEDY} of the greedy tenant at once, {MODEST} of the modest one 0.1 s later; {ROWS} rows",
        prompt_tokens=f"{TENANT_PROMPT}",
        output_tokens=", ".join(map(str, TENANT_OUTPUTS)) + " in turn",
        clock=CPU_CLOCK,
        measure=tenants,
    ),
)
