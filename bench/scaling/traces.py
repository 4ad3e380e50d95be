"""The traces on which policies are compared: what clients ask for, and what else happens meanwhile. Pure, seeded."""

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import replace

from bench.scaling.pod import PodModel, Request
from bench.scaling.world import Scenario, Span

DEMO_POD = PodModel(
    prefill_tokens_per_second=1400.0,
    step_seconds=0.020,
    row_seconds=0.003,
    chunk_tokens=128,
    kv_tokens=11_000,
    max_requests=32,
    max_queued=256,
    startup_seconds=30.0,
)
"""Decodes like the embedded model in one thread, by `bench.scaling.calibrate`, and computes prompts three times as
fast: at 450 tokens a second, one of 900 would miss the objective whoever scales. A start with its node's part.
"""
TTFT_OBJECTIVE = 2.0
"""Seconds: that of the class Balanced."""
LONGEST_PROMPT = 4000

Rate = Callable[[float], float]
"""Requests a second, at a time in seconds."""
Lengths = Callable[[random.Random], tuple[int, int]]
"""(prompt tokens, output tokens) of the next request."""


def chat(chance: random.Random) -> tuple[int, int]:
    """Median 150 prompt tokens, mean 60 output tokens, both with a long tail."""
    prompt = min(LONGEST_PROMPT, max(8, round(chance.lognormvariate(math.log(150), 0.8))))
    return prompt, min(400, max(2, round(chance.expovariate(1 / 60))))


def long_prompts(chance: random.Random) -> tuple[int, int]:
    """Documents of 600 to 1,600 tokens with short answers: the queue grows while the cache is a third full."""
    return chance.randint(600, 1600), chance.randint(4, 16)


def arrivals(rate: Rate, most: float, seconds: float, lengths: Lengths = chat, seed: int = 7) -> Iterator[Request]:
    """A Poisson process with a rate that changes, never above `most` (thinning; Lewis and Shedler, 1979)."""
    chance, now = random.Random(seed), 0.0
    while (now := now + chance.expovariate(most)) < seconds:
        if chance.random() * most <= rate(now):
            prompt, output = lengths(chance)
            yield Request(now, prompt, output)


def scenario(name: str, what: str, requests: Iterator[Request], seconds: float, **more: object) -> Scenario:
    fixed = {"pod": DEMO_POD, "ttft_objective": TTFT_OBJECTIVE, **more}
    return Scenario(name, what, tuple(requests), seconds, **fixed)  # type: ignore[arg-type]


def steady(rate: float, minutes: float = 40) -> Iterator[Request]:
    return arrivals(lambda _: rate, rate, 60 * minutes)


def scenarios() -> list[Scenario]:
    """All of them, each with its own reason to be here."""
    return [*_loads(), *_faults()]


def _loads() -> list[Scenario]:
    def ramp(now: float) -> float:
        return 0.5 + 9.5 * min(1.0, now / 1200)

    def burst(now: float) -> float:
        return 12.0 if 600 <= now < 720 or 1500 <= now < 1560 else 2.0

    def day(now: float) -> float:
        return 5.0 - 4.5 * math.cos(2 * math.pi * now / 7200)

    def documents(now: float) -> float:
        return 0.3 if now < 600 else 3.0

    return [
        scenario("steady", "8 requests a second, from the start", steady(8.0), 2400, replicas=3),
        scenario(
            "step",
            "1 request a second, 9 from minute 10 to 25, then 1",
            arrivals(lambda now: 9.0 if 600 <= now < 1500 else 1.0, 9.0, 2700),
            2700,
        ),
        scenario("ramp", "from 0.5 to 10 requests a second in 20 minutes", arrivals(ramp, 10.0, 2400), 2400),
        scenario("burst", "2 requests a second, 12 for two minutes, then for one", arrivals(burst, 12.0, 2400), 2400),
        scenario(
            "long prompts",
            "prompts of 600 to 1,600 tokens, 0.3 a second, 3 from minute 10 on",
            arrivals(documents, 3.0, 2100, long_prompts),
            2100,
            replicas=1,
        ),
        scenario(
            "day curve", "0.5 to 9.5 requests a second and back, a day in two hours", arrivals(day, 9.5, 7200), 7200
        ),
        scenario(
            "zero",
            "6 requests a second for ten minutes, then nothing: means and rates have no value any more",
            arrivals(lambda now: 6.0 if now < 600 else 0.0, 6.0, 600),
            2400,
            replicas=3,
        ),
        scenario(
            "noisy queue", "every 20 s, 40 requests within a second; few in between", _noisy(2400), 2400, replicas=2
        ),
        scenario(
            "disconnecting clients",
            "a step from 2 to 14 requests a second whose clients leave after 4 s without a token",
            _impatient(2100),
            2100,
        ),
    ]


def _faults() -> list[Scenario]:
    def rising(now: float) -> float:
        return 3.0 if now < 900 else 8.0

    def falling(now: float) -> float:
        return 8.0 if now < 900 else 2.0

    return [
        scenario(
            "metrics outage",
            "8 requests a second; no pod can be read from minute 10 to 20",
            steady(8.0),
            2400,
            replicas=4,
            no_metrics=Span(600, 1200),
        ),
        scenario(
            "a silent pod on the way up",
            "one of two pods cannot be read; from 3 to 8 requests a second",
            arrivals(rising, 8.0, 2400),
            2400,
            replicas=2,
            silent_pod=Span(300, 2400),
        ),
        scenario(
            "a silent pod on the way down",
            "one of four pods cannot be read; from 8 to 2 requests a second",
            arrivals(falling, 8.0, 2700),
            2700,
            replicas=4,
            silent_pod=Span(300, 2700),
        ),
        scenario(
            "slow pod start",
            "a step from 2 to 8 requests a second, and pods that take five minutes to start",
            arrivals(lambda now: 2.0 if now < 600 else 8.0, 8.0, 2700),
            2700,
            pod=replace(DEMO_POD, startup_seconds=300.0),
        ),
        scenario(
            "roll under load",
            "6 requests a second; from minute 10 on all pods are replaced, one by one",
            steady(6.0),
            2400,
            replicas=3,
            roll=Span(600, 2400),
        ),
        scenario(
            "mixed pod speeds",
            "6 requests a second on pods of which every second is half as fast",
            steady(6.0),
            2400,
            replicas=4,
            slow_pods=2.0,
        ),
    ]


def _noisy(seconds: float) -> Iterator[Request]:
    chance = random.Random(11)
    for start in range(0, int(seconds), 20):
        times = sorted([start + chance.random() for _ in range(40)] + [start + 20 * chance.random() for _ in range(10)])
        for at in times:
            prompt, output = chat(chance)
            yield Request(at, prompt, output)


def _impatient(seconds: float) -> Iterator[Request]:
    for request in arrivals(lambda now: 14.0 if 600 <= now < 1200 else 2.0, 14.0, seconds):
        request.patience = 4.0
        yield request
