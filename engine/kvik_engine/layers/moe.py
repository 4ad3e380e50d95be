"""Mixture of experts: each token goes through a few of many small feed-forward networks (Shazeer et al., arXiv
1701.06538), some of them shared by all tokens (DeepSeekMoE, arXiv 2401.06066)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from kvik_engine.layers.mlp import GatedMLP
from kvik_engine.layers.tensors import TensorSource


class Router:
    """Which experts a token goes through, and with which weights: the likeliest `per_token`, in fp32. With `groups`,
    only those of the `groups_per_token` groups whose best experts are likeliest (DeepSeek-V2, arXiv 2405.04434)."""

    def __init__(
        self, weight: Tensor, *, per_token: int, scaling: float, groups: int | None, groups_per_token: int | None
    ) -> None:
        self.weight = weight.float()
        self.per_token = per_token
        self.scaling = scaling
        self.groups = groups
        self.groups_per_token = groups_per_token

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """[tokens, hidden] -> fp32 weights and int64 experts, [tokens, per_token] each."""
        scores = F.linear(x.float(), self.weight).softmax(-1)
        if self.groups is not None and self.groups_per_token is not None:
            grouped = scores.view(x.shape[0], self.groups, -1)
            best = grouped.amax(-1).topk(self.groups_per_token, sorted=False).indices
            open_groups = torch.zeros(grouped.shape[:2], dtype=torch.bool, device=x.device).scatter_(1, best, True)
            scores = grouped.masked_fill(~open_groups[..., None], 0.0).view(scores.shape)
        weights, experts = scores.topk(self.per_token, sorted=False)
        return weights * self.scaling, experts


class MixtureOfExperts:
    """sum over a token's experts of weight * expert(x), and the shared experts' network."""

    def __init__(self, router: Router, experts: list[GatedMLP], shared: GatedMLP | None) -> None:
        self.router = router
        self.experts = experts
        self.shared = shared

    @classmethod
    def take(
        cls,
        tensors: TensorSource,
        name: str,
        *,
        hidden: int,
        intermediate: int,
        count: int,
        shared: int,
        per_token: int,
        scaling: float,
        groups: int | None,
        groups_per_token: int | None,
        bias: bool,
    ) -> MixtureOfExperts:
        """`intermediate`: width of one expert; `shared`: how many experts the shared network is as wide as; `bias`:
        whether that network has one."""
        router = Router(
            tensors.take(f"{name}.gate.weight", (count, hidden)),
            per_token=per_token,
            scaling=scaling,
            groups=groups,
            groups_per_token=groups_per_token,
        )
        experts = [
            GatedMLP.take(tensors, f"{name}.experts.{expert}", hidden, intermediate, bias=False)
            for expert in range(count)
        ]
        network = None
        if shared:
            network = GatedMLP.take(tensors, f"{name}.shared_experts", hidden, shared * intermediate, bias=bias)
        return cls(router, experts, network)

    def __call__(self, x: Tensor) -> Tensor:
        """[tokens, hidden] -> the same. Tokens are sorted by expert, so that each one in use runs once a step."""
        weights, experts = self.router(x)
        order = experts.flatten().argsort(stable=True)
        token = order // self.router.per_token
        inputs, scale = x[token], weights.flatten()[order, None]
        counts = experts.flatten().bincount(minlength=len(self.experts)).tolist()
        out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
        at = 0
        for expert, count in zip(self.experts, counts, strict=True):
            if count:
                used = slice(at, at + count)
                out.index_add_(0, token[used], expert(inputs[used]).float() * scale[used])
                at += count
        mixed = out.to(x.dtype)
        return mixed if self.shared is None else mixed + self.shared(x)
