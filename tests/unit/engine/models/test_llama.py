"""The Llama family's code against transformers' own, on small random models of every supported trait."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM, PreTrainedModel

from kvik_engine.attention.backend import AttentionBackend, AttentionBatch, StepAttention
from kvik_engine.attention.cpu_backend import CpuBackend
from kvik_engine.attention.kv_cache import KVCache
from kvik_engine.attention.kv_layout import KVFormats
from kvik_engine.attention.reference import ReferenceBackend
from kvik_engine.layers.product import PlainProduct
from kvik_engine.models import decoder
from kvik_engine.models.kv_groups import kv_layout
from kvik_engine.models.random_weights import RandomTensors
from kvik_engine.models.read_config import from_hf
from kvik_engine.models.registry import Model, build
from kvik_engine.weights.checkpoint import CheckpointTensors, open_checkpoint
from tests.support.tiny_model import TINY

BASE: dict[str, Any] = {
    "vocab_size": 101,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


@dataclass(frozen=True, slots=True)
class Trait:
    """A config and the transformers class that runs it."""

    config: type[LlamaConfig] | type[MistralConfig]
    model: type[PreTrainedModel]
    values: dict[str, Any]


TRAITS = {
    "grouped queries": Trait(LlamaConfig, LlamaForCausalLM, {}),
    "tied embeddings": Trait(LlamaConfig, LlamaForCausalLM, {"tie_word_embeddings": True}),
    "one key-value head": Trait(LlamaConfig, LlamaForCausalLM, {"num_key_value_heads": 1}),
    "no groups": Trait(LlamaConfig, LlamaForCausalLM, {"num_key_value_heads": 6}),
    "heads wider than the model": Trait(LlamaConfig, LlamaForCausalLM, {"head_dim": 16}),
    "biases": Trait(LlamaConfig, LlamaForCausalLM, {"attention_bias": True, "mlp_bias": True}),
    "another theta": Trait(
        LlamaConfig, LlamaForCausalLM, {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}
    ),
    "linear scaling": Trait(
        LlamaConfig, LlamaForCausalLM, {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}}
    ),
    "llama3 scaling": Trait(LlamaConfig, LlamaForCausalLM, {"rope_parameters": LLAMA3}),
    "mistral": Trait(MistralConfig, MistralForCausalLM, {"sliding_window": None}),
}


@pytest.mark.parametrize("trait", TRAITS.values(), ids=TRAITS.keys())
@pytest.mark.parametrize("backend", [ReferenceBackend(), CpuBackend()], ids=["reference", "cpu"])
def test_logits_equal_those_of_transformers(tmp_path: Path, trait: Trait, backend: AttentionBackend) -> None:
    torch.manual_seed(3)
    theirs = trait.model(trait.config(**{**BASE, **trait.values})).eval()
    for name, parameter in theirs.named_parameters():
        if name.endswith("bias") or "norm" in name:
            torch.nn.init.normal_(parameter, mean=0.5, std=0.3)
    theirs.save_pretrained(tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    ours = build(from_hf(checkpoint.config), CheckpointTensors(checkpoint, dtype=torch.float32, device=CPU))
    prompts = [torch.randint(0, 101, (length,)) for length in (1, 40, 130)]

    with torch.inference_mode():
        got = packed_logits(ours, prompts, backend)
        for prompt, logits in zip(prompts, got, strict=True):
            torch.testing.assert_close(logits, theirs(prompt[None]).logits[0], atol=2e-5, rtol=2e-5)
    assert ours.parameters == sum(parameter.numel() for parameter in theirs.parameters())


@pytest.mark.parametrize(("tied", "bound", "made"), [(True, 0, False), (True, 211 * 48 * 2, True), (False, 0, True)])
def test_a_tied_head_above_a_size_is_never_packed_beside_the_embedding(
    tied: bool, bound: int, made: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packed, the head of a 4B model with a large vocabulary took 1.3 GB more than `kvik plan` said."""
    monkeypatch.setattr(decoder, "TWICE_BYTES", bound)
    shapes: list[tuple[int, ...]] = []

    def make(weight: Tensor) -> PlainProduct:
        shapes.append(tuple(weight.shape))
        return PlainProduct(weight)

    build(replace(TINY, tie_embeddings=tied), RandomTensors(0, dtype=torch.bfloat16, device=CPU, product=make))
    assert ((211, 48) in shapes) is made


def test_random_weights_depend_on_seed_and_name_alone() -> None:
    first, second = (RandomTensors(1, dtype=torch.float32, device=CPU) for _ in range(2))
    second.take("elsewhere", (4, 4))

    assert torch.equal(first.take("a", (8, 8)), second.take("a", (8, 8)))
    assert not torch.equal(first.take("a", (8, 8)), first.take("b", (8, 8)))
    other = RandomTensors(2, dtype=torch.float32, device=CPU)
    assert not torch.equal(first.take("a", (8, 8)), other.take("a", (8, 8)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_logits_are_fp32_and_not_rounded(dtype: torch.dtype) -> None:
    model = build(TINY, RandomTensors(0, dtype=dtype, device=CPU))
    hidden = (torch.randn(7, TINY.hidden_size) * 20).to(dtype)
    got = model.logits(hidden)
    exact = hidden.double() @ model.head.product.weight.double().t()  # type: ignore[attr-defined]

    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double(), exact, atol=2e-3, rtol=1e-5)
    assert (hidden @ model.head.product.weight.t()).double().sub(exact).abs().max() > 1e-2  # type: ignore[attr-defined]


CPU = torch.device("cpu")


def packed_logits(model: Model, prompts: list[Tensor], backend: AttentionBackend) -> list[Tensor]:
    """All prompts in one step, over blocks in no order."""
    config, block_tokens = model.config, 4
    lengths = [len(prompt) for prompt in prompts]
    counts = [-(-length // block_tokens) for length in lengths]
    order = torch.randperm(sum(counts)) + 1
    tables = torch.zeros((len(prompts), max(counts)), dtype=torch.int32)
    for row, blocks in enumerate(order.split(counts)):
        tables[row, : len(blocks)] = blocks
    cache = KVCache(
        blocks=sum(counts),
        layout=kv_layout(config, block_tokens, KVFormats.of("fp32")),
        dtype=torch.float32,
        device=CPU,
    )
    positions = torch.cat([torch.arange(length) for length in lengths])
    rows = torch.repeat_interleave(torch.arange(len(prompts)), torch.tensor(lengths))
    batch = AttentionBatch(
        starts=[0] * len(prompts),
        lengths=lengths,
        block_tables=tables,
        query_starts=torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()]),
        seq_lens=torch.tensor(lengths),
        slots=tables[rows, positions // block_tokens].long() * block_tokens + positions % block_tokens,
    )
    hidden = model.forward(torch.cat(prompts), positions, StepAttention(backend, [batch], cache))
    return list(model.logits(hidden).split(lengths))
