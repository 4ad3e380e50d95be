"""A tier below the fake runner's host memory: jobs wait until the test lets them go on, and fail when it says so."""

from __future__ import annotations

from collections import deque

from kvik_engine.kv.disk_tier import DiskUse, Done
from kvik_engine.kv.host_pool import ContentKey, Slot
from tests.support.fake_runner import POISON, FakeRunner


class FakeDisk:
    """Implements kv.disk_tier.LowerTier over the slots of a fake runner. It keeps everything."""

    def __init__(self, runner: FakeRunner) -> None:
        self.kept: dict[ContentKey, list[int]] = {}
        self.waiting: deque[tuple[ContentKey, Slot, bool]] = deque()
        self._runner = runner
        self._done: list[Done] = []
        self._reads = 0

    @property
    def use(self) -> DiskUse:
        return DiskUse(blocks=len(self.kept), read=self._reads)

    def __contains__(self, key: ContentKey) -> bool:
        return key in self.kept

    def write(self, key: ContentKey, slot: Slot) -> bool:
        if key in self.kept or any(key == other for other, _, _ in self.waiting):
            return False
        self.waiting.append((key, slot, True))
        return True

    def read(self, key: ContentKey, slot: Slot) -> None:
        self.waiting.append((key, slot, False))

    def forget(self, key: ContentKey) -> None:
        self.kept.pop(key, None)

    def done(self) -> list[Done]:
        done, self._done = self._done, []
        return done

    def go_on(self, jobs: int, *, fail: bool = False) -> None:
        """Let the oldest jobs end. A read whose content was forgotten fails, as that of a removed file does."""
        for _ in range(min(jobs, len(self.waiting))):
            key, slot, wrote = self.waiting.popleft()
            error = "told to fail" if fail else None
            if wrote and not fail:
                content = self._runner.slots[slot.id]
                assert content[0] != POISON, "a slot is written to disk that was freed or never filled"
                self.kept[key] = list(content)
            elif not wrote and key in self.kept and not fail:
                self._runner.slots[slot.id] = list(self.kept[key])
                self._reads += 1
            elif not wrote:
                error = "no such file"
                self.kept.pop(key, None)
            self._done.append(Done(slot, key, wrote, error))
