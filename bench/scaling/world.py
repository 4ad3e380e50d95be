"""A pool in a closed loop: clients, simulated pods behind a Service, a policy that is asked every five seconds. Pure.

A Service of Kubernetes gives each new connection to any ready pod at random, so that is what happens here. A pod that
is taken away ends its streams first; a pod that is added takes its start-up time. A miss is a request that was refused,
or whose first token came later than the objective, or never.
"""

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from bench.scaling.pod import PodModel, PodReport, Request, SimulatedPod
from bench.scaling.yardstick import missed

PERIOD_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Bounds:
    """Between which numbers of replicas a policy may choose."""

    least: int
    most: int


@dataclass(frozen=True, slots=True)
class Span:
    """A time in which something is wrong, in seconds."""

    start: float
    end: float

    def holds(self, now: float) -> bool:
        return self.start <= now < self.end


@dataclass(frozen=True, slots=True)
class Scenario:
    """A trace of requests, and what else goes on meanwhile."""

    name: str
    what: str
    requests: Sequence[Request]
    """In the order of their times. A run works on copies."""
    seconds: float
    pod: PodModel
    ttft_objective: float
    replicas: int = 1
    """At the start, all warm."""
    bounds: Bounds = Bounds(1, 8)
    no_metrics: Span | None = None
    """No pod can be read."""
    silent_pod: Span | None = None
    """The oldest pod serves, but cannot be read."""
    slow_pods: float = 1.0
    """Every second pod is slower by this factor."""
    no_rates: Span | None = None
    """Every pod can be read, but has no prefill rate and no mean to tell."""
    roll: Span | None = None
    """From its start all pods are replaced, one after the other, each after a new one is ready."""


@dataclass(frozen=True, slots=True)
class PodView:
    """What a policy sees of a pod that is not being deleted. `report` None: it cannot be read, or still starts."""

    uid: str
    warm: bool
    report: PodReport | None


class Policy(Protocol):
    """Decides on a number of replicas. One instance serves one run."""

    def wants(self, now: float, pods: Sequence[PodView], current: int) -> int:
        """Asked every PERIOD_SECONDS; `current` is what it asked for last. May return `current`."""
        ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a policy made of a scenario."""

    requests: int
    slo_misses: int
    pod_hours: float
    """Of all pods, from their creation to their end, start-up and drain included."""
    changes: int
    """How often the number of replicas that is asked for changed."""
    replicas: Sequence[tuple[float, int]]
    """(seconds, replicas asked for), at each change."""


@dataclass(slots=True, eq=False)
class _Member:
    pod: SimulatedPod
    warm_at: float
    made_at: float
    old: bool = False
    """Of the revision before the roll."""


@dataclass(slots=True)
class _Fleet:
    """The pods of the pool, oldest first."""

    scenario: Scenario
    members: list[_Member] = field(default_factory=list)
    draining: list[_Member] = field(default_factory=list)
    ended_pod_seconds: float = 0.0
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def add(self, now: float, *, startup: float) -> _Member:
        number = next(self._numbers)
        model = self.scenario.pod.slowed(self.scenario.slow_pods) if number % 2 else self.scenario.pod
        member = _Member(SimulatedPod(f"pod-{number}", model, now + startup), now + startup, now)
        self.members.append(member)
        return member

    def remove(self, member: _Member) -> None:
        self.members.remove(member)
        self.draining.append(member)

    def scale(self, now: float, replicas: int, surge: _Member | None) -> None:
        """`surge`: a roll's pod, above what is asked for. The least work in flight goes first, as the operator asks."""
        counted = [member for member in self.members if member is not surge]
        for _ in range(replicas - len(counted)):
            self.add(now, startup=self.scenario.pod.startup_seconds)
        by_work = sorted(counted, key=lambda member: (member.warm_at <= now, member.pod.in_flight))
        for member in by_work[: max(0, len(counted) - replicas)]:
            self.remove(member)

    def ready(self, now: float) -> list[_Member]:
        return [member for member in self.members if member.warm_at <= now]

    def advance(self, now: float) -> None:
        for member in (*self.members, *self.draining):
            member.pod.advance(now)
        for member in [member for member in self.draining if member.pod.idle or member.warm_at > now]:
            self.draining.remove(member)
            self.ended_pod_seconds += now - member.made_at

    def pod_seconds(self, now: float) -> float:
        return self.ended_pod_seconds + sum(now - member.made_at for member in (*self.members, *self.draining))


@dataclass(slots=True)
class _Roll:
    """Replaces the pods one after the other: one more than asked for starts, then an old one goes."""

    span: Span | None
    begun: bool = False
    surge: _Member | None = None

    def step(self, fleet: _Fleet, now: float) -> None:
        if self.span is None or not self.span.holds(now):
            return
        if not self.begun:
            self.begun = True
            for member in fleet.members:
                member.old = True
        if self.surge is not None and self.surge.warm_at <= now:
            self.surge = None
            if old := [member for member in fleet.members if member.old]:
                fleet.remove(old[0])
        if self.surge is None and any(member.old for member in fleet.members):
            self.surge = fleet.add(now, startup=fleet.scenario.pod.startup_seconds)


def run(scenario: Scenario, policy: Policy, seed: int = 1) -> Outcome:
    """The same seed gives the same routing, as far as the pods are the same."""
    chance = random.Random(seed)
    requests = [replace(request) for request in scenario.requests]
    fleet, roll = _Fleet(scenario), _Roll(scenario.roll)
    for _ in range(scenario.replicas):
        fleet.add(0.0, startup=0.0)
    current, changes, now = scenario.replicas, [(0.0, scenario.replicas)], 0.0
    waiting = iter(requests)
    coming = next(waiting, None)
    while now < scenario.seconds:
        roll.step(fleet, now)
        wanted = policy.wants(now, _views(fleet, scenario, now), current)
        wanted = min(max(wanted, scenario.bounds.least), scenario.bounds.most)
        if wanted != current:
            current = wanted
            changes.append((now, current))
        fleet.scale(now, current, roll.surge)
        now += PERIOD_SECONDS
        while coming is not None and coming.at < now:
            chance.choice(fleet.ready(coming.at)).pod.submit(coming)
            coming = next(waiting, None)
        fleet.advance(now)
    pod_hours = fleet.pod_seconds(now) / 3600
    while any(not member.pod.idle for member in (*fleet.members, *fleet.draining)):
        now += PERIOD_SECONDS  # what was accepted is answered; the pods' time beyond the trace does not count
        fleet.advance(now)
    return Outcome(
        requests=len(requests),
        slo_misses=sum(missed(request, scenario.ttft_objective) for request in requests),
        pod_hours=pod_hours,
        changes=len(changes) - 1,
        replicas=changes,
    )


def _views(fleet: _Fleet, scenario: Scenario, now: float) -> list[PodView]:
    unreadable = scenario.no_metrics is not None and scenario.no_metrics.holds(now)
    views = []
    for place, member in enumerate(fleet.members):
        silent = place == 0 and scenario.silent_pod is not None and scenario.silent_pod.holds(now)
        warm = member.warm_at <= now
        readable = warm and not silent and not unreadable
        views.append(PodView(member.pod.uid, warm, _report(member.pod, scenario, now) if readable else None))
    return views


def _report(pod: SimulatedPod, scenario: Scenario, now: float) -> PodReport:
    if scenario.no_rates is not None and scenario.no_rates.holds(now):
        return replace(pod.report(), prefill_tokens_per_second=None, mean_ttft=None)
    return pod.report()
