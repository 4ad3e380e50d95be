"""A model that computes in microseconds: the Llama family's code with seeded random weights."""

from __future__ import annotations

import torch

from kvik_engine.attention.backend import AttentionBackend
from kvik_engine.attention.cpu_backend import CpuBackend
from kvik_engine.models.config import ModelConfig
from kvik_engine.models.random_weights import RandomTensors
from kvik_engine.runner.load import make_runner
from kvik_engine.runner.runner import ModelRunner, RunnerLimits

TINY = ModelConfig(
    architecture="llama",
    vocab_size=211,
    hidden_size=48,
    intermediate_size=64,
    layers=3,
    heads=6,
    kv_heads=2,
    head_dim=8,
    context_length=256,
    norm_eps=1e-5,
    rope_theta=10000.0,
    tie_embeddings=True,
)
BLOCK_TOKENS = 4


def tiny_runner(
    *, blocks: int = 256, rows: int = 8, seed: int = 0, backend: AttentionBackend | None = None
) -> ModelRunner:
    """Ready to take plans, in fp32 on the CPU."""
    runner = make_runner(
        TINY,
        RandomTensors(seed, dtype=torch.float32, device=torch.device("cpu")),
        dtype="fp32",
        backend=backend or CpuBackend(),
        limits=RunnerLimits(max_requests=rows, max_tokens=TINY.context_length, block_tokens=BLOCK_TOKENS),
        max_batch_tokens=64,
        progress=lambda _: None,
    )
    runner.allocate(blocks)
    return runner
