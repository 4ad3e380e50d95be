"""Slots of the host pool that the tier below reads or writes: each is pinned until its job is done."""

from __future__ import annotations

from collections.abc import Iterator, Set

from kvik_engine.kv.disk_tier import DiskUse, LowerTier
from kvik_engine.kv.host_pool import ContentKey, HostPool, Slot


class DiskJobs:
    """What the host tier has the tier below do, and whether a slot is filled.

    A slot that is being read has its name from the start, so that all who want the content wait for one reading. Until
    `advance` reports it, the content is not there, and may never come: the name is then taken away.
    """

    def __init__(self, pool: HostPool, below: LowerTier) -> None:
        self._pool = pool
        self._below = below
        self._jobs: set[Slot] = set()
        self._unread: set[Slot] = set()

    @property
    def use(self) -> DiskUse:
        return self._below.use

    @property
    def slots(self) -> Set[Slot]:
        """All slots with a job."""
        return self._jobs

    def __contains__(self, key: ContentKey) -> bool:
        """Whether the tier below has this content."""
        return key in self._below

    def filled(self, slot: Slot) -> bool:
        """Whether the slot's content is there, or comes with a planned step, and so surely."""
        return slot not in self._unread

    def read(self, key: ContentKey) -> Slot:
        """A slot that will have this content, pinned once more for who asks. One must be available."""
        slot = self._pool.take()
        self._pool.name(slot, key)
        self._pool.pin(slot)
        self._jobs.add(slot)
        self._unread.add(slot)
        self._below.read(key, slot)
        return slot

    def write(self, slot: Slot) -> None:
        """Keep the content of a filled slot below, if it still has a name and the tier below wants it."""
        if slot.key is not None and self._below.write(slot.key, slot):
            self._pool.pin(slot)
            self._jobs.add(slot)

    def forget(self, key: ContentKey) -> None:
        """This content must not be found below any more."""
        self._below.forget(key)

    def advance(self) -> Iterator[tuple[Slot, bool]]:
        """The slots whose job is done, and whether they have their content; each is unpinned behind the caller."""
        for done in self._below.done():
            slot, there = done.slot, done.wrote or done.error is None
            self._jobs.remove(slot)
            self._unread.discard(slot)
            if not there and slot.key is not None:
                self._pool.forget(slot.key)
            yield slot, there
            self._pool.unpin(slot)
