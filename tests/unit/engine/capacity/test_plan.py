"""The plan against the engine itself, against the tables of the documents, and against sums done by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kvik_engine.attention.cpu_backend import CpuBackend
from kvik_engine.attention.cpu_dequantised import DequantisingPath
from kvik_engine.attention.kv_layout import KVFormats
from kvik_engine.capacity.gpus import GPUS
from kvik_engine.capacity.kv_kinds import kv_kinds, own_kind
from kvik_engine.capacity.plan import Plan, Wanted, make_plan
from kvik_engine.errors import StartError, StartReason
from kvik_engine.models.config import ModelConfig
from kvik_engine.models.random_weights import RandomTensors
from kvik_engine.models.read_config import from_hf
from kvik_engine.runner.load import make_runner
from kvik_engine.runner.runner import RunnerLimits

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

WANTED = Wanted(
    memory_bytes=80 * GIB,
    memory_fraction=0.9,
    dtype="fp16",
    formats=KVFormats.of("fp16"),
    block_tokens=16,
    context=2048,
    concurrency=64,
    shared_prefix=0,
    max_batch_tokens=4096,
    ranks=1,
    gpu=None,
    price_per_hour=None,
)


def llama(*, layers: int, heads: int, kv_heads: int, width: int = 128, inner: int, vocab: int = 32000) -> ModelConfig:
    return from_hf(
        {
            "architectures": ["LlamaForCausalLM"],
            "vocab_size": vocab,
            "hidden_size": heads * width,
            "intermediate_size": inner,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": kv_heads,
            "max_position_embeddings": 8192,
        }
    )


LLAMA_65B = llama(layers=80, heads=64, kv_heads=64, inner=22016)
LLAMA_70B = llama(layers=80, heads=64, kv_heads=8, inner=28672)
LLAMA_8B = llama(layers=32, heads=32, kv_heads=8, inner=14336, vocab=128256)


def plan(config: ModelConfig = LLAMA_8B, **more: Any) -> Plan:
    return make_plan(config, replace(WANTED, **more))


# Small, with head counts that are no powers of two.
TINY: dict[str, Any] = {
    "vocab_size": 101,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 5,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "max_position_embeddings": 512,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama, grouped heads": {"architectures": ["LlamaForCausalLM"]},
    "llama, all heads": {"architectures": ["LlamaForCausalLM"], "num_key_value_heads": 6, "attention_bias": True},
    "llama, one head": {"architectures": ["LlamaForCausalLM"], "num_key_value_heads": 1, "tie_word_embeddings": True},
    "mistral, windowed": {"architectures": ["MistralForCausalLM"], "num_key_value_heads": 3, "sliding_window": 300},
}


@pytest.mark.parametrize(
    ("dtype", "key", "value"), [("fp32", "auto", "auto"), ("bf16", "auto", "auto"), ("bf16", "int8", "auto")]
)
@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES.keys())
def test_the_plan_is_what_the_engine_allocates_to_the_byte(
    family: dict[str, Any], dtype: str, key: str, value: str
) -> None:
    formats = KVFormats.of(dtype, key, value)
    config = from_hf({**TINY, **family})
    torch_dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[dtype]
    runner = make_runner(
        config,
        RandomTensors(0, dtype=torch_dtype, device=torch.device("cpu")),
        dtype=dtype,
        formats=formats,
        backend=CpuBackend(DequantisingPath() if formats.quantised else None),
        limits=RunnerLimits(max_requests=4, max_tokens=512, block_tokens=8),
        max_batch_tokens=32,
        progress=lambda _: None,
    )
    planned = plan(
        config, memory_bytes=600 * MIB, dtype=dtype, formats=formats, block_tokens=8, context=256, concurrency=4
    )

    assert planned.groups == runner.facts.groups
    assert planned.parameters == runner.facts.parameters
    assert planned.ledger.model_context == runner.facts.context_length
    assert planned.ledger.allocated_bytes == runner.allocate(planned.ledger.blocks)


@pytest.mark.parametrize(
    ("config", "want_kib"),
    [
        pytest.param(LLAMA_65B, 2560, id="65B-MHA"),
        pytest.param(LLAMA_70B, 320, id="70B-GQA-8"),
        pytest.param(LLAMA_8B, 128, id="8B"),
    ],
)
def test_kv_bytes_per_token_are_those_of_the_documents(config: ModelConfig, want_kib: int) -> None:
    assert plan(config, memory_bytes=640 * GIB).ledger.bytes_per_token == want_kib * KIB


@pytest.mark.parametrize(
    ("config", "want"), [(LLAMA_65B, 65_285_660_672), (LLAMA_70B, 68_976_648_192), (LLAMA_8B, 8_030_261_248)]
)
def test_parameters_are_those_of_the_published_models(config: ModelConfig, want: int) -> None:
    assert plan(config, memory_bytes=640 * GIB).parameters == want


def test_kinds_of_attention_stand_side_by_side() -> None:
    kib = {kind.name: kind.bytes_per_token(80, "fp16") / KIB for kind in kv_kinds(LLAMA_70B)}

    assert kib == {"MHA": 2560, "GQA": 320, "MQA": 40, "MLA": 90}
    assert [own_kind(config) for config in (LLAMA_65B, LLAMA_70B)] == ["MHA", "GQA"]
    assert [kind.name for kind in kv_kinds(LLAMA_65B) if kind.own] == ["MHA"]


def test_the_documents_24_gb_of_one_prefix_in_64_requests_become_0_4() -> None:
    """384 KiB a token: 96 layers of 8 KV heads."""
    config = llama(layers=96, heads=64, kv_heads=8, inner=28672)
    prefix = plan(config, memory_bytes=640 * GIB, shared_prefix=1024, concurrency=64).prefix

    assert prefix is not None
    assert prefix.unshared_bytes == 24 * GIB
    assert prefix.shared_bytes == 24 * GIB / 64
    assert round(prefix.shared_bytes / GIB, 1) == 0.4


def test_a_shared_prefix_is_held_once_and_lets_more_requests_in() -> None:
    alone, shared = plan(context=2048), plan(context=2048, shared_prefix=1030)

    assert alone.requests.fit == alone.ledger.blocks // 128
    assert shared.requests.fit == (shared.ledger.blocks - 64) // 64, "only whole blocks are shared"


@given(
    memory_gib=st.integers(24, 96),
    context=st.integers(1, 8192),
    concurrency=st.integers(1, 300),
    shared=st.integers(0, 8191),
)
def test_what_is_said_to_be_enough_is_enough_and_a_block_less_is_not(
    memory_gib: int, context: int, concurrency: int, shared: int
) -> None:
    shared = min(shared, context - 1)
    wanted = {"context": context, "concurrency": concurrency, "shared_prefix": shared}
    first = plan(memory_bytes=memory_gib * GIB, **wanted)
    needed = max(first.requests.memory_needed, 24 * GIB)

    assert plan(memory_bytes=needed, **wanted).requests.fit >= concurrency
    if needed > 24 * GIB:
        assert plan(memory_bytes=needed - 3 * first.ledger.block_bytes, **wanted).requests.fit < concurrency


@given(memory_gib=st.integers(40, 96), concurrency=st.integers(1, 1000))
def test_the_longest_context_fits_and_a_longer_one_does_not(memory_gib: int, concurrency: int) -> None:
    settings = {"memory_bytes": memory_gib * GIB, "concurrency": concurrency}
    longest = plan(**settings).requests.longest

    if longest:
        assert plan(context=longest, **settings).requests.fit >= concurrency
    if longest < 8192:
        assert plan(context=longest + 1, **settings).requests.fit < concurrency


def test_too_little_memory_says_how_much_would_be_enough() -> None:
    with pytest.raises(StartError, match=r"so a device of (\d+) MiB, would be enough") as caught:
        plan(memory_bytes=16 * GIB)
    assert caught.value.reason is StartReason.INSUFFICIENT_MEMORY

    enough = int(caught.value.message.split("a device of ")[1].split(" ")[0])
    assert plan(memory_bytes=enough * MIB).ledger.max_tokens >= 256
    with pytest.raises(StartError):
        plan(memory_bytes=(enough - 4) * MIB)


@pytest.mark.parametrize(
    ("ranks", "kv_heads", "share"),
    [(1, 8, 1), (2, 4, 1 / 2), (8, 1, 1 / 8), (16, 1, 1 / 8), (32, 1, 1 / 8)],
    ids=str,
)
def test_ranks_divide_the_kv_heads_and_hold_one_at_least(ranks: int, kv_heads: int, share: float) -> None:
    planned = plan(ranks=ranks)

    assert planned.ledger.bytes_per_token == 128 * KIB * share
    assert planned.ledger.bytes_per_token == 2 * 32 * kv_heads * 128 * 2


def test_ranks_divide_the_weights_but_for_norms_and_repeated_heads() -> None:
    whole, half, sixteenth = plan().weight_bytes, plan(ranks=2).weight_bytes, plan(ranks=16).weight_bytes
    norms = 2 * (2 * 32 + 1) * 4096
    repeated = 2 * 32 * 2 * 4096 * 8 * 128

    assert 2 * half - whole == norms
    assert 16 * sixteenth - whole == 15 * norms + repeated


@pytest.mark.parametrize(
    ("config", "ranks", "what"),
    [
        (LLAMA_8B, 3, "32 attention heads"),
        (llama(layers=1, heads=12, kv_heads=4, inner=1200), 6, "4 key-value heads"),
        (llama(layers=1, heads=12, kv_heads=12, inner=1001), 2, "the feed-forward width 1001"),
    ],
)
def test_what_cannot_be_divided_is_named(config: ModelConfig, ranks: int, what: str) -> None:
    with pytest.raises(StartError, match=f"--tensor-parallel: {what} cannot be divided evenly among {ranks}") as caught:
        plan(config, ranks=ranks)
    assert caught.value.reason is StartReason.CONFIG_INVALID


def test_a_decode_step_reads_the_weights_once_and_each_rows_keys_and_values() -> None:
    speed = plan(gpu=GPUS["h100"], context=1000, concurrency=10).roofline
    assert speed is not None
    read = (8_030_261_248 - 128256 * 4096) * 2 + 10 * 1000 * 128 * KIB

    assert speed.step_bound == "memory"
    assert speed.step_seconds == pytest.approx(read / 3.35e12)
    assert speed.output_tokens_per_second == pytest.approx(10 * 3.35e12 / read)


def test_a_long_prompt_is_bound_by_products() -> None:
    speed = plan(gpu=GPUS["h100"], context=8000).roofline
    assert speed is not None
    head = 128256 * 4096
    products = 8000 * (8_030_261_248 - 2 * head) + head
    pairs = 32 * 8000 * 8001 // 2

    assert speed.prefill_bound == "compute"
    assert speed.prefill_seconds == pytest.approx((2 * products + 4 * 32 * 128 * pairs) / 989.5e12)


def test_the_roofline_is_of_the_requests_that_fit() -> None:
    planned = plan(gpu=GPUS["l4"], memory_bytes=24 * GIB, context=8192, concurrency=64)
    assert planned.roofline is not None
    assert planned.roofline.rows == planned.requests.fit < 64


def test_a_price_becomes_the_cost_of_a_million_tokens_on_all_devices() -> None:
    planned = plan(gpu=GPUS["h100"], price_per_hour=3.6, ranks=2)
    assert planned.roofline is not None
    assert planned.cost is not None

    assert planned.cost.per_million_output == pytest.approx(2 * 1000 / planned.roofline.output_tokens_per_second)
    assert planned.cost.per_million_prompt == pytest.approx(2 * 1000 / planned.roofline.prompt_tokens_per_second)


@pytest.mark.parametrize(
    ("settings", "flag"),
    [({"context": 8193}, "--context"), ({"context": 100, "shared_prefix": 100}, "--shared-prefix")],
)
def test_wishes_that_contradict_the_model_or_each_other_name_the_flag(settings: dict[str, int], flag: str) -> None:
    with pytest.raises(StartError, match=flag) as caught:
        plan(**settings)
    assert caught.value.reason is StartReason.CONFIG_INVALID
