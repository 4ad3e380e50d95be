"""Logits of the engine's model code against transformers' own, over the recorded continuations (teacher forcing)."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor

from kvik_engine.attention.backend import AttentionBatch, StepAttention
from kvik_engine.attention.cpu_backend import CpuBackend
from kvik_engine.attention.kv_cache import KVCache
from kvik_engine.attention.kv_layout import KVFormats
from kvik_engine.models.kv_groups import kv_layout
from kvik_engine.models.read_config import from_hf
from kvik_engine.models.registry import Model, build
from kvik_engine.weights.checkpoint import CheckpointTensors, open_checkpoint
from tests.support.demo_model import demo_model
from tests.support.oracle import MARGIN, STEPS, Oracle, OraclePrompt, load_oracle, oracle_prompts
from tests.support.paged_steps import NAMES

FP32_ATOL = 5e-4
BF16_MEAN, BF16_WORST = 0.1, 1.0
"""Absolute differences that bfloat16 weights and products may make of logits whose deviation is 6 to 8 (seen: a mean of
0.05 to 0.08, at worst 0.6; with a bfloat16 residual it was 0.13 and 1.1)."""
SOME = (0, 9, 15, 18)
"""Prompts of 3 to 640 tokens."""
BLOCK_TOKENS, CHUNK = 16, 100

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def gguf() -> Path:
    return demo_model()


@pytest.fixture(scope="module")
def oracle(gguf: Path) -> Oracle:
    return load_oracle(gguf)


@pytest.fixture(scope="module")
def fp32(gguf: Path) -> Model:
    return load(gguf, torch.float32)


@pytest.fixture(scope="module")
def bf16(gguf: Path) -> Model:
    return load(gguf, torch.bfloat16)


def load(gguf: Path, dtype: torch.dtype) -> Model:
    checkpoint = open_checkpoint(gguf)
    return build(from_hf(checkpoint.config), CheckpointTensors(checkpoint, dtype=dtype, device=torch.device("cpu")))


@torch.inference_mode()
def paged_logits(model: Model, case: OraclePrompt, dtype: torch.dtype) -> Tensor:
    """Through the paged cache: the prompt in chunks, then the continuation in one piece. fp32 [STEPS, vocabulary]."""
    tokens = torch.tensor(case.prompt + case.tokens[:-1])
    blocks = -(-len(tokens) // BLOCK_TOKENS)
    cache = KVCache(
        blocks=blocks,
        layout=kv_layout(model.config, BLOCK_TOKENS, KVFormats.of(NAMES[dtype])),
        dtype=dtype,
        device=torch.device("cpu"),
    )
    backend = CpuBackend()
    table = torch.arange(blocks, 0, -1, dtype=torch.int32)[None]
    edges = [*range(0, len(case.prompt) - 1, CHUNK), len(case.prompt) - 1, len(tokens)]
    for start, end in pairwise(edges):
        positions = torch.arange(start, end)
        batch = AttentionBatch(
            starts=[start],
            lengths=[end - start],
            block_tables=table,
            query_starts=torch.tensor([0, end - start]),
            seq_lens=torch.tensor([end]),
            slots=table[0, positions // BLOCK_TOKENS].long() * BLOCK_TOKENS + positions % BLOCK_TOKENS,
        )
        hidden = model.forward(tokens[start:end], positions, StepAttention(backend, [batch], cache))
    return model.logits(hidden)


@pytest.mark.parametrize("index", SOME)
def test_fp32_logits_equal_the_oracles(oracle: Oracle, fp32: Model, index: int) -> None:
    check_fp32(oracle, fp32, oracle_prompts()[index])


@pytest.mark.long
@pytest.mark.parametrize("index", range(20))
def test_fp32_logits_equal_the_oracles_on_every_prompt(oracle: Oracle, fp32: Model, index: int) -> None:
    check_fp32(oracle, fp32, oracle_prompts()[index])


@pytest.mark.parametrize("index", SOME[:3])
def test_bf16_logits_stay_within_what_rounding_explains(fp32: Model, bf16: Model, index: int) -> None:
    case = oracle_prompts()[index]
    want = paged_logits(fp32, case, torch.float32)
    difference = (paged_logits(bf16, case, torch.bfloat16) - want).abs()

    assert difference.mean().item() < BF16_MEAN
    assert difference.max().item() < BF16_WORST


def check_fp32(oracle: Oracle, model: Model, case: OraclePrompt) -> None:
    """The recorded tokens are the oracle's greedy ones by the recorded margin, and the logits are equal."""
    want = oracle.logits(case)
    best = want.topk(2, dim=-1)
    assert want.shape[0] == STEPS
    assert best.indices[:, 0].tolist() == case.tokens
    assert (best.values[:, 0] - best.values[:, 1]).min().item() >= MARGIN

    got = paged_logits(model, case, torch.float32)
    torch.testing.assert_close(got, want, atol=FP32_ATOL, rtol=0)
