"""The counters and gauges that go out with every frame."""

from __future__ import annotations

from kvik_engine.ipc.messages import CoreStats
from kvik_engine.scheduler.scheduler import Scheduler

_SMOOTHING = 0.1
"""Weight of the newest step in the speed of all prompts."""


class Stats:
    """What the loop counts itself; everything else is read from the scheduler when a frame is made."""

    def __init__(self) -> None:
        self.steps = 0
        self.refused = 0
        self.step_seconds = 0.0
        self._any_prefill: float | None = None
        """Prompt tokens a second of all steps with any: what came, and so less than what can be computed."""

    def count_step(self, seconds: float, prefill_tokens: int) -> None:
        """A step was settled; it took `seconds` and computed so many tokens of prompts or recomputation."""
        self.steps += 1
        self.step_seconds += seconds
        if not prefill_tokens or seconds <= 0:
            return
        speed = prefill_tokens / seconds
        known = self._any_prefill
        self._any_prefill = speed if known is None else known + _SMOOTHING * (speed - known)

    def snapshot(self, scheduler: Scheduler) -> CoreStats:
        kv, counters, offload = scheduler.kv, scheduler.counters, scheduler.offload.use
        return CoreStats(
            step=self.steps,
            kv_blocks_total=kv.pool.total,
            kv_blocks_owned=kv.pool.owned,
            kv_blocks_cached=kv.pool.cached,
            kv_tokens=kv_tokens(scheduler),
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            waiting_prompt_tokens=scheduler.prompt_tokens_left,
            refused_total=self.refused,
            preemptions_recompute_total=counters.preemptions - counters.swaps,
            preemptions_swap_total=counters.swaps,
            swap_blocks_total=offload.total,
            swap_blocks_owned=offload.owned,
            swap_blocks_cached=offload.cached,
            swapped_out_blocks_total=offload.swapped_out,
            swapped_in_blocks_total=offload.swapped_in,
            disk_cache_blocks=offload.disk.blocks,
            disk_cache_written_total=offload.disk.written,
            disk_cache_read_total=offload.disk.read,
            disk_cache_failed_writes_total=offload.disk.failed_writes,
            disk_cache_failed_reads_total=offload.disk.failed_reads,
            prefix_query_tokens_total=counters.prefix_query_tokens,
            prefix_hit_tokens_total=counters.prefix_hit_tokens,
            prompt_tokens_total=counters.prompt_tokens,
            generation_tokens_total=counters.generation_tokens,
            prefill_tokens_per_second=scheduler.prefill_rate.tokens_per_second or self._any_prefill,
            step_seconds_total=self.step_seconds,
        )


def kv_tokens(scheduler: Scheduler) -> int:
    """Token slots of owned blocks that hold KV, over all KV groups: all but the empty ones at the ends of the tables.

    A partly filled block that forks still share is counted empty once for each of them, for one step.
    """
    kv = scheduler.kv
    slots = kv.pool.owned * kv.block_tokens
    # A list, not a generator: this is looked at in every step, for every branch.
    size = kv.block_tokens
    empty = sum([len(holding.tables[0]) * size - branch.computed for branch, holding in kv.holdings.items()])
    return max(0, slots - empty * len(kv.groups))
