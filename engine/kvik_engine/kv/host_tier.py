"""KV in the host's memory: of preempted requests, and of prefixes that the device's pool evicted.

Both live in one pool of slots. A preempted request owns its slots until its blocks are filled again; a block that
several of its branches share goes out and comes back once. Prefixes are cached: the longest unused goes first.

Transfers are holders: what a step copies is pinned on both sides until that step is settled, so a branch that leaves
while its blocks are on the way cannot hand them on. Only an evicted block gets new content in the same step, since a
step's swap-outs come before anything that writes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from kvik_engine.kv.block import SCRATCH, Block
from kvik_engine.kv.check import BooksDoNotBalance
from kvik_engine.kv.content_names import ContentNames
from kvik_engine.kv.host_pool import HostPool, Slot
from kvik_engine.kv.manager import KVManager
from kvik_engine.kv.offload import Load, OffloadUse
from kvik_engine.kv.prefix_cache import Hit
from kvik_engine.kv.windows import first_needed
from kvik_engine.request import Branch, Life, Request
from kvik_engine.step import SwapIn, SwapOut

Slots = tuple[tuple[Slot | None, ...], ...]
"""One table per KV group; None for blocks behind the window."""


class SwapChoice(Protocol):
    """Which of two ways is better: scheduler.swap_or_recompute."""

    def prefers_swap(self, tokens: int) -> bool: ...

    def observe(self, seconds: float, prefill_tokens: int) -> None: ...


@dataclass(frozen=True, slots=True)
class HostHolding:
    """KV of a branch's first `tokens` tokens."""

    tables: Slots
    tokens: int


@dataclass(frozen=True, slots=True)
class BranchLoad:
    """How a branch gets its first `tokens` tokens: blocks that the device has, then those that the slots fill."""

    branch: Branch
    hit: Hit
    tables: Slots
    tokens: int


@dataclass(frozen=True, slots=True)
class HostLoad:
    """Loads of all branches that come back together. A slot that several of them have fills one block."""

    branches: tuple[BranchLoad, ...]
    swapped: bool
    """Whether it is their own KV, not a cached prefix that may be gone any time."""

    @property
    def slots(self) -> dict[Slot, int]:
        """Each slot once, with its group."""
        return {
            slot: group
            for one in self.branches
            for group, table in enumerate(one.tables)
            for slot in table
            if slot is not None
        }

    @property
    def missing(self) -> int:
        idle = {block for one in self.branches for block in one.hit.shared if block.idle}
        return len(self.slots) + len(idle)


