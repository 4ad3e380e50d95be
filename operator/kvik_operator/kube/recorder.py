"""Events about pools: equal ones are folded into one with a count, and none is ever waited for.

core/v1 Events: `kubectl describe` shows them, and they are patched in place with a rising count.
`Folder` decides (pure), `Recorder` sends.
"""

import asyncio
import contextlib
import hashlib
import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from kvik_operator.errors import ClusterError, NotFound
from kvik_operator.kube.client import Fence
from kvik_operator.kube.limiter import TokenBucket
from kvik_operator.kube.paths import path
from kvik_operator.kube.transport import MERGE, Transport
from kvik_operator.names import API_VERSION, EVENT_COMPONENT, KIND, PoolKey
from kvik_operator.reconcile.types import PlannedEvent

log = logging.getLogger(__name__)

FOLD_WITHIN: Final = timedelta(minutes=50)
"""The API server forgets Events after an hour; a later one starts anew."""
RESEND_AFTER: Final = timedelta(seconds=30)
"""An Event that repeats faster is counted at once and sent this often."""
MAX_REMEMBERED: Final = 4096
MAX_WAITING: Final = 1000
MAX_MESSAGE: Final = 1024


@dataclass(frozen=True, slots=True)
class Series:
    """One Event object: how often it happened, and when it was last written."""

    name: str
    event: PlannedEvent
    count: int
    first: datetime
    last: datetime
    sent_at: datetime | None = None


class Folder:
    """Which Event object a planned event belongs to, and whether it is time to write it."""

    def __init__(self) -> None:
        self._series: OrderedDict[tuple[object, ...], Series] = OrderedDict()

    def fold(self, event: PlannedEvent, now: datetime) -> Series | None:
        """The series to write now; None: counted, and written with a later one."""
        identity = (event.key, event.pool_uid, event.type, event.reason, event.message)
        known = self._series.get(identity)
        if known is None or now - known.first > FOLD_WITHIN:
            digest = hashlib.sha256(f"{identity}{now.isoformat()}".encode()).hexdigest()[:16]
            known = Series(f"{event.key.name}.{digest}", event, 0, now, now)
        series = replace(known, count=known.count + 1, last=now)
        due = series.sent_at is None or now - series.sent_at >= RESEND_AFTER
        if due:
            series = replace(series, sent_at=now)
        self._series[identity] = series
        self._series.move_to_end(identity)
        while len(self._series) > MAX_REMEMBERED:
            self._series.popitem(last=False)
        return series if due else None


def event_object(series: Series, instance: str) -> Mapping[str, Any]:
    """The core/v1 Event to create. `instance` is the pod that reports it."""
    event = series.event
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": series.name, "namespace": event.key.namespace},
        "involvedObject": {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "namespace": event.key.namespace,
            "name": event.key.name,
            **({"uid": event.pool_uid} if event.pool_uid else {}),
        },
        "type": event.type,
        "reason": event.reason,
        "message": event.message[:MAX_MESSAGE],
        "source": {"component": EVENT_COMPONENT},
        "reportingComponent": EVENT_COMPONENT,
        "reportingInstance": instance,
        "count": series.count,
        "firstTimestamp": _rfc3339(series.first),
        "lastTimestamp": _rfc3339(series.last),
    }


class Recorder:
    """`emit` may be called from any thread; `run` writes, in the loop of its transport."""

    def __init__(self, *, bucket: TokenBucket, fence: Fence, instance: str, now: Callable[[], datetime]) -> None:
        self._bucket = bucket
        self._fence = fence
        self._instance = instance
        self._now = now
        self._waiting: deque[PlannedEvent] = deque(maxlen=MAX_WAITING)
        self._folder = Folder()
        self._wake: Callable[[], object] = lambda: None

    def emit(self, event: PlannedEvent) -> None:
        self._waiting.append(event)
        with contextlib.suppress(RuntimeError):  # the loop is closed: the process ends
            self._wake()

    async def run(self, transport: Transport) -> None:
        loop, pending = asyncio.get_running_loop(), asyncio.Event()
        self._wake = lambda: loop.call_soon_threadsafe(pending.set)
        while True:
            while self._waiting:
                series = self._folder.fold(self._waiting.popleft(), self._now())
                if series is not None:
                    await self._send(transport, series)
            pending.clear()
            if not self._waiting:
                await pending.wait()

    async def _send(self, transport: Transport, series: Series) -> None:
        key = series.event.key
        if self._fence.seconds_left() <= 0:
            return  # another replica tells of it
        await asyncio.sleep(self._bucket.reserve())
        seconds = self._fence.seconds_left()
        if seconds <= 0:
            return
        try:
            if series.count > 1:
                try:
                    await self._patch(transport, key, series, seconds)
                    return
                except NotFound:
                    log.debug("the Event expired, a new one is written", extra={"event": series.name})
            await transport.request(
                f"create Event {key.namespace}/{series.name}",
                "POST",
                path("v1", "events", key.namespace),
                body=event_object(series, self._instance),
                timeout=seconds,
            )
        except ClusterError as error:
            # Never retried: an Event is an explanation, and the condition says the same.
            log.warning("an Event was not written", extra={"pool": str(key), "error": str(error)})

    async def _patch(self, transport: Transport, key: PoolKey, series: Series, seconds: float) -> None:
        await transport.request(
            f"patch Event {key.namespace}/{series.name}",
            "PATCH",
            path("v1", "events", key.namespace, series.name),
            body={"count": series.count, "lastTimestamp": _rfc3339(series.last)},
            content_type=MERGE,
            timeout=seconds,
        )


def _rfc3339(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
