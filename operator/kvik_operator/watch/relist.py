"""Checks the watches against what there is: one metadata LIST per kind every minute.

What vanished without an event is dropped and enqueued. What is newer there than in the store, and stays so, means that
a watch has gone deaf (kopf #996, #1276): liveness fails then. `DeafWatch` and `vanished` are pure.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kvik_operator.errors import ClusterError
from kvik_operator.kube.kinds import WatchedKind
from kvik_operator.kube.store import ObjectId, Store, is_newer_version
from kvik_operator.names import PoolKey

log = logging.getLogger(__name__)

Versions = Mapping[ObjectId, str]
Scope = tuple[str, str | None]
"""Kind, and namespace or (None) all of them."""
Lister = Callable[[WatchedKind, str | None], Awaitable[Versions]]


def vanished(before: Versions, listed: Versions, after: Versions) -> list[ObjectId]:
    """What the store had before and after the LIST, unchanged, and the LIST has not."""
    return [known for known, version in before.items() if known not in listed and after.get(known) == version]


@dataclass(frozen=True, slots=True)
class _Behind:
    """The version that was listed first, since when the store has been behind it, and which LIST told."""

    version: str
    since: float
    scope: Scope


@dataclass(slots=True)
class DeafWatch:
    """Objects that the API server has in a newer version than the store. `patience` is in seconds.

    A watch is called deaf only by a second LIST, which shows that the object is still there and still newer. What one
    LIST covers is a scope: a kind in one namespace, or in all. Until the store has caught up with everything for the
    first time since all scopes were tried, `first_patience` holds: a large cluster takes its time to be read. So it
    does for a scope that could not be listed then.
    """

    patience: float = 30.0
    first_patience: float = 300.0
    _behind: dict[ObjectId, _Behind] = field(default_factory=dict)
    _deaf_since: float | None = None
    _listed: set[Scope] = field(default_factory=set)
    _passed: set[Scope] = field(default_factory=set)
    """Listed in some whole pass."""
    _synced: set[Scope] = field(default_factory=set)

    def listed(self, kind: str, namespace: str | None, listed: Versions, stored: Versions, now: float) -> None:
        """A LIST of one kind in one or (None) all namespaces; `stored` is what the store had there after it."""
        self._listed.add((kind, namespace))
        for known in list(self._behind):
            if known.kind == kind and namespace in (None, known.namespace) and known not in listed:
                del self._behind[known]
        for known, version in listed.items():
            if is_newer_version(version, stored.get(known, "0")):
                self._behind.setdefault(known, _Behind(version, now, (kind, namespace)))
        self.caught_up(kind, stored)
        if self._deaf_since is None and self.overdue(now, kind):
            self._deaf_since = now

    def passed(self) -> None:
        """Everything was tried, and what can be listed has been."""
        self._passed |= self._listed
        self._note_sync()

    def caught_up(self, kind: str, stored: Versions) -> None:
        """Forget what a watch has brought meanwhile."""
        for known, behind in list(self._behind.items()):
            if known.kind == kind and known in stored and not is_newer_version(behind.version, stored[known]):
                del self._behind[known]
        self._note_sync()

    def keep(self, kinds: Collection[str]) -> None:
        """Only these are watched any more."""
        self._behind = {known: behind for known, behind in self._behind.items() if known.kind in kinds}
        self._note_sync()

    def start_over(self) -> None:
        """No watch runs, and none should: as before the first LIST."""
        self._behind.clear()
        self._deaf_since = None
        for scopes in (self._listed, self._passed, self._synced):
            scopes.clear()

    def _note_sync(self) -> None:
        if not self._behind:
            self._deaf_since = None
            self._synced |= self._passed

    def overdue(self, now: float, kind: str | None = None) -> bool:
        """Whether some object has been newer for the whole patience, so that a second LIST is due."""
        first = max(self.patience, self.first_patience)
        return any(
            now - behind.since >= (self.patience if behind.scope in self._synced else first)
            for known, behind in self._behind.items()
            if kind in (None, known.kind)
        )

    @property
    def deaf_since(self) -> float | None:
        """None: all watches hear, as far as is known."""
        return self._deaf_since

    def suspects(self) -> Collection[ObjectId]:
        return list(self._behind)


class Relister:
    """`watched`: the kinds that are watched now. `period` is in seconds; `namespaces` empty means all.

    No watch is called deaf while none is expected to run.
    """

    def __init__(
        self,
        *,
        store: Store,
        watched: Callable[[], Sequence[WatchedKind]],
        namespaces: Sequence[str],
        enqueue: Callable[[Iterable[PoolKey]], None],
        period: float,
        patience: float,
        watches_expected: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._watched = watched
        self._namespaces: Sequence[str | None] = list(namespaces) or [None]
        self._enqueue = enqueue
        self._period = period
        self._watches_expected = watches_expected
        self._clock = clock
        self._deaf = DeafWatch(patience)
        self.last_success: float | None = None
        """When (monotonic) the API server last answered a LIST; None: never yet."""

    @property
    def deaf_since(self) -> float | None:
        """When (monotonic) a watch was found deaf; None: all hear. From any thread."""
        return self._deaf.deaf_since

    async def run(self, lister: Lister) -> None:
        """List every `period`, and look between whether the watches have caught up; until cancelled."""
        while True:
            self._deaf.keep({watched.kind for watched in self._watched()})
            await self._relist_all(lister)
            await self._pause()

    async def _relist_all(self, lister: Lister) -> None:
        """A namespace that is gone, or a kind that may not be listed, keeps no other from being checked."""
        for namespace in self._namespaces:
            for watched in self._watched():
                try:
                    await self._relist(lister, watched, namespace)
                except ClusterError as error:
                    # It tells nothing about the watches; they have their own back-off.
                    log.warning("relist failed", extra={"error": str(error)})
                    if error.status is None:
                        return  # nobody answers: the others would only wait for that too
                else:
                    self.last_success = self._clock()
        self._deaf.passed()

    async def _pause(self) -> None:
        """Until the next LIST is due, or a second one must show whether a watch is deaf."""
        for _ in range(10):
            await asyncio.sleep(self._period / 10)
            for watched in self._watched():
                self._deaf.caught_up(watched.kind, self._store.versions(watched.kind))
            if self._deaf.deaf_since is None and self._deaf.overdue(self._clock()):
                return

    async def _relist(self, lister: Lister, watched: WatchedKind, namespace: str | None) -> None:
        before = self._stored(watched.kind, namespace)
        listed = await lister(watched, namespace)
        after = self._stored(watched.kind, namespace)
        for identity in vanished(before, listed, after):
            log.info("vanished without an event", extra={"kind": identity.kind, "object": identity.name})
            self._enqueue(self._store.forget(identity))
        if not self._watches_expected():
            self._deaf.start_over()
            return
        self._deaf.listed(watched.kind, namespace, listed, self._stored(watched.kind, namespace), self._clock())
        if self._deaf.deaf_since is not None:
            log.error("a watch is deaf", extra={"objects": str(list(self._deaf.suspects())[:3])})

    def _stored(self, kind: str, namespace: str | None) -> Versions:
        versions = self._store.versions(kind)
        return {known: v for known, v in versions.items() if namespace is None or known.namespace == namespace}