class HostTier:
    """See kv.offload.Offload. The pool of the device tells it which blocks are evicted."""

    def __init__(self, kv: KVManager, pool: HostPool, names: ContentNames, choice: SwapChoice) -> None:
        kv.pool.evicting = self._evicting
        self.pool = pool
        self._kv = kv
        self._names = names
        self._choice = choice
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
        return OffloadUse(pool.total, pool.owned, pool.cached, self._swapped_out, self._swapped_in)

    @property
    def holdings(self) -> Mapping[Branch, HostHolding]:
        """Which swapped-out branch owns what."""
        return self._holdings

    @property
    def pending(self) -> bool:
        return self._begun or bool(self._outs or self._evicted)

    def give_way(self, request: Request, step: int) -> bool:
        filled = [branch for branch in request.live if branch.life is Life.RUNNING or branch in self._ready]
        blocks = dict.fromkeys(block for branch in filled for table in self._filled(branch) for block in table)
        blocks.pop(SCRATCH, None)
        tokens = len(blocks) * self._kv.block_tokens // len(self._kv.groups)
        if blocks and self._choice.prefers_swap(tokens):
            self._swap_out(filled, list(blocks), step)
        for branch in request.live:
            self._ready.discard(branch)
            self._filling.pop(branch, None)
        return any(branch in self._holdings for branch in request.live)

    def find(self, branch: Branch, hit: Hit) -> HostLoad | None:
        if branch in self._holdings:
            waiting = [other for other in branch.request.live if other.life is Life.WAITING and other in self._holdings]
            return HostLoad(tuple(self._from_holding(other) for other in waiting), swapped=True)
        if branch is not branch.request.leader:
            return None
        tables = self._cached_behind(branch, hit)
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
        hits = [block for one in load.branches for block in one.hit.shared]
        for block in hits:
            self._kv.pool.hold(block)
        slots = load.slots
        for slot in slots:
            self.pool.pin(slot)
        blocks = {slot: self._kv.pool.take(group) for slot, group in slots.items()}
        for one in load.branches:
            self._adopt(one, blocks, step)
        for block in (*hits, *blocks.values()):
            self._kv.pool.drop(block)
        self._ins += blocks.items()
        self._begun = True
        return True

    def ready(self, branch: Branch) -> bool:
        return branch in self._ready

    def started(self, branch: Branch) -> None:
        self._ready.remove(branch)

    def end(self, branch: Branch, accepted: int | None) -> None:
        self._filling.pop(branch, None)
        self._ready.discard(branch)
        self._drop_holding(branch)
        digests = self._names.end(branch)
        if accepted is not None:
            for digest in digests[accepted // self._kv.block_tokens :]:
                for group in range(len(self._kv.groups)):
                    self.pool.forget((group, digest))

    def take(self, step: int) -> tuple[tuple[SwapOut, ...], tuple[SwapIn, ...]]:
        for block, _ in self._evicted:
            self._kv.pin(block, step)
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

    def settle(self, step: int, seconds: float, prefill_tokens: int) -> None:
        self._choice.observe(seconds, prefill_tokens)
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
        pins = Counter(
            [*planned, *(slot for _, slot in (*self._evicted, *self._outs)), *(slot for slot, _ in self._ins)]
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
        if idle and pool.owned:
            wrong.append(f"{pool.owned} slots are owned by nobody")
        if idle and (self._filling or self._ready):
            wrong.append(f"{len(self._filling) + len(self._ready)} branches that ended are loading")
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

    def _filled(self, branch: Branch) -> list[list[Block]]:
        """The blocks with the branch's scheduled tokens, per group; SCRATCH behind the window."""
        count = -(-branch.scheduled // self._kv.block_tokens)
        tables = []
        for group, table in zip(self._kv.groups, self._kv.holdings[branch].tables, strict=True):
            first = first_needed(group, branch.scheduled)
            tables.append([SCRATCH] * first + table[first:count])
        return tables

    def _swap_out(self, branches: Sequence[Branch], blocks: Sequence[Block], step: int) -> None:
        """Give each block a slot, and plan the copies of those that the host has no copy of. Nothing without room."""
        slots: dict[Block, Slot] = {}
        for block in blocks:
            key = self._names.key(block)
            known = None if key is None else self.pool.find(key)
            if known is not None:
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
        self._holdings[branch] = HostHolding(tables, branch.scheduled)

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

    def _cached_behind(self, branch: Branch, hit: Hit) -> Slots:
        """Slots with the branch's blocks behind those of `hit`, per KV group; empty when the host has no more."""
        size, groups = self._kv.block_tokens, self._kv.groups
        first = whole = hit.whole_tokens // size
        tables: list[list[Slot | None]] = [[] for _ in groups]
        runs = [_run_at_the_end(blocks) for blocks in hit.blocks]
        for index in range(first, (len(branch.tokens) - 1) // size):
            digest = self._names.digest(branch, index)
            for number, table in enumerate(tables):
                table.append(self.pool.find((number, digest)))
                runs[number] = 0 if table[-1] is None else runs[number] + 1
            reach = [index + 1 - first_needed(group, (index + 1) * size) for group in groups]
            if all(run >= needed for run, needed in zip(runs, reach, strict=True)):
                whole = index + 1
            elif any(group.window is None and not run for group, run in zip(groups, runs, strict=True)):
                break
        needed = [first_needed(group, whole * size) - first for group in groups]
        return tuple(
            tuple(slot if n >= least else None for n, slot in enumerate(table[: whole - first]))
            for table, least in zip(tables, needed, strict=True)
        )

    def _adopt(self, one: BranchLoad, blocks: dict[Slot, Block], step: int) -> None:
        tables = [
            [*hits, *(SCRATCH if slot is None else blocks[slot] for slot in table)]
            for hits, table in zip(one.hit.blocks, one.tables, strict=True)
        ]
        self._kv.adopt(one.branch, tables, tokens=one.tokens, indexed=one.hit.whole_tokens)
        one.branch.load(one.tokens, step, computed=one.hit.whole_tokens)
        self._filling[one.branch] = step


def _run_at_the_end(blocks: Sequence[Block]) -> int:
    """How many blocks at the end are there."""
    return next((n for n, block in enumerate(reversed(blocks)) if block is SCRATCH), len(blocks))
