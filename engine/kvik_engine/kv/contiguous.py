"""Contiguous reservation: a request gets one run of blocks for all it may ever need. For comparison with paging only.

So did engines before paged attention (Kwon et al., SOSP '23, section 3): nothing is preempted and no table grows, but
most of the reserved slots stay empty, and runs are lost between others.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvik_engine.kv.block import Block
from kvik_engine.kv.manager import Holding, KVManager, Started
from kvik_engine.kv.prefix_cache import Hit, NoPrefixCache
from kvik_engine.request import Branch, Request
from kvik_engine.step import KVGroup


class ContiguousKVManager(KVManager):
    """Tables are complete from the start and never change. No prefix cache, no forks, no windows: one KV group."""

    def __init__(
        self, groups: Sequence[KVGroup], blocks: int, *, step_tokens: int, reserved_tokens: int | None = None
    ) -> None:
        """`reserved_tokens` for every request; None reserves for each its own prompt + max_tokens."""
        assert len(groups) == 1
        assert groups[0].window is None
        super().__init__(groups, blocks, NoPrefixCache(1), step_tokens=step_tokens)
        self._reserved_tokens = reserved_tokens

    def reservation(self, request: Request) -> int:
        """Blocks reserved for a request. Its last token needs none."""
        return -(-(self._reserved_tokens or request.token_limit - 1) // self.block_tokens)

    def find_run(self, count: int) -> list[Block] | None:
        """The first run of so many free blocks."""
        run: list[Block] = []
        for block in sorted(self.pool.free_blocks(), key=lambda block: block.id):
            if run and block.id != run[-1].id + 1:
                run.clear()
            run.append(block)
            if len(run) == count:
                return run
        return None

    def start(self, branch: Branch, hit: Hit, step: int) -> Started:
        """The branch takes its whole run. There must be one (ContiguousRoom)."""
        run = self.find_run(self.reservation(branch.request))
        assert run is not None
        self.pool.take_these(run)
        self._holdings[branch] = Holding((run,), [0], indexed=0, writable=len(run) * self.block_tokens)
        return Started(self.tables(branch), ())
