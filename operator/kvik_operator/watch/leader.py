"""Which replica may write: our own election over one Lease (`kubernetes.aio.leaderelection` fails on creating it).

The lease is held for 15 s and renewed every 2 s. Every write passes `seconds_left`: 10 s after the last renewal, by the
monotonic clock of this process, no write is begun any more, and one that was begun before is given up by the time that
another replica may lead. Another replica's lease counts as expired once this
process has seen it unchanged for its whole duration, so clocks that differ between machines do no harm.

While the API server is away nobody can take the lease: the fence closes, the process stays and renews when it can.
Lost is a lease that is not ours when read; then the process ends at once, without clean-up that might write.
`look` and `decide` are pure; `Elector` acts.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Protocol

from kvik_operator.errors import ClusterError

log = logging.getLogger(__name__)

Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """Seconds; the deadline lies before the end of the lease, so that a write begun just before it has time to end."""

    duration: float = 15.0
    renew_deadline: float = 10.0
    retry_period: float = 2.0


@dataclass(frozen=True, slots=True)
class Sighting:
    """The lease as last seen, and when (monotonic) it was first seen like this."""

    holder: str
    record: tuple[object, ...]
    since: float
    duration: float


class Step(Enum):
    CREATE = "create"
    TAKE = "take"
    RENEW = "renew"
    WAIT = "wait"


class LeaseApi(Protocol):
    async def read(self) -> Object | None: ...

    async def create(self, spec: Object) -> Object: ...

    async def replace(self, lease: Object, spec: Object) -> Object: ...


def look(lease: Object, previous: Sighting | None, now: float, times: LeaseTimes) -> Sighting:
    """What this reading of the lease says; an unchanged record keeps its age."""
    spec = lease.get("spec") or {}
    record = (spec.get("holderIdentity"), spec.get("renewTime"), spec.get("acquireTime"), spec.get("leaseTransitions"))
    if previous is not None and previous.record == record:
        return previous
    holder = str(spec.get("holderIdentity") or "")
    return Sighting(holder, record, now, float(spec.get("leaseDurationSeconds") or times.duration))


def decide(sighting: Sighting | None, identity: str, now: float) -> Step:
    """`sighting` None: there is no lease yet."""
    if sighting is None:
        return Step.CREATE
    if sighting.holder == identity:
        return Step.RENEW
    if not sighting.holder or now - sighting.since >= sighting.duration:
        return Step.TAKE
    return Step.WAIT


class Elector:
    """`identity` is unique per process. `lost` is called at most once and must not return (os._exit)."""

    def __init__(
        self,
        identity: str,
        times: LeaseTimes,
        *,
        lost: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
        utcnow: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._api: LeaseApi | None = None
        self._identity = identity
        self._times = times
        self._lost = lost
        self._clock = clock
        self._utcnow = utcnow
        self._sighting: Sighting | None = None
        self._lease: Object | None = None
        self._renewed_at: float | None = None
        """When the last successful renewal was *asked* for; None: not the leader."""

    def may_write(self) -> bool:
        """From any thread: whether this process surely is the leader now."""
        return self.seconds_left() > 0

    def seconds_left(self) -> float:
        """From any thread: how long a write begun now may take until another replica may lead; 0: it may not begin."""
        renewed_at, now = self._renewed_at, self._clock()
        if renewed_at is None or now >= renewed_at + self._times.renew_deadline:
            return 0.0
        return renewed_at + self._times.duration - now

    def is_leader(self) -> bool:
        return self._renewed_at is not None

    async def run(self, api: LeaseApi, on_writable: Callable[[], None]) -> None:
        """Campaign and renew until cancelled.

        `on_writable` is called when this process is elected, and when the fence opens again that an outage had closed:
        whatever was refused meanwhile need not wait out its back-off then.
        """
        self._api = api
        while True:
            before = self._renewed_at
            await self._step(api)
            if self.may_write() and (before is None or self._clock() >= before + self._times.renew_deadline):
                log.info("elected" if before is None else "may write again", extra={"identity": self._identity})
                on_writable()
            await asyncio.sleep(self._times.retry_period)

    async def release(self) -> None:
        """Clear the lease, so that another replica need not wait for it to expire; best effort."""
        was_leader, self._renewed_at = self.is_leader(), None
        if not was_leader or self._api is None or self._lease is None:
            return
        spec = {**(self._lease.get("spec") or {}), "holderIdentity": "", "leaseDurationSeconds": 1}
        try:
            await self._api.replace(self._lease, spec)
        except ClusterError as error:
            log.warning("the lease could not be cleared", extra={"error": str(error)})

    async def _step(self, api: LeaseApi) -> None:
        asked_at = self._clock()
        try:
            lease = await api.read()
            self._sighting = look(lease, self._sighting, asked_at, self._times) if lease is not None else None
            step = decide(self._sighting, self._identity, asked_at)
            if self.is_leader() and step is not Step.RENEW:
                log.error("leadership lost", extra={"identity": self._identity, "lease": str(self._sighting)})
                self._lost()
                return
            if step is Step.WAIT:
                return
            if step is Step.CREATE:
                self._lease = await api.create(self._spec(None, taken=True))
            else:
                assert lease is not None
                self._lease = await api.replace(lease, self._spec(lease, taken=step is Step.TAKE))
        except ClusterError as error:
            log.warning("the lease could not be read or written", extra={"error": str(error)})
            return
        self._sighting = look(self._lease, self._sighting, asked_at, self._times)
        self._renewed_at = asked_at

    def _spec(self, lease: Object | None, *, taken: bool) -> Object:
        before: Object = (lease or {}).get("spec") or {}
        now = self._utcnow().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        transitions = int(before.get("leaseTransitions") or 0)
        return {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": round(self._times.duration),
            "acquireTime": now if taken else before.get("acquireTime") or now,
            "renewTime": now,
            "leaseTransitions": transitions + (1 if taken and lease is not None else 0),
        }
