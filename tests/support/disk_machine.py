"""The engine machine with a disk cache below its swap space, and all that happens to disks.

What the disk loses, refuses, gives back damaged or holds of another engine costs hits and nothing else:
the tokens stay those of an undisturbed run, and nothing waits for ever.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import mkdtemp
from typing import ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from kvik_engine.kv.host_pool import ContentKey, Slot
from kvik_engine.kv.prefix_hash import BlockHashCache
from kvik_engine.kv.radix import RadixCache
from kvik_engine.scheduler.swap_or_recompute import PreemptionMode
from tests.support.engine_harness import Harness
from tests.support.engine_machine import EngineMachine
from tests.support.fake_runner import FULL, VOCAB, Windows
from tests.support.held_disk import Damage, Fault, HeldDisk

_PROMPTS = [
    [*((11 * (number // 2) + i) % (VOCAB - 1) + 1 for i in range(12)), *[number + 1] * 5] for number in range(8)
]
"""Pairs with one beginning. They do not fit into the pools together, so in turn they push each other down to the disk
and come back from there."""

_MOSTLY_NONE = [*[Fault.NONE] * 4, *Fault]


class DiskEngineMachine(EngineMachine):
    """One engine core with a disk, beside another engine on the same directory."""

    read: ClassVar[int] = 0
    """Blocks that any run read."""
    failed: ClassVar[int] = 0
    """Blocks that any run could not read."""

    @initialize(
        pool_tokens=st.sampled_from([24, 32, 48]),
        block_tokens=st.sampled_from([2, 4]),
        max_requests=st.integers(1, 4),
        index=st.sampled_from([BlockHashCache, RadixCache]),
        swap_slots=st.sampled_from([4, 8]),
        swap_threshold=st.sampled_from([0, 1000]),
        windows=st.sampled_from([FULL, FULL, (None, 6)]),
        disk_blocks=st.sampled_from([2, 1000, 1000]),
        left_behind=st.sampled_from([0, 8]),
        damage=st.none() | st.sampled_from(Damage),
        fault=st.sampled_from(_MOSTLY_NONE),
        neighbour=st.booleans(),
    )
    def begin(  # type: ignore[override]
        self,
        pool_tokens: int,
        block_tokens: int,
        max_requests: int,
        index: type[BlockHashCache] | type[RadixCache],
        swap_slots: int,
        swap_threshold: int,
        windows: Windows,
        disk_blocks: int,
        left_behind: int,
        damage: Damage | None,
        fault: Fault,
        neighbour: bool,
    ) -> None:
        self.directory = Path(mkdtemp())
        self.settings = dict[str, object](
            blocks=pool_tokens // block_tokens * len(windows),
            block_tokens=block_tokens,
            max_requests=max_requests,
            index=index,
            swap_slots=swap_slots * len(windows),
            preemption_mode=PreemptionMode.AUTO,
            swap_threshold=swap_threshold,
            windows=windows,
            overlap=self.overlap,
            disk_cache=self.directory,
            disk_blocks=disk_blocks,
        )
        self.leave_behind(left_behind, damage)
        self.open(Harness(**self.settings, disk_fault=fault))  # type: ignore[arg-type]
        self.neighbour = self.move_in() if neighbour else None
        self.neighbours = set[ContentKey]()

    def leave_behind(self, prompts: int, damage: Damage | None) -> None:
        """What an engine that ended kept of these prompts."""
        before = Harness(**self.settings)  # type: ignore[arg-type]
        assert before.disk is not None
        for number, prompt in enumerate(_PROMPTS[:prompts]):
            before.submit(number, prompt, max_tokens=1)
            while before.channel.inbox or before.core.busy:
                before.step()
                before.disk.go_on(100)
        if damage is not None:
            before.disk.damage(damage, every=2)
        before.disk.end()

    def move_in(self) -> HeldDisk:
        """Another engine of the same model starts. What it keeps is wrong here, whatever its name."""
        slots = memoryview(bytearray(self.harness.fake.block_bytes))
        return HeldDisk(
            self.directory,
            slots,
            block_bytes=len(slots),
            max_blocks=1000,
            clock=lambda: self.harness.now,
        )

    @property
    def disk(self) -> HeldDisk:
        assert self.harness.disk is not None
        return self.harness.disk

    @rule(
        first=st.integers(0, len(_PROMPTS) - 1),
        count=st.integers(1, len(_PROMPTS)),
        jobs=st.sampled_from([0, 1, 10]),
        damage=st.none() | st.sampled_from(Damage),
        every=st.integers(1, 3),
        n=st.integers(1, 2),
        slo_class=st.integers(0, 2),
    )
    def known_prompts_come(
        self, first: int, count: int, jobs: int, damage: Damage | None, every: int, n: int, slo_class: int
    ) -> None:
        n = min(n, self.harness.max_requests)
        if damage is not None:
            self.disk.damage(damage, every)
        for prompt in (_PROMPTS * 2)[first : first + count]:
            self.harness.submit(self.next_id, prompt, n=n, slo_class=slo_class, max_tokens=2)
            self.submitted.add(self.next_id)
            self.undisturbed.add(self.next_id)
            self.next_id += 1
            for _ in range(4):
                self._step(0.01)
                self.disk.go_on(jobs)

    @rule(jobs=st.integers(1, 20))
    def the_disk_gets_on(self, jobs: int) -> None:
        self.disk.go_on(jobs)

    @rule(fault=st.sampled_from(_MOSTLY_NONE))
    def the_disk_fails_or_recovers(self, fault: Fault) -> None:
        self.disk.files.fault = fault

    @rule()
    def the_neighbour_keeps_blocks_of_the_same_names(self) -> None:
        if self.neighbour is not None:
            for key in self.disk.keys()[:8]:
                if self.neighbour.tier.write(key, Slot(0)):
                    self.neighbours.add(key)
            self.neighbour.go_on(100)
            self.neighbour.tier.done()

    @rule()
    def the_neighbour_starts_again(self) -> None:
        if self.neighbour is not None:
            self.neighbour.end()
            self.neighbour = self.move_in()

    def teardown(self) -> None:
        super().teardown()
        if not hasattr(self, "directory"):
            return
        if self.neighbour is not None:
            for key in self.neighbours:
                self.neighbour.tier.read(key, Slot(0))
                self.neighbour.go_on(1)
                (done,) = self.neighbour.tier.done()
                assert done.error is None, "an engine touched what another one keeps"
            self.neighbour.end()
        use = self.disk.tier.use
        type(self).read += use.read
        type(self).failed += use.failed_reads
        self.disk.end()
        shutil.rmtree(self.directory)

    def _step(self, seconds: float) -> None:
        super()._step(seconds)
        assert self.disk.tier.use.blocks <= self.harness.disk_blocks
        if self.neighbour is not None:
            assert self.neighbour.files.folder != self.disk.files.folder, "two engines share a folder"

    def go_on(self) -> None:
        self.disk.go_on(3)

    def waits(self) -> bool:
        return bool(self.disk.waiting)


class OverlappedDiskEngineMachine(DiskEngineMachine):
    """Step N + 1 is planned before step N is settled."""

    overlap = 1
