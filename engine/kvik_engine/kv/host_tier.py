"""KV in the host's memory: of preempted requests, and of prefixes that the device's pool evicted.

Below it may lie a disk: what the device evicts is written on to it, and a prefix that only the disk has is read into
slots first, while other requests go on.

Both live in one pool of slots. A preempted request owns its slots until its blocks are filled again; a block that
several of its branches share goes out and comes back once. Prefixes are cached: the longest unused goes first.

Transfers are holders: what a step copies is pinned on both sides until that step is settled, so a branch that leaves
while its blocks are on the way cannot hand them on. Only an evicted block gets new content in the same step, since a
step's swap-outs come before anything that writes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Protocol

from kvik_engine.kv.block import SCRATCH, Block
from kvik_engine.kv.check import BooksDoNotBalance
from kvik_engine.kv.content_names import ContentNames
from kvik_engine.kv.disk_jobs import DiskJobs
from kvik_engine.kv.disk_tier import LowerTier, NoLowerTier
from kvik_engine.kv.host_load import BranchLoad, Fill, HostHolding, HostLoad
from kvik_engine.kv.host_pool import ContentKey, HostPool, Slot
from kvik_engine.kv.host_prefix import Place, places_behind
from kvik_engine.kv.manager import KVManager
from kvik_engine.kv.offload import Load, OffloadUse
from kvik_engine.kv.prefix_cache import Hit
from kvik_engine.kv.windows import first_needed
from kvik_engine.request import Branch, Life, Request
from kvik_engine.step import SwapIn, SwapOut


class SwapChoice(Protocol):
    """Which of two ways is better: scheduler.swap_or_recompute."""

    def prefers_swap(self, tokens: int) -> bool: ...

    def observe(self, seconds: float, prefill_tokens: int, full_rate: float | None) -> None: ...


class HostTier:
    """See kv.offload.Offload. The pool of the device tells it which blocks are evicted."""

    def __init__(
        self,
        kv: KVManager,
        pool: HostPool,
        names: ContentNames,
        choice: SwapChoice,
        below: LowerTier | None = None,
    ) -> None:
        kv.pool.evicting = self._evicting
        self.pool = pool
        self._kv = kv
        self._names = names
        self.choice = choice
        self._disk = DiskJobs(pool, below or NoLowerTier())
        self._unfilled: dict[Branch, Fill] = {}
        """Loading branches that wait for the tier below, or for the next step."""
        self._spilled: dict[int, list[Slot]] = {}
        self._holdings: dict[Branch, HostHolding] = {}
        self._filling: dict[Branch, int] = {}
        """Loading branches, and the step that fills their blocks."""
        self._ready: set[Branch] = set()
        self._evicted: list[tuple[Block, Slot]] = []
        self._outs: list[tuple[Block, Slot]] = []
        self._ins: list[tuple[Slot, Block]] = []
        self._begun = False
        self._pinned: dict[int, list[Slot]] = {}
        self._swapped_out = 0
        self._swapped_in = 0

    @property
    def use(self) -> OffloadUse:
        pool = self.pool
        return OffloadUse(pool.total, pool.owned, pool.cached, self._swapped_out, self._swapped_in, self._disk.use)

    @property
    def holdings(self) -> Mapping[Branch, HostHolding]:
        """Which swapped-out branch owns what."""
        return self._holdings

    @property
    def pending(self) -> bool:
        return self._begun or bool(self._outs or self._evicted) or any(not f.unread for f in self._unfilled.values())

    def advance(self) -> None:
        for slot, there in self._disk.advance():
            for branch, fill in list(self._unfilled.items()):
                if slot not in fill.unread:
                    continue
                fill.unread.remove(slot)
                if not there:
                    self._cancel(branch)
                    self._kv.release(branch)
                    branch.unload()

    def give_way(self, request: Request, step: int) -> bool:
        filled = [branch for branch in request.live if branch.life is Life.RUNNING or branch in self._ready]
        blocks = dict.fromkeys(block for branch in filled for table in self._filled(branch) for block in table)
        blocks.pop(SCRATCH, None)
        tokens = len(blocks) * self._kv.block_tokens // len(self._kv.groups)
        if blocks and self.choice.prefers_swap(tokens):
            self._swap_out(filled, list(blocks), step)
        for branch in request.live:
            self._ready.discard(branch)
            self._cancel(branch)
        return any(branch in self._holdings for branch in request.live)

    def find(self, branch: Branch, hit: Hit) -> HostLoad | None:
        if branch in self._holdings:
            waiting = [other for other in branch.request.live if other.life is Life.WAITING and other in self._holdings]
            return HostLoad(tuple(self._from_holding(other) for other in waiting), swapped=True)
        if branch is not branch.request.leader:
            return None
        tables = places_behind(branch, hit, self._kv.groups, self._names, self._place)
        if not tables[0]:
            return None
        tokens = hit.whole_tokens + len(tables[0]) * self._kv.block_tokens
        return HostLoad((BranchLoad(branch, hit.without_part(), tables, tokens),), swapped=False)

    def begin(self, load: Load, step: int) -> bool:
        assert isinstance(load, HostLoad)
        if not load.swapped:
            (one,) = load.branches
            still = self.find(one.branch, one.hit)
            if still is None:
                return False
            load = still
        places = load.places
        slots = [place for place in places if isinstance(place, Slot)]
        for slot in slots:
            self.pool.pin(slot)
        if len(places) - len(slots) > self.pool.available:
            for slot in slots:
                self.pool.unpin(slot)
            return False
        filled = {place: place if isinstance(place, Slot) else self._disk.read(place) for place in places}
        hits = [block for one in load.branches for block in one.hit.shared]
        for block in hits:
            self._kv.pool.hold(block)
        blocks = {place: self._kv.pool.take(group) for place, group in places.items()}
        for one in load.branches:
            self._adopt(one, blocks)
        for block in (*hits, *blocks.values()):
            self._kv.pool.drop(block)
        copies = [(filled[place], block) for place, block in blocks.items()]
        unread = {slot for slot in filled.values() if not self._disk.filled(slot)}
        if unread:
            assert not load.swapped, "a preempted request owns what nobody has filled"
            (one,) = load.branches
            self._unfilled[one.branch] = Fill(copies, unread)
            return True
        self._ins += copies
        self._begun = True
        for one in load.branches:
            one.branch.last_step = step
            self._filling[one.branch] = step
        return True

    def ready(self, branch: Branch) -> bool:
        return branch in self._ready

    def started(self, branch: Branch) -> None:
        self._ready.remove(branch)

    def end(self, branch: Branch, accepted: int | None) -> None:
        self._cancel(branch)
        self._ready.discard(branch)
        self._drop_holding(branch)
        digests = self._names.end(branch)
        if accepted is not None:
            for digest in digests[accepted // self._kv.block_tokens :]:
                for group in range(len(self._kv.groups)):
                    self.pool.forget((group, digest))
                    self._disk.forget((group, digest))

    def take(self, step: int) -> tuple[tuple[SwapOut, ...], tuple[SwapIn, ...]]:
        for block, slot in self._evicted:
            self._kv.pin(block, step)
            self._spilled.setdefault(step, []).append(slot)
        for branch in [branch for branch, fill in self._unfilled.items() if not fill.unread]:
            self._ins += self._unfilled.pop(branch).copies
            branch.last_step = step
            self._filling[branch] = step
        outs, ins = [*self._evicted, *self._outs], self._ins
        if outs or ins:
            self._pinned[step] = [*(slot for _, slot in outs), *(slot for slot, _ in ins)]
        self._evicted, self._outs, self._ins, self._begun = [], [], [], False
        self._swapped_out += len(outs)
        self._swapped_in += len(ins)
        return (
            tuple([SwapOut(block.id, slot.id) for block, slot in outs]),
            tuple([SwapIn(slot.id, block.id) for slot, block in ins]),
        )

    def settle(self, step: int, seconds: float, prefill_tokens: int, full_rate: float | None) -> None:
        self.choice.observe(seconds, prefill_tokens, full_rate)
        for slot in self._spilled.pop(step, ()):
            self._disk.write(slot)
        for slot in self._pinned.pop(step, ()):
            self.pool.unpin(slot)
        for branch in [branch for branch, its in self._filling.items() if its == step]:
            del self._filling[branch]
            self._ready.add(branch)
            self._drop_holding(branch)
            branch.settle(branch.scheduled)
            self._kv.commit(branch)

    def check(self, *, idle: bool) -> None:
        pool = self.pool
        holders = Counter(
            slot
            for holding in self._holdings.values()
            for table in holding.tables
            for slot in table
            if slot is not None
        )
        planned = [slot for slots in self._pinned.values() for slot in slots]
        filling = [slot for fill in self._unfilled.values() for slot, _ in fill.copies]
        pins = Counter(
            [
                *self._disk.slots,
                *filling,
                *planned,
                *(slot for _, slot in (*self._evicted, *self._outs)),
                *(slot for slot, _ in self._ins),
            ]
        )
        free, cached = set(pool.free_slots()), set(pool.cached_slots())
        wrong = [
            *(f"{slot}: {holders[slot]} tables have it" for slot in pool.slots if slot.holders != holders[slot]),
            *(f"{slot}: {pins[slot]} transfers need it" for slot in pool.slots if slot.pins != pins[slot]),
            *(f"{slot}: free with content" for slot in free if slot.key is not None),
            *(f"{slot}: cached without content" for slot in cached if slot.key is None),
            *(
                f"{slot}: not in one state"
                for slot in pool.slots
                if (slot in free) + (slot in cached) + bool(holders[slot] or pins[slot]) != 1
            ),
        ]
        if idle and pool.owned != len(self._disk.slots):
            wrong.append(f"{pool.owned - len(self._disk.slots)} slots are owned by nobody")
        if idle and (self._filling or self._ready or self._unfilled):
            wrong.append(f"{len(self._filling) + len(self._ready) + len(self._unfilled)} ended branches are loading")
        if wrong:
            raise BooksDoNotBalance("; ".join(wrong))

    def _evicting(self, block: Block) -> None:
        """The device's pool gives this cached block to somebody else: keep its content, if there is room."""
        key = self._names.key(block)
        if key is None:
            return
        known = self.pool.find(key)
        if known is not None:
            self.pool.touch(known)
        elif self.pool.available:
            slot = self.pool.take()
            self.pool.name(slot, key)
            self._evicted.append((block, slot))

    def _cancel(self, branch: Branch) -> None:
        """The branch loads no longer."""
        self._filling.pop(branch, None)
        fill = self._unfilled.pop(branch, None)
        if fill is not None:
            for slot, _ in fill.copies:
                self.pool.unpin(slot)

    def _filled(self, branch: Branch) -> list[list[Block]]:
        """The blocks with the branch's kept tokens, per group; SCRATCH behind the window."""
        kept = _kept(branch)
        count = -(-kept // self._kv.block_tokens)
        tables = []
        for group, table in zip(self._kv.groups, self._kv.holdings[branch].tables, strict=True):
            first = first_needed(group, kept)
            tables.append([SCRATCH] * first + table[first:count])
        return tables

    def _swap_out(self, branches: Sequence[Branch], blocks: Sequence[Block], step: int) -> None:
        """Give each block a slot, and plan the copies of those that the host has no copy of. Nothing without room.

        What the disk still reads is no copy: it may fail, and the device's content would be lost.
        """
        slots: dict[Block, Slot] = {}
        for block in blocks:
            key = self._names.key(block)
            known = None if key is None else self.pool.find(key)
            if known is not None and self._disk.filled(known):
                self.pool.pin(known)
                slots[block] = known
        copied = list(slots.values())
        if len(blocks) - len(slots) <= self.pool.available:
            for block in blocks:
                if block not in slots:
                    slots[block] = self._copy_out(block, step)
            for branch in branches:
                self._hold(branch, slots)
        for slot in copied:
            self.pool.unpin(slot)

    def _copy_out(self, block: Block, step: int) -> Slot:
        slot = self.pool.take()
        key = self._names.key(block)
        if key is not None:
            self.pool.name(slot, key)
        self._kv.pin(block, step)
        self._outs.append((block, slot))
        return slot

    def _hold(self, branch: Branch, slots: dict[Block, Slot]) -> None:
        tables = tuple(tuple(slots.get(block) for block in table) for table in self._filled(branch))
        for table in tables:
            for slot in table:
                if slot is not None:
                    self.pool.hold(slot)
        self._holdings[branch] = HostHolding(tables, _kept(branch))

    def _drop_holding(self, branch: Branch) -> None:
        """Tail first, so that a cached prefix outlives its ends."""
        holding = self._holdings.pop(branch, None)
        if holding is not None:
            for table in holding.tables:
                for slot in reversed(table):
                    if slot is not None:
                        self.pool.drop(slot)

    def _from_holding(self, branch: Branch) -> BranchLoad:
        """What the device's prefix cache still has is not copied."""
        holding = self._holdings[branch]
        hit = self._kv.find(branch).without_part()
        first = hit.whole_tokens // self._kv.block_tokens
        tables = tuple(table[first:] for table in holding.tables)
        return BranchLoad(branch, hit, tables, max(holding.tokens, hit.whole_tokens))

    def _place(self, key: ContentKey) -> Place | None:
        return self.pool.find(key) or (key if key in self._disk else None)

    def _adopt(self, one: BranchLoad, blocks: Mapping[Place, Block]) -> None:
        tables = [
            [*hits, *(SCRATCH if place is None else blocks[place] for place in table)]
            for hits, table in zip(one.hit.blocks, one.tables, strict=True)
        ]
        self._kv.adopt(one.branch, tables, tokens=one.tokens, indexed=one.hit.whole_tokens)
        one.branch.load(one.tokens, computed=one.hit.whole_tokens)


def _kept(branch: Branch) -> int:
    """Tokens whose KV goes to the host. At least one is left to compute, so that the branch samples when it is back."""
    return min(branch.scheduled, branch.known - 1)
