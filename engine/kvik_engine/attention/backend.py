"""What a step needs from attention: write the new keys and values, then attend to all of a row's past.

A backend turns the step's batch into its own metadata once a step; the layers then call it 2 x layers times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from kvik_engine.attention.kv_cache import KVCache, LayerCache


@dataclass(frozen=True, slots=True)
class AttentionBatch:
    """The rows of one step, packed: row r has tokens [query_starts[r], query_starts[r + 1]) of the step.

    The host knows starts and lengths; tensors are on the device.
    """

    starts: Sequence[int]
    """Tokens of each row that are already in the cache."""
    lengths: Sequence[int]
    """Tokens of each row that are computed in this step."""
    block_tables: Tensor
    """int32 [rows, blocks]: wide enough for the longest row; entries past a row's end are 0."""
    query_starts: Tensor
    """int32 [rows + 1]."""
    seq_lens: Tensor
    """int32 [rows]: starts + lengths."""
    slots: Tensor
    """int64 [tokens]: where each token's key and value go, block * block_tokens + offset."""


class LayerAttention(Protocol):
    """One step's metadata, bound: writes and attends in one layer's cache."""

    def write(self, key: Tensor, value: Tensor, cache: LayerCache) -> None:
        """key, value: [tokens, kv_heads, head_dim]."""
        ...

    def attend(self, query: Tensor, cache: LayerCache, *, scale: float) -> Tensor:
        """Causal attention of each token to its row's tokens up to itself.

        query: [tokens, heads, head_dim], heads a multiple of kv_heads -> the same shape, contiguous.
        """
        ...


class AttentionBackend(Protocol):
    """Chosen once at start-up."""

    name: str

    def plan(self, batch: AttentionBatch, cache: KVCache) -> LayerAttention:
        """Build the step's metadata."""
        ...


class StepAttention:
    """What the model sees: attention of one step over one cache, addressed by layer."""

    def __init__(self, step: LayerAttention, cache: KVCache) -> None:
        self._step = step
        self._layers = cache.layers

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        cache = self._layers[layer]
        self._step.write(key, value, cache)
        return self._step.attend(query, cache, scale=query.shape[-1] ** -0.5)
