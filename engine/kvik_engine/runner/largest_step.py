"""What the largest step takes, measured before the KV cache is sized: that much is kept free for it.

It is a prefill of max_batch_tokens at the end of the longest context, and every row samples with every parameter set.
How much a step takes there depends on the backend: on a CPU the past is gathered and masked, a layer at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kvik_engine.attention.backend import AttentionBackend, AttentionBatch, StepAttention
from kvik_engine.attention.kv_cache import KVCache
from kvik_engine.attention.kv_layout import KVFormats
from kvik_engine.models.kv_groups import kv_layout
from kvik_engine.models.registry import Model
from kvik_engine.params import SamplingParams
from kvik_engine.runner.memory import MemoryUse, PeakMemory
from kvik_engine.runner.runner import RunnerLimits
from kvik_engine.sampling.batch import SamplingBatch, SamplingRow
from kvik_engine.sampling.sampler import sample
from kvik_engine.step import KVGroup


@dataclass(frozen=True, slots=True)
class CacheBounds:
    """What will bound the KV cache: as kv.sizing has it, beside a step that takes nothing. Bytes."""

    kv_cache_size: int | None = None
    memory_fraction: float = 1.0
    swap_space: int = 0
    """Of the device's own memory: 0 where the host's is another."""

    def most(self, memory: MemoryUse) -> int:
        """The largest cache that could be asked for; below 0 where there is no room."""
        total = memory.total - self.swap_space
        if self.kv_cache_size is not None:
            return min(self.kv_cache_size, total - memory.used)
        return int(self.memory_fraction * total) - memory.used


def deepest_context(groups: Sequence[KVGroup], limits: RunnerLimits, bounds: CacheBounds, device: torch.device) -> int:
    """`longest_context` in what is free now, with the weights loaded."""
    return longest_context(groups, limits, bounds.most(PeakMemory(device).read()))


def longest_context(groups: Sequence[KVGroup], limits: RunnerLimits, cache_bytes: int) -> int:
    """Tokens of the longest request that a KV cache of at most so many bytes could hold: no step lies deeper.

    Layers that see a window only are left out, so that it is never too little. The cache that is left beside the step
    may be smaller and hold less; then more was measured than a step can take.
    """
    block_bytes = sum(group.block_bytes for group in groups if group.window is None)
    if not block_bytes:
        return limits.max_tokens
    return min(limits.max_tokens, max(0, cache_bytes) // block_bytes * limits.block_tokens)


@torch.inference_mode()
def measure_step(
    model: Model,
    backend: AttentionBackend,
    limits: RunnerLimits,
    *,
    max_batch_tokens: int,
    context: int,
    dtype: torch.dtype,
    formats: KVFormats,
    device: torch.device,
) -> MemoryUse:
    """Run it over a cache of the scratch block alone: what it computes is never used."""
    tokens = min(max_batch_tokens, limits.max_tokens)
    rows = min(limits.max_requests, max_batch_tokens)
    start = max(0, context - tokens)
    peak = PeakMemory(device)
    layout = kv_layout(model.config, limits.block_tokens, formats)
    cache = KVCache(blocks=0, layout=layout, dtype=dtype, device=device)
    positions = torch.arange(start, start + tokens, device=device)
    hidden = model.forward(torch.zeros_like(positions), positions, _AtTheEndOnce(backend, cache, start, tokens))
    logits = model.logits(hidden[torch.zeros(rows, dtype=torch.int64, device=device)])
    everything = SamplingParams(
        max_tokens=1, seed=0, top_k=10, top_p=0.9, min_p=0.01, presence_penalty=1.0, repetition_penalty=1.1, logprobs=20
    )
    described = [SamplingRow(params=everything, choice=0, prompt_length=1)] * rows
    sample(logits, SamplingBatch(described, [1] * rows, torch.zeros((rows, 1), dtype=torch.int64, device=device)))
    return peak.read()


class _AtTheEndOnce(StepAttention):
    """In the first layer of each KV group the row has `start` tokens before it, in the others none: what a layer takes
    is free again before the next, and attending to a long past in all of them would only take long."""

    def __init__(self, backend: AttentionBackend, cache: KVCache, start: int, tokens: int) -> None:
        super().__init__(backend, _batches(cache, start, tokens), cache)
        short = [backend.plan(batch, cache) for batch in _batches(cache, 0, tokens)]
        attended: set[int] = set()
        for layer, place in enumerate(cache.layout.places):
            if place.group in attended:
                self._layers[layer] = (short[place.group], cache.layers[layer])
            attended.add(place.group)


def _batches(cache: KVCache, start: int, tokens: int) -> list[AttentionBatch]:
    """Per KV group: one row, all of whose past is the scratch block."""
    device, end = cache.regions.device, start + tokens
    return [
        AttentionBatch(
            starts=[start],
            lengths=[tokens],
            block_tables=torch.zeros((1, -(-end // cache.block_tokens)), dtype=torch.int32, device=device),
            query_starts=torch.tensor([0, tokens], device=device),
            seq_lens=torch.tensor([end], device=device),
            slots=torch.zeros(tokens, dtype=torch.int64, device=device),
            window=window,
        )
        for window in cache.layout.windows
    ]
