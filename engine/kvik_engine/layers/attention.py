"""Grouped-query attention over a paged KV cache."""

from __future__ import annotations

import torch
from torch import Tensor

from kvik_engine.attention.backend import StepAttention
from kvik_engine.layers.linear import Linear
from kvik_engine.layers.norm import RMSNorm
from kvik_engine.layers.rotary import RotaryTables
from kvik_engine.layers.tensors import TensorSource


class Attention:
    """out(attend(rotate(q), rotate(k), v)); q, k and v come from one stacked matrix. `norms`: each head's query and key
    are normed before they are rotated."""

    def __init__(
        self,
        qkv: Linear,
        out: Linear,
        *,
        layer: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        norms: tuple[RMSNorm, RMSNorm] | None = None,
        scale: float | None = None,
    ) -> None:
        self.norms = norms
        self.scale = scale
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
        norms: tuple[RMSNorm, RMSNorm] | None = None,
        scale: float | None = None,
    ) -> Attention:
        """`scale` of q·k: head_dim ** -0.5 when None."""
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
            norms=norms,
            scale=scale,
        )

    def __call__(self, x: Tensor, rotary: RotaryTables, attention: StepAttention) -> Tensor:
        tokens = x.shape[0]
        states = self.qkv(x).view(tokens, self.heads + 2 * self.kv_heads, self.head_dim)
        known = states[:, : self.heads + self.kv_heads]
        if self.norms is not None:
            known = self._normed(known)
        query, key = rotary.rotate(known).split((self.heads, self.kv_heads), dim=1)
        value = states[:, self.heads + self.kv_heads :]
        attended = attention(self.layer, query, key, value, scale=self.scale)
        return self.out(attended.view(tokens, self.heads * self.head_dim))

    def _normed(self, known: Tensor) -> Tensor:
        assert self.norms is not None
        query, key = known.float().split((self.heads, self.kv_heads), dim=1)
        query_norm, key_norm = self.norms
        return torch.cat((query_norm(query), key_norm(key)), dim=1)
