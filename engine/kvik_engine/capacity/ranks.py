"""One rank's part of a model under tensor parallelism: the same model with fewer heads, columns and vocabulary rows."""

from __future__ import annotations

from dataclasses import replace

from kvik_engine.errors import StartError, StartReason
from kvik_engine.models.config import ModelConfig


def rank_config(config: ModelConfig, ranks: int) -> ModelConfig:
    """What one of `ranks` devices holds (Shoeybi et al., "Megatron-LM", arXiv 1909.08053).

    Heads, feed-forward widths and the vocabulary are divided; norms, routers and the projections into a latent are
    not. Each rank needs whole key-value heads: with fewer of them than ranks, each is held more than once. A latent has
    no heads, so every rank holds all of it. StartError (ConfigInvalid) when something cannot be divided evenly.
    """
    if config.heads % ranks:
        raise _uneven(f"{config.heads} attention heads", ranks)
    kv_heads = config.kv_heads
    if kv_heads % ranks and ranks % kv_heads:
        raise _uneven(f"{kv_heads} key-value heads", ranks)
    experts = config.experts
    if experts is not None:
        width = _divided(experts.intermediate_size, "an expert's width", ranks)
        experts = replace(experts, intermediate_size=width)
    return replace(
        config,
        heads=config.heads // ranks,
        kv_heads=max(1, kv_heads // ranks),
        intermediate_size=_divided(config.intermediate_size, "the feed-forward width", ranks),
        vocab_size=-(-config.vocab_size // ranks),
        experts=experts,
    )


def _divided(width: int, what: str, ranks: int) -> int:
    if width % ranks:
        raise _uneven(f"{what} {width}", ranks)
    return width // ranks


def _uneven(what: str, ranks: int) -> StartError:
    return StartError(
        StartReason.CONFIG_INVALID, f"--tensor-parallel: {what} cannot be divided evenly among {ranks} devices"
    )
