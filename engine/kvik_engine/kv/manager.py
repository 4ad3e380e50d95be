"""Who holds which block: block tables of the branches, sharing, copy-on-write, windows, release.

A block is reused only when nobody is left: no table has it, no planned step touches it, no copy reads it. A branch that
leaves while a planned step still works on it turns its holds into pins, and settling that step takes the pins away.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kvik_engine.kv.block import SCRATCH, Block
from kvik_engine.kv.block_pool import BlockPool
from kvik_engine.kv.prefix_cache import Hit, PartHit, PrefixCache
from kvik_engine.kv.windows import first_needed, most_at_once
from kvik_engine.request import Branch
from kvik_engine.step import BlockCopy, BlockId, KVGroup

Tables = tuple[tuple[BlockId, ...], ...]
"""One block table per KV group."""


@dataclass(slots=True)
class Holding:
    """What one branch holds: a block table per KV group, and how many leading blocks the prefix cache was told of.

    The two token counts spare most steps a look at the tables: nothing changes between two ends of blocks.
    """

    tables: tuple[list[Block], ...]
    firsts: list[int]
    """Per group, the index of the first entry that is not behind the window; those before it are SCRATCH."""
    indexed: int
    writable: int
    """Tokens before this one that the branch has yet to compute go to blocks of its own."""
    due: int = 0
    """Computed tokens from which on `commit` has something to do."""

    @property
    def length(self) -> int:
        """Entries of each table."""
        return len(self.tables[0])

    def blocks(self) -> Iterable[Block]:
        """All blocks held."""
        for table, first in zip(self.tables, self.firsts, strict=True):
            yield from table[first:] if first else table


@dataclass(frozen=True, slots=True)
class Started:
    """The tables of a branch that starts, and the copies that fill its last block where a hit ends within one."""

    tables: Tables
    copies: tuple[BlockCopy, ...]


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
    """Empty where nothing is new."""
    copies: tuple[OwnCopy, ...]


NO_CHANGE = Prepared((), ())
"""What `KVManager.prepare` gives where `has_room` says that nothing is needed."""


class KVManager:
    """Block tables over one pool. All groups have blocks of the same number of tokens and bytes."""

    def __init__(self, groups: Sequence[KVGroup], blocks: int, cache: PrefixCache, *, step_tokens: int) -> None:
        """`step_tokens`: the most tokens that one step computes. What a window group holds depends on it."""
        assert len({(group.block_tokens, group.block_bytes) for group in groups}) == 1, "one pool, one block size"
        self.block_tokens = groups[0].block_tokens
        self.pool = BlockPool(blocks, cache.forget)
        self.groups = tuple(groups)
        self._cache = cache
        self._step_tokens = step_tokens
        self._windows = {index: group.window for index, group in enumerate(groups) if group.window is not None}
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

    def found_blocks(self) -> Iterable[Block]:
        """Every block that the prefix cache can find, for checks."""
        return self._cache.blocks()

    def needed(self, lengths: Sequence[int], *, shared: int = 0) -> int:
        """Blocks, over all groups, that branches of these lengths need at once when they share their first tokens."""
        return sum(most_at_once(group, lengths, shared=shared, step_tokens=self._step_tokens) for group in self.groups)

    def whole(self, tokens: int) -> int:
        """Blocks that `tokens` tokens fill and branches with these tokens in common share, windows left out."""
        return tokens // self.block_tokens * (len(self.groups) - len(self._windows))

    def always_shared(self, tokens: int) -> int:
        """How many of their first `tokens` tokens branches can share again after preemption, from one of them.

        With windows none: that one may have given back what is behind its window.
        """
        return 0 if self._windows else tokens

    def growth(self, branch: Branch, tokens: int) -> int:
        """Blocks that the branch still takes until it has `tokens` tokens, beyond those that it holds or gives back."""
        holding = self._holdings.get(branch)
        if holding is None:
            return self.needed([tokens])
        blocks = 0
        for group, first in zip(self.groups, holding.firsts, strict=True):
            most = most_at_once(group, [tokens], shared=0, step_tokens=self._step_tokens)
            blocks += max(0, most - (holding.length - first))
        return blocks

    def held(self, branch: Branch) -> int:
        """Blocks in the branch's tables; none while it waits."""
        holding = self._holdings.get(branch)
        return 0 if holding is None else sum(holding.length - first for first in holding.firsts)

    def in_flight(self, branch: Branch) -> bool:
        """Whether a planned step still works on blocks that the branch holds or held."""
        return branch.last_step is not None and branch.last_step > self._settled

    def reclaimable(self, branches: Iterable[Branch]) -> int:
        """Blocks that come back when all these branches are released."""
        holds = Counter(
            block for branch in branches if branch in self._holdings for block in self._holdings[branch].blocks()
        )
        return sum(block.holders == count for block, count in holds.items())

    def find(self, branch: Branch) -> Hit:
        """What the prefix cache has for the branch, so that at least one token is left to compute.

        No part of a block where the pool is so small that its source would be in the way of the branch itself.
        """
        known = len(branch.tokens)
        hit = self._cache.find(branch, known - 1)
        if hit.part and self.to_start(hit, known) > self.pool.available:
            return hit.without_part()
        return hit

    def idle(self, hit: Hit) -> int:
        """How many blocks of the hit are cached now and become owned when taken."""
        return sum(block.idle for block in hit.shared) + sum(block.idle for block in hit.sources)

    def to_start(self, hit: Hit, upto: int) -> int:
        """How many blocks fewer are available when a branch has started from `hit` and may write up to `upto`."""
        return self.between(hit.whole_tokens, upto) + self.idle(hit)

    def between(self, start: int, upto: int) -> int:
        """Blocks, over all groups, behind the whole ones of the first `start` tokens for tokens up to `upto`."""
        return (-(-upto // self.block_tokens) - start // self.block_tokens) * len(self.groups)

    def start(self, branch: Branch, hit: Hit, step: int) -> Started:
        """The branch takes what the prefix cache found for it. A part of a block is copied by step `step`."""
        assert branch not in self._holdings
        take = self.pool.hold_common if hit.common else self.pool.hold
        for block in hit.shared:
            take(block)
        firsts = [first_needed(group, hit.whole_tokens) for group in self.groups]
        holding = Holding(
            tuple(list(blocks) for blocks in hit.blocks),
            firsts,
            indexed=hit.whole_tokens // self.block_tokens,
            writable=hit.whole_tokens,
        )
        self._holdings[branch] = holding
        copies = self._copy_part(holding, hit.part, step) if hit.part else ()
        return Started(self.tables(branch), copies)

    def adopt(self, branch: Branch, tables: Sequence[Sequence[Block]], *, tokens: int, indexed: int) -> None:
        """The branch becomes one more holder of blocks that hold, or are about to get, its first `tokens` tokens.

        Entries behind a window are left out. Of the first `indexed` tokens the prefix cache knows.
        """
        assert branch not in self._holdings
        firsts = [first_needed(group, tokens) for group in self.groups]
        own = tuple([SCRATCH] * first + list(table[first:]) for table, first in zip(tables, firsts, strict=True))
        holding = Holding(own, firsts, indexed=indexed // self.block_tokens, writable=tokens)
        for block in holding.blocks():
            assert block is not SCRATCH, "a block of the window is missing"
            self.pool.hold(block)
        self._holdings[branch] = holding

    def can_fork(self, source: Branch, tokens: int) -> bool:
        """Whether `source` still holds all that a branch needs to go on from its first `tokens` tokens."""
        holding = self._holdings[source]
        return all(
            first <= first_needed(group, tokens) for group, first in zip(self.groups, holding.firsts, strict=True)
        )

    def fork(self, source: Branch, target: Branch, tokens: int) -> Tables:
        """`target` takes the blocks of `source` that cover `tokens` tokens; returns its tables."""
        assert target not in self._holdings
        assert self.can_fork(source, tokens), "the source has moved on"
        held = self._holdings[source]
        count = -(-tokens // self.block_tokens)
        assert held.length >= count, "the source has not come that far"
        holding = Holding(
            tuple(table[:count] for table in held.tables),
            list(held.firsts),
            indexed=min(held.indexed, tokens // self.block_tokens),
            writable=tokens,
        )
        held.writable = min(held.writable, tokens)
        for block in holding.blocks():
            self.pool.hold(block)
        self._holdings[target] = holding
        target.trail = source.trail[: holding.indexed]
        return self.tables(target)

    def tables(self, branch: Branch) -> Tables:
        """The branch's block tables as ids."""
        return tuple(tuple([block.id for block in table]) for table in self._holdings[branch].tables)

    def has_room(self, branch: Branch, upto: int) -> bool:
        """Whether tokens [scheduled, upto) can be written without `prepare`, as far as is known at a glance."""
        return upto <= self._holdings[branch].writable

    def missing(self, branch: Branch, upto: int) -> int:
        """Blocks that `prepare` would take, over all groups."""
        holding = self._holdings[branch]
        index, offset = divmod(branch.scheduled, self.block_tokens)
        copies = sum(table[index].holders > 1 for table in holding.tables) if offset else 0
        return copies + max(0, self.between(holding.length * self.block_tokens, upto))

    def prepare(self, branch: Branch, upto: int, step: int) -> Prepared:
        """Make tokens [scheduled, upto) writable by step `step`. `missing` blocks must be available.

        A shared, partly filled block is copied by its first writer; the last holder writes in place.
        """
        copies = self._own(branch, step)
        holding = self._holdings[branch]
        tables = holding.tables
        lacking = -(-upto // self.block_tokens) - holding.length
        holding.writable = (holding.length + max(0, lacking)) * self.block_tokens
        if lacking <= 0:
            return Prepared((), copies)
        new_blocks: list[tuple[BlockId, ...]] = []
        for group, table in enumerate(tables):
            taken = [self.pool.take(group) for _ in range(lacking)]
            table.extend(taken)
            new_blocks.append(tuple([block.id for block in taken]))
        return Prepared(tuple(new_blocks), copies)

    def commit(self, branch: Branch) -> None:
        """Tell the prefix cache of blocks that became whole by computed, accepted tokens; leave what is behind windows.

        Steps in flight start behind the computed tokens, so they read nothing that is given back here.
        """
        holding = self._holdings[branch]
        if branch.computed < holding.due:
            return
        whole = branch.computed // self.block_tokens
        if whole > holding.indexed:
            self._index(branch, holding, whole * self.block_tokens)
        for group in self._windows:
            table, first = holding.tables[group], first_needed(self.groups[group], branch.computed)
            for index in range(holding.firsts[group], first):
                self.pool.drop(table[index])
                table[index] = SCRATCH
                holding.firsts[group] = index + 1
        behind = [(holding.firsts[group] + 1) * self.block_tokens + window for group, window in self._windows.items()]
        holding.due = min([(whole + 1) * self.block_tokens, *behind])

    def release(self, branch: Branch, accepted: int | None = None) -> None:
        """Give back all blocks: for finish, abort and preemption alike. Tail first, so that a prefix outlives its ends.

        `accepted` is how many tokens of the branch count, when some behind a stop string do not: blocks with later
        tokens are forgotten by the prefix cache. All others it keeps, the last, partly filled one too.
        A branch that holds nothing is fine (aborted before it ever ran).
        """
        holding = self._holdings.pop(branch, None)
        if holding is None:
            if accepted is not None:
                self._forget_behind(branch, accepted)
            return
        kept = branch.computed if accepted is None else min(branch.computed, accepted)
        for block in self._unaccepted(holding, kept):
            if block.entry is not None:
                self.pool.forget(block)
        if all(table[kept // self.block_tokens].holders == 1 for table in holding.tables if kept % self.block_tokens):
            self._index(branch, holding, kept)
        in_flight = branch.last_step if self.in_flight(branch) else None
        for index in reversed(range(holding.length)):
            for table, first in zip(holding.tables, holding.firsts, strict=True):
                if index < first:
                    continue
                if in_flight is not None:
                    self.pin(table[index], in_flight)
                self.pool.drop(table[index])

    def pin(self, block: Block, step: int) -> None:
        """Step `step` reads or writes the owned block: it is not reused before that is settled."""
        self.pool.pin(block)
        self._pinned.setdefault(step, []).append(block)

    def settle(self, step: int) -> None:
        """Step `step` is done: what was pinned for it is no longer read or written. Steps are settled in order."""
        self._settled = step
        for block in self._pinned.pop(step, ()):
            self.pool.unpin(block)

    def _index(self, branch: Branch, holding: Holding, tokens: int) -> None:
        since = holding.indexed * self.block_tokens
        self.pool.uncache(self._cache.add(branch, tokens, holding.tables, since=since))
        holding.indexed = tokens // self.block_tokens

    def _unaccepted(self, holding: Holding, kept: int) -> Iterable[Block]:
        """Blocks that the branch alone holds and that have tokens behind the first `kept`, the last ones first."""
        for index in reversed(range(kept // self.block_tokens, holding.length)):
            yield from (table[index] for table in holding.tables if table[index].holders == 1)

    def _forget_behind(self, branch: Branch, accepted: int) -> None:
        """Drop what a preempted branch left in the cache behind its accepted tokens, unless others use it."""
        hit = self._cache.find(branch, len(branch.tokens))
        if hit.tokens <= accepted:
            return
        behind = [table[accepted // self.block_tokens :] for table in hit.blocks]
        for block in [*hit.sources, *(block for blocks in behind for block in reversed(blocks))]:
            if block.entry is not None and block.idle:
                self.pool.forget(block)

    def _copy_part(self, holding: Holding, part: PartHit, step: int) -> tuple[BlockCopy, ...]:
        """A block of the branch's own for the part that is found, and the copies that fill it.

        All sources are pinned before a block is taken, so that none is reused for it.
        """
        for source in part.sources:
            self.pool.hold(source)
            self.pin(source, step)
            self.pool.drop(source)
        copies: list[BlockCopy] = []
        for group, (table, source) in enumerate(zip(holding.tables, part.sources, strict=True)):
            own = self.pool.take(group)
            table.append(own)
            copies.append(BlockCopy(source.id, own.id))
        return tuple(copies)

    def _own(self, branch: Branch, step: int) -> tuple[OwnCopy, ...]:
        """Copies of the block that the branch writes into next, where others hold it too."""
        index, offset = divmod(branch.scheduled, self.block_tokens)
        if not offset:
            return ()
        copies: list[OwnCopy] = []
        for group, table in enumerate(self._holdings[branch].tables):
            shared = table[index]
            assert shared.entry is None, "a block with content to be found is never written again"
            if shared.holders > 1:
                own = self.pool.take(group)
                table[index] = own
                self.pin(shared, step)
                self.pool.drop(shared)
                copies.append(OwnCopy(group, index, BlockCopy(shared.id, own.id)))
        return tuple(copies)
