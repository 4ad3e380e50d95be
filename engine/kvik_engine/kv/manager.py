"""Who holds which block: block tables of the branches, sharing, copy-on-write, release.

A block is reused only when nobody is left: no table has it, no planned step touches it, no copy reads it. A branch that
leaves while a planned step still works on it turns its holds into pins, and settling that step takes the pins away.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kvik_engine.kv.block import Block
from kvik_engine.kv.block_pool import BlockPool
from kvik_engine.kv.prefix_hash import PrefixCache
from kvik_engine.request import Branch
from kvik_engine.step import BlockCopy, BlockId, KVGroup

Tables = tuple[tuple[BlockId, ...], ...]
"""One block table per KV group."""


@dataclass(slots=True)
class Holding:
    """What one branch holds: a block table per KV group, and how many leading blocks the prefix cache was told of."""

    tables: tuple[list[Block], ...]
    indexed: int


@dataclass(frozen=True, slots=True)
class OwnCopy:
    """A branch got its own copy of a shared block: entry `index` of the table of `group`."""

    group: int
    index: int
    copy: BlockCopy


@dataclass(frozen=True, slots=True)
class Prepared:
    """Room for the next tokens of a branch: blocks appended to its tables, and copies of shared ones."""

    new_blocks: Tables
    copies: tuple[OwnCopy, ...]


class KVManager:
    """Block tables over one pool. All groups have blocks of the same number of tokens and bytes."""

    def __init__(self, groups: Sequence[KVGroup], blocks: int, cache: PrefixCache) -> None:
        assert len({(group.block_tokens, group.block_bytes) for group in groups}) == 1, "one pool, one block size"
        self.block_tokens = groups[0].block_tokens
        self.pool = BlockPool(blocks, cache.forget)
        self._cache = cache
        self._groups = len(groups)
        self.no_change = Prepared(((),) * len(groups), ())
        """What `prepare` gives where `has_room` says that nothing is needed."""
        self._holdings: dict[Branch, Holding] = {}
        self._pinned: dict[int, list[Block]] = {}
        self._settled = 0

    @property
    def returning(self) -> int:
        """Blocks that only planned steps hold: they come back when these steps are settled."""
        return len({block for block in self.pins if not block.holders})

    @property
    def holdings(self) -> dict[Branch, Holding]:
        """Who holds what, for checks and counters. Not to be changed."""
        return self._holdings

    @property
    def pins(self) -> list[Block]:
        """One entry per pin, for checks."""
        return [block for blocks in self._pinned.values() for block in blocks]

    def needed(self, tokens: int) -> int:
        """Blocks for `tokens` tokens, over all groups."""
        return -(-tokens // self.block_tokens) * self._groups

    def whole(self, tokens: int) -> int:
        """Blocks that `tokens` tokens fill, over all groups: what branches with these tokens in common can share."""
        return tokens // self.block_tokens * self._groups

    def held(self, branch: Branch) -> int:
        """Blocks in the branch's tables."""
        return len(self._holdings[branch].tables[0]) * self._groups

    def in_flight(self, branch: Branch) -> bool:
        """Whether a planned step still works on blocks that the branch holds or held."""
        return branch.last_step is not None and branch.last_step > self._settled

    def reclaimable(self, branches: Iterable[Branch]) -> int:
        """Blocks that come back when all these branches are released."""
        holds = Counter(
            block
            for branch in branches
            if branch in self._holdings
            for table in self._holdings[branch].tables
            for block in table
        )
        return sum(block.holders == count for block, count in holds.items())

    def find(self, branch: Branch) -> list[tuple[Block, ...]]:
        """Leading blocks that the prefix cache has for the branch, so that at least one token is left to compute."""
        return self._cache.find(branch, len(branch.tokens) - 1)

    def idle(self, hits: Sequence[tuple[Block, ...]]) -> int:
        """How many of the blocks are cached now and become owned when taken."""
        return sum(block.holders == block.pins == 0 for blocks in hits for block in blocks)

    def start(self, branch: Branch, hits: Sequence[tuple[Block, ...]]) -> Tables:
        """The branch takes what the prefix cache found for it; returns its tables."""
        assert branch not in self._holdings
        tables: tuple[list[Block], ...] = tuple([blocks[group] for blocks in hits] for group in range(self._groups))
        for table in tables:
            for block in table:
                self.pool.hold(block)
        self._holdings[branch] = Holding(tables, indexed=len(hits))
        return self.tables(branch)

    def fork(self, source: Branch, target: Branch, tokens: int) -> Tables:
        """`target` takes the blocks of `source` that cover `tokens` tokens; returns its tables."""
        assert target not in self._holdings
        held = self._holdings[source]
        count = -(-tokens // self.block_tokens)
        assert len(held.tables[0]) >= count, "the source has not come that far"
        tables = tuple(table[:count] for table in held.tables)
        for table in tables:
            for block in table:
                self.pool.hold(block)
        self._holdings[target] = Holding(tables, indexed=min(held.indexed, tokens // self.block_tokens))
        return self.tables(target)

    def tables(self, branch: Branch) -> Tables:
        """The branch's block tables as ids."""
        return tuple(tuple([block.id for block in table]) for table in self._holdings[branch].tables)

    def has_room(self, branch: Branch, upto: int) -> bool:
        """Whether tokens [scheduled, upto) can be written without a new block."""
        tables = self._holdings[branch].tables
        if upto > len(tables[0]) * self.block_tokens:
            return False
        index, offset = divmod(branch.scheduled, self.block_tokens)
        return not offset or all(table[index].holders == 1 for table in tables)

    def missing(self, branch: Branch, upto: int) -> int:
        """Blocks that `prepare` would take, over all groups."""
        tables = self._holdings[branch].tables
        index, offset = divmod(branch.scheduled, self.block_tokens)
        copies = sum(table[index].holders > 1 for table in tables) if offset else 0
        return copies + max(0, self.needed(upto) - len(tables[0]) * self._groups)

    def prepare(self, branch: Branch, upto: int, step: int) -> Prepared:
        """Make tokens [scheduled, upto) writable by step `step`. `missing` blocks must be available.

        A shared, partly filled block is copied by its first writer; the last holder writes in place.
        """
        copies = self._own(branch, step)
        tables = self._holdings[branch].tables
        lacking = -(-upto // self.block_tokens) - len(tables[0])
        if lacking <= 0:
            return Prepared(self.no_change.new_blocks, copies)
        new_blocks: list[tuple[BlockId, ...]] = []
        for group, table in enumerate(tables):
            taken = [self.pool.take(group) for _ in range(lacking)]
            table.extend(taken)
            new_blocks.append(tuple([block.id for block in taken]))
        return Prepared(tuple(new_blocks), copies)

    def commit(self, branch: Branch) -> None:
        """Tell the prefix cache of blocks that became whole by computed, accepted tokens."""
        holding = self._holdings[branch]
        whole = branch.computed // self.block_tokens
        while holding.indexed < whole:
            index = holding.indexed
            self._cache.add(branch, index, [table[index] for table in holding.tables])
            holding.indexed += 1

    def release(self, branch: Branch, accepted: int | None = None) -> None:
        """Give back all blocks: for finish, abort and preemption alike. Tail first, so that a prefix outlives its ends.

        `accepted` is how many tokens of the branch count, when some behind a stop string do not: blocks with later
        tokens are forgotten by the prefix cache. A branch that holds nothing is fine (aborted before it ever ran).
        """
        holding = self._holdings.pop(branch, None)
        if holding is None:
            if accepted is not None:
                self._discard_behind(branch, accepted)
            return
        kept = len(branch.tokens) if accepted is None else accepted
        in_flight = branch.last_step if self.in_flight(branch) else None
        for index in reversed(range(len(holding.tables[0]))):
            for table in holding.tables:
                block = table[index]
                if (index + 1) * self.block_tokens > kept and block.holders == 1:
                    self._cache.forget(block)
                if in_flight is not None:
                    self._pin(block, in_flight)
                self.pool.drop(block)

    def _discard_behind(self, branch: Branch, accepted: int) -> None:
        """Drop what a preempted branch left in the cache behind its accepted tokens, unless others use it."""
        for blocks in self._cache.find(branch, len(branch.tokens))[accepted // self.block_tokens :]:
            for block in blocks:
                if block.holders == block.pins == 0:
                    self.pool.discard(block)

    def settle(self, step: int) -> None:
        """Step `step` is done: what was pinned for it is no longer read or written. Steps are settled in order."""
        self._settled = step
        for block in self._pinned.pop(step, ()):
            self.pool.unpin(block)

    def _own(self, branch: Branch, step: int) -> tuple[OwnCopy, ...]:
        """Copies of the block that the branch writes into next, where others hold it too."""
        index, offset = divmod(branch.scheduled, self.block_tokens)
        if not offset:
            return ()
        copies: list[OwnCopy] = []
        for group, table in enumerate(self._holdings[branch].tables):
            shared = table[index]
            assert shared.digest is None, "a block with content to be found is never written again"
            if shared.holders > 1:
                own = self.pool.take(group)
                table[index] = own
                self._pin(shared, step)
                self.pool.drop(shared)
                copies.append(OwnCopy(group, index, BlockCopy(shared.id, own.id)))
        return tuple(copies)

    def _pin(self, block: Block, step: int) -> None:
        self.pool.pin(block)
        self._pinned.setdefault(step, []).append(block)
