"""What a step needs from attention: write the new keys and values, then attend to a row's past.

A backend turns the step's batch of each KV group into its own metadata once a step; the layers then call it 2 x layers
times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from kvik_engine.attention.kv_cache import KVCache, LayerCache


@dataclass(frozen=True, slots=True)
class AttentionBatch:
    """The rows of one step as one KV group sees them, packed: row r has tokens [query_starts[r], query_starts[r + 1]).

    The host knows starts and lengths; tensors are on the device.
    """

    starts: Sequence[int]
    """Tokens of each row that are already in the cache."""
    lengths: Sequence[int]
    """Tokens of each row that are computed in this step."""
    block_tables: Tensor
    """int32 [rows, blocks]: wide enough for the longest row; entries past a row's end are 0. Entries of blocks that lie
    behind the window of a row's first query may name blocks that others own by now: they are never read."""
    query_starts: Tensor
    """int64 [rows + 1]."""
    seq_lens: Tensor
    """int64 [rows]: starts + lengths."""
    slots: Tensor
    """int64 [tokens]: where each token's key and value go, block * block_tokens + offset."""
    window: int | None = None
    """A query sees the last `window` tokens, its own included; None: all up to its own."""

    def first_seen(self, position: int) -> int:
        """The first token that the query at `position` sees."""
        return 0 if self.window is None else max(0, position + 1 - self.window)


class LayerAttention(Protocol):
    """One step's metadata, bound: writes and attends in one layer's cache."""

    def write(self, key: Tensor, value: Tensor | None, cache: LayerCache) -> None:
        """key: [tokens, kv_heads, width]; value: the same, None where the cache is latent."""
        ...

    def attend(self, query: Tensor, cache: LayerCache, *, scale: float) -> Tensor:
        """Causal attention of each token to its row's tokens up to itself, as far back as the window reaches.

        query: [tokens, heads, width], heads a multiple of kv_heads -> [tokens, heads, value_width], contiguous.
        """
        ...


class AttentionBackend(Protocol):
    """Chosen once at start-up."""

    name: str
    attends_latents: bool
    """Whether it serves latent caches."""
    quantised: tuple[str, ...]
    """Names of the quantised KVFormats that it reads and writes, of keys and of values."""

    def plan(self, batch: AttentionBatch, cache: KVCache) -> LayerAttention:
        """Build the step's metadata."""
        ...


class StepAttention:
    """What the model sees: attention of one step over one cache, addressed by layer."""

    def __init__(self, backend: AttentionBackend, batches: Sequence[AttentionBatch], cache: KVCache) -> None:
        """`batches`: one per KV group."""
        self.cache = cache
        self.groups = [backend.plan(batch, cache) for batch in batches]
        self._rotation = cache.rotation
        self._layers = [
            (self.groups[place.group], layer) for place, layer in zip(cache.layout.places, cache.layers, strict=True)
        ]

    def __call__(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor | None, *, scale: float | None = None
    ) -> Tensor:
        """`scale` of q·k: width ** -0.5 when None."""
        step, cache = self._layers[layer]
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        if self._rotation is not None:
            query, key, scale = self._rotation(query), self._rotation(key), scale * self._rotation.scale
        step.write(key, value, cache)
        return step.attend(query, cache, scale=scale)
