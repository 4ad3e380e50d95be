"""Whether a new request may queue: as long as there is place, or, for goodput, only if its first token can be in time.

Which of the two is chosen at start-up (`--admission`). Both leave a request alone that finds rows and room at once.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Protocol

from kvik_engine.ipc.messages import Refusal
from kvik_engine.request import Request
from kvik_engine.scheduler.policy import SLO_CLASSES
from kvik_engine.scheduler.scheduler import Scheduler
from kvik_engine.scheduler.startable import Startable
from kvik_engine.scheduler.token_rate import TokenRate

SAFE_SHARE = 0.5
"""Of the target, for the predicted time: at an overload of twice what the device can do, goodput is 15.0 a second with
0.5, 11.6 with 0.65, 6.9 with 1, and 2.2 with the queue alone (simulated)."""
_MAX_RETRY_SECONDS = 60.0


class Gate(Protocol):
    """Asked for each new request of a step, after `begin`; told of every settled step."""

    def begin(self) -> None:
        """New messages are about to be taken."""
        ...

    def refusal(self, request: Request, now: float) -> Refusal | None:
        """Why a request that could be served may not queue now; a refusal says when to try again."""
        ...

    def settled(self, seconds: float, prefill_tokens: int) -> None: ...


class QueueGate:
    """Refuses what would be more than `max_queued` waiting requests of its class and better ones.

    So a backlog of batch work keeps no interactive request out. A tenant that has less than its share of the places is
    let in although others have filled them, so at most twice as many wait.
    """

    def __init__(self, scheduler: Scheduler, max_queued: int) -> None:
        self.drained = TokenRate()
        """While prompts wait. Steps without any count too: those who wait for rows wait for them."""
        self._scheduler = scheduler
        self._max_queued = max_queued
        self._startable = Startable(scheduler)

    def begin(self) -> None:
        self._startable = Startable(self._scheduler)

    def refusal(self, request: Request, now: float) -> Refusal | None:
        taken = self._startable.taken
        if self._startable.take(request):
            return None
        queues = [self._scheduler.waiting.of_class(c) for c in SLO_CLASSES if c <= request.slo_class]
        waiting = sum(map(len, queues)) - taken
        if waiting < self._max_queued:
            return None
        tenants = {tenant for queue in queues for tenant in queue.tenants} | {request.tenant}
        own = sum(queue.of_tenant(request.tenant) for queue in queues)
        if len(tenants) > 1 and own < self._max_queued / len(tenants):
            return None
        return Refusal(request.key[1], "queue_full", f"{waiting} requests wait already", retry_after=self.retry_after())

    def settled(self, seconds: float, prefill_tokens: int) -> None:
        if self._scheduler.prompt_tokens_left:
            self.drained.count(seconds, prefill_tokens)

    def retry_after(self) -> float:
        """Seconds until the prompts that wait now are computed, as far as the speed is known."""
        rate = self.drained.tokens_per_second or self._scheduler.prefill_rate.tokens_per_second
        seconds = self._scheduler.prompt_tokens_left / rate if rate else 0.0
        return min(max(1.0, seconds), _MAX_RETRY_SECONDS)


class GoodputGate:
    """Refuses, beside what the queue has no place for, requests whose first token would be later than `ttft` seconds.

    A request computed too late counts for nothing, and makes the next one late. The target is that of `slo_class`;
    requests that put themselves into a lower class have none. Without a backlog, or before its speed is known, nobody
    is refused for it.
    """

    def __init__(self, queue: QueueGate, scheduler: Scheduler, *, ttft: float, slo_class: int) -> None:
        self._queue = queue
        self._scheduler = scheduler
        self._ttft = ttft
        self._slo_class = slo_class

    def begin(self) -> None:
        self._queue.begin()

    def refusal(self, request: Request, now: float) -> Refusal | None:
        if request.slo_class != self._slo_class:
            return self._queue.refusal(request, now)
        seconds = predicted_ttft(request, self._scheduler, self._queue.drained.tokens_per_second, now)
        if seconds is None or seconds <= self._ttft * SAFE_SHARE:
            return self._queue.refusal(request, now)
        message = f"The first token would come after {seconds:.1f} s, the target is {self._ttft:g} s"
        return Refusal(request.key[1], "too_late", message, retry_after=min(max(1.0, seconds), _MAX_RETRY_SECONDS))

    def settled(self, seconds: float, prefill_tokens: int) -> None:
        self._queue.settled(seconds, prefill_tokens)


def predicted_ttft(request: Request, scheduler: Scheduler, rate: float | None, now: float) -> float | None:
    """Seconds from the arrival of a placed request to its first token; None without a backlog or a known rate."""
    ahead = tokens_ahead(request, scheduler)
    if not ahead or rate is None:
        return None
    return now - request.arrival + (ahead + request.to_compute) / rate


def tokens_ahead(request: Request, scheduler: Scheduler) -> int:
    """Prompt tokens to be computed before the request's own: of better classes, of its own tenant, of other tenants.

    Short prompts pass longer ones of their tenant, so only the short ones are ahead of them. Each other tenant gets
    what it has waiting, but no more than until it was served as much as the request's own will have been by then.
    """
    queue = scheduler.waiting.of_class(request.slo_class)
    better = sum(scheduler.waiting.of_class(c).prompt_tokens for c in SLO_CLASSES if c < request.slo_class)
    by_tenant = Counter({tenant: waiting.prompt_tokens for tenant, waiting in queue.tokens_of.items()})
    of_own = queue.tokens_of.get(request.tenant)
    own = 0 if of_own is None else of_own.by_tier[0] if request.tier == 0 else of_own.prompt_tokens
    for running in scheduler.running:
        left = running.prompt_left
        if running.slo_class < request.slo_class:
            better += left
        elif running.slo_class == request.slo_class and running.tenant != request.tenant:
            by_tenant[running.tenant] += left
        elif running.slo_class == request.slo_class and request.tier >= running.tier:
            own += left
    served = queue.served_once_waiting(request.tenant) + own + request.to_compute
    others = {tenant: tokens for tenant, tokens in by_tenant.items() if tenant != request.tenant}
    return (
        better
        + own
        + sum(min(tokens, max(0, math.ceil(served - queue.served(tenant)))) for tenant, tokens in others.items())
    )
