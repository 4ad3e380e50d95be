"""Grouped-query attention over a paged KV cache."""

from __future__ import annotations

from torch import Tensor

from kvik_engine.attention.backend import StepAttention
from kvik_engine.layers.linear import Linear
from kvik_engine.layers.rotary import RotaryTables
from kvik_engine.layers.tensors import TensorSource


class Attention:
    """out(attend(rotate(q), rotate(k), v)); q, k and v come from one stacked matrix."""

    def __init__(self, qkv: Linear, out: Linear, *, layer: int, heads: int, kv_heads: int, head_dim: int) -> None:
        self.qkv = qkv
        self.out = out
        self.layer = layer
        self.heads = heads
        self.kv_heads = kv_heads
        self.head_dim = head_dim

    @classmethod
    def take(
        cls,
        tensors: TensorSource,
        name: str,
        *,
        layer: int,
        hidden: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        bias: bool,
    ) -> Attention:
        parts = [
            (f"{name}.q_proj", heads * head_dim),
            (f"{name}.k_proj", kv_heads * head_dim),
            (f"{name}.v_proj", kv_heads * head_dim),
        ]
        return cls(
            Linear.take_stacked(tensors, parts, hidden, bias=bias),
            Linear.take(tensors, f"{name}.o_proj", hidden, heads * head_dim, bias=bias),
            layer=layer,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
        )

    def __call__(self, x: Tensor, rotary: RotaryTables, attention: StepAttention) -> Tensor:
        tokens = x.shape[0]
        states = self.qkv(x).view(tokens, self.heads + 2 * self.kv_heads, self.head_dim)
        rotated = rotary.rotate(states[:, : self.heads + self.kv_heads])
        query, key = rotated.split((self.heads, self.kv_heads), dim=1)
        value = states[:, self.heads + self.kv_heads :]
        attended = attention(self.layer, query, key, value)
        return self.out(attended.view(tokens, self.heads * self.head_dim))
