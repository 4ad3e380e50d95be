"""Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1) over a paged cache of latents.

The cache holds one vector a token: the normed latent, then the rotated key that all heads share. The matrices that make
keys and values of a latent are absorbed: queries are taken into the latent's space, and what they attend to is taken
out of it. So attention is that of one key-value head, and no key or value of a past token is ever made
(docs/decisions/0038).
"""

from __future__ import annotations

import torch
from torch import Tensor

from kvik_engine.attention.backend import StepAttention
from kvik_engine.layers.linear import Linear
from kvik_engine.layers.norm import RMSNorm
from kvik_engine.layers.rotary import RotaryTables
from kvik_engine.layers.tensors import TensorSource

_NORM_EPS = 1e-6
"""Of the norms inside attention, whatever the config says of the others."""


class LatentAttention:
    """See take for the sizes."""

    def __init__(
        self,
        *,
        query_down: Linear | None,
        query_norm: RMSNorm | None,
        query: Linear,
        down: Linear,
        latent_norm: RMSNorm,
        into_latent: Tensor,
        out_of_latent: Tensor,
        out: Linear,
        layer: int,
        rope_dim: int,
        scale: float,
    ) -> None:
        self.query_down = query_down
        self.query_norm = query_norm
        self.query = query
        self.down = down
        self.latent_norm = latent_norm
        self.into_latent = into_latent
        """[heads, nope_dim, kv_rank]."""
        self.out_of_latent = out_of_latent
        """[heads, kv_rank, value_dim]."""
        self.out = out
        self.layer = layer
        self.rope_dim = rope_dim
        self.scale = scale

    @classmethod
    def take(
        cls,
        tensors: TensorSource,
        name: str,
        *,
        layer: int,
        hidden: int,
        heads: int,
        kv_rank: int,
        query_rank: int | None,
        nope_dim: int,
        rope_dim: int,
        value_dim: int,
        scale: float,
        bias: bool,
    ) -> LatentAttention:
        """Rotary pairs lie side by side in these checkpoints: rows are put in the order of layers.rotary once, here,
        which changes no score as it is done to queries and keys alike."""
        if query_rank is None:
            query_down, query_norm, source, width = None, None, f"{name}.q_proj", hidden
        else:
            query_down = Linear.take(tensors, f"{name}.q_a_proj", query_rank, hidden, bias=bias)
            query_norm = RMSNorm.take(tensors, f"{name}.q_a_layernorm", query_rank, _NORM_EPS)
            source, width = f"{name}.q_b_proj", query_rank
        head_dim = nope_dim + rope_dim
        query_weight = tensors.take(f"{source}.weight", (heads * head_dim, width)).view(heads, head_dim, width)
        down_name, down_bias = f"{name}.kv_a_proj_with_mqa", None
        down_weight = tensors.take(f"{down_name}.weight", (kv_rank + rope_dim, hidden))
        if bias:
            taken = tensors.take(f"{down_name}.bias", (kv_rank + rope_dim,))
            down_bias = _halves(taken[None, :, None], rope_dim)[0, :, 0]
        up = tensors.take(f"{name}.kv_b_proj.weight", (heads * (nope_dim + value_dim), kv_rank))
        keys, values = up.view(heads, nope_dim + value_dim, kv_rank).split((nope_dim, value_dim), dim=1)
        return cls(
            query_down=query_down,
            query_norm=query_norm,
            query=Linear(tensors.product(_halves(query_weight, rope_dim).reshape(heads * head_dim, width))),
            down=Linear(tensors.product(_halves(down_weight[None], rope_dim)[0]), down_bias),
            latent_norm=RMSNorm.take(tensors, f"{name}.kv_a_layernorm", kv_rank, _NORM_EPS),
            into_latent=keys.contiguous(),
            out_of_latent=values.transpose(1, 2).contiguous(),
            out=Linear.take(tensors, f"{name}.o_proj", hidden, heads * value_dim, bias=bias),
            layer=layer,
            rope_dim=rope_dim,
            scale=scale,
        )

    def __call__(self, x: Tensor, rotary: RotaryTables, attention: StepAttention) -> Tensor:
        heads, nope_dim, kv_rank = self.into_latent.shape
        queries = x
        if self.query_down is not None and self.query_norm is not None:
            queries = self.query_norm(self.query_down(x).float())
        states = self.query(queries).view(x.shape[0], heads, nope_dim + self.rope_dim)
        nope, rope = states.split((nope_dim, self.rope_dim), dim=-1)
        query = torch.cat((_by_head(nope, self.into_latent), rotary.rotate(rope)), dim=-1)
        latent, shared = self.down(x).split((kv_rank, self.rope_dim), dim=-1)
        key = torch.cat((self.latent_norm(latent.float())[:, None], rotary.rotate(shared[:, None])), dim=-1)
        attended = attention(self.layer, query, key, None, scale=self.scale)
        return self.out(_by_head(attended, self.out_of_latent).flatten(1))


def _by_head(x: Tensor, weight: Tensor) -> Tensor:
    """[tokens, heads, in] times [heads, in, out] -> [tokens, heads, out]."""
    return torch.bmm(x.transpose(0, 1), weight).transpose(0, 1)


def _halves(weight: Tensor, rope_dim: int) -> Tensor:
    """[heads, rows, columns]: of the last `rope_dim` rows of each head, the even ones first, then the odd ones."""
    nope, rope = weight.split((weight.shape[1] - rope_dim, rope_dim), dim=1)
    return torch.cat((nope, rope[:, 0::2], rope[:, 1::2]), dim=1)
