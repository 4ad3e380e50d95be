"""The traces on which policies are compared: what clients ask for, and what else happens meanwhile. Pure, seeded.

Rates are in pods' worths, lengths in what a pod does within the objective (`yardstick`).
"""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from bench.scaling.calibration import Calibration
from bench.scaling.pod import PodModel, Request
from bench.scaling.world import Scenario, Span
from bench.scaling.yardstick import TTFT_OBJECTIVE, Lengths, Rate, Yardstick, arrivals, demo_pod, pods_worth

TARGET: Final = 0.75
"""Of full, for ours and for the HPAs; of the class Balanced."""
STEADY: Final = 3.2
"""Pods' worths: more than three pods carry, and less than four."""


def scenarios(measured: Calibration) -> list[Scenario]:
    """All of them, each with its own reason to be here."""
    make = _Maker(demo_pod(measured), Yardstick.of(measured))
    return [*_loads(make), *_bursts(make), *_faults(make), *_pods(make)]


def constant(measured: Calibration, worths: float, replicas: int) -> Scenario:
    """A load that nothing changes, for forty minutes."""
    make = _Maker(demo_pod(measured), Yardstick.of(measured))
    return make.scenario("constant", f"{worths} from the start", make.steady(worths), 2400, replicas=replicas)


@dataclass(frozen=True, slots=True)
class _Maker:
    pod: PodModel
    yardstick: Yardstick

    def chats(self, worths: Rate, most: float, seconds: float) -> Iterator[Request]:
        """`worths`: pods' worths at a time, never above `most`."""
        return self._requests(worths, most, seconds, self.yardstick.chat)

    def documents(self, worths: Rate, most: float, seconds: float) -> Iterator[Request]:
        return self._requests(worths, most, seconds, self.yardstick.document)

    def steady(self, worths: float = STEADY, seconds: float = 2400.0) -> Iterator[Request]:
        return self.chats(lambda _: worths, worths, seconds)

    def scenario(self, name: str, what: str, requests: Iterator[Request], seconds: float, **more: Any) -> Scenario:
        fixed = {"pod": self.pod, "ttft_objective": TTFT_OBJECTIVE, **more}
        return Scenario(name, what, tuple(requests), seconds, **fixed)

    def _requests(self, worths: Rate, most: float, seconds: float, lengths: Lengths) -> Iterator[Request]:
        unit = pods_worth(self.pod, lengths)
        return arrivals(lambda now: unit * worths(now), unit * most, seconds, lengths)


def _loads(make: _Maker) -> list[Scenario]:
    def step(now: float) -> float:
        return 3.5 if 600 <= now < 1500 else 0.4

    def ramp(now: float) -> float:
        return 0.2 + 3.8 * min(1.0, now / 1200)

    def documents(now: float) -> float:
        return 3.0 if now >= 600 else 0.3

    def day(now: float) -> float:
        return 2.0 - 1.8 * math.cos(2 * math.pi * now / 7200)

    return [
        make.scenario("steady", f"{STEADY} pods' worth from the start", make.steady(), 2400, replicas=4),
        make.scenario("step", "0.4, from minute 10 to 25 3.5, then 0.4", make.chats(step, 3.5, 2700), 2700),
        make.scenario("ramp", "from 0.2 to 4 in 20 minutes", make.chats(ramp, 4.0, 2400), 2400),
        make.scenario(
            "long prompts",
            "documents that a pod takes a fifth to half of the objective for: 0.3, from minute 10 on 3",
            make.documents(documents, 3.0, 2100),
            2100,
        ),
        make.scenario("day curve", "0.2 to 3.8 and back, a day in two hours", make.chats(day, 3.8, 7200), 7200),
        make.scenario(
            "zero",
            "2.4 for ten minutes, then nothing: means and rates have no value any more",
            make.steady(2.4, 600),
            2400,
            replicas=3,
        ),
    ]


def _bursts(make: _Maker) -> list[Scenario]:
    def burst(now: float) -> float:
        return 4.8 if 600 <= now < 720 or 1500 <= now < 1560 else 0.8

    def crowd(now: float) -> float:
        return 5.5 if 600 <= now < 1200 else 0.8

    leaving = make.chats(crowd, 5.5, 2100)
    return [
        make.scenario("burst", "0.8, for two minutes 4.8, later for one", make.chats(burst, 4.8, 2400), 2400),
        make.scenario(
            "noisy queue",
            "every 20 s, what a pod serves in 16 comes within one; a fifth of a pod's worth in between",
            _noisy(make, 2400),
            2400,
            replicas=2,
        ),
        make.scenario(
            "disconnecting clients",
            "0.8, for ten minutes 5.5, and clients that leave after twice the objective without a token",
            (_impatient(request) for request in leaving),
            2100,
        ),
    ]


def _faults(make: _Maker) -> list[Scenario]:
    def rising(now: float) -> float:
        return 1.2 if now < 900 else 3.2

    def falling(now: float) -> float:
        return 3.2 if now < 900 else 0.8

    return [
        make.scenario(
            "metrics outage",
            f"{STEADY}; no pod can be read from minute 10 to 20",
            make.steady(),
            2400,
            replicas=4,
            no_metrics=Span(600, 1200),
        ),
        make.scenario(
            "a silent pod on the way up",
            "one of two pods refuses to be read; from 1.2 to 3.2",
            make.chats(rising, 3.2, 2400),
            2400,
            replicas=2,
            silent_pod=Span(300, 2400),
        ),
        make.scenario(
            "a silent pod on the way down",
            "one of four pods refuses to be read; from 3.2 to 0.8",
            make.chats(falling, 3.2, 2700),
            2700,
            replicas=4,
            silent_pod=Span(300, 2700),
        ),
        make.scenario(
            "no rates",
            "from 1.2 to 3.2, and no pod has rates or means to tell, as where they are NaN",
            make.chats(rising, 3.2, 2400),
            2400,
            replicas=2,
            no_rates=Span(0, 2400),
        ),
    ]


def _pods(make: _Maker) -> list[Scenario]:
    def late(now: float) -> float:
        return 0.8 if now < 600 else 3.2

    return [
        make.scenario(
            "slow pod start",
            "from 0.8 to 3.2 in minute 10, and pods that take five minutes to start",
            make.chats(late, 3.2, 2700),
            2700,
            pod=replace(make.pod, startup_seconds=300.0),
        ),
        make.scenario(
            "roll under load",
            "2.4; from minute 10 on all pods are replaced, one by one",
            make.steady(2.4),
            2400,
            replicas=3,
            roll=Span(600, 2400),
        ),
        make.scenario(
            "mixed pod speeds",
            "2.4 on pods of which every second is half as fast",
            make.steady(2.4),
            2400,
            replicas=4,
            slow_pods=2.0,
        ),
    ]


def _noisy(make: _Maker, seconds: float) -> Iterator[Request]:
    chance, unit = random.Random(11), pods_worth(make.pod, make.yardstick.chat)
    for start in range(0, int(seconds), 20):
        together = [start + chance.random() for _ in range(round(16 * unit))]
        for at in sorted(together + [start + 20 * chance.random() for _ in range(round(4 * unit))]):
            prompt, output = make.yardstick.chat(chance)
            yield Request(at, prompt, output)


def _impatient(request: Request) -> Request:
    request.patience = 2 * TTFT_OBJECTIVE
    return request
