"""Which layers share a block table and what a block of them takes, for the shapes of published models."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvik_engine.attention.kv_layout import KVFormats
from kvik_engine.errors import StartError, StartReason
from kvik_engine.models.config import LatentAttention, ModelConfig, WindowAttention
from kvik_engine.models.kv_groups import MOST_PADDING, kv_groups, kv_layout, slots_per_block
from kvik_engine.step import GroupKind

LLAMA = ModelConfig(
    architecture="LlamaForCausalLM",
    vocab_size=100,
    hidden_size=64,
    intermediate_size=64,
    layers=30,
    heads=9,
    kv_heads=3,
    head_dim=64,
    context_length=8192,
    norm_eps=1e-5,
    rope_theta=1e4,
)


def gemma(layers: int, window: int = 1024) -> ModelConfig:
    """Every sixth layer sees all of the past."""
    windowed = tuple(layer for layer in range(layers) if layer % 6 != 5)
    return replace(LLAMA, layers=layers, window=WindowAttention(tokens=window, layers=windowed, rope_theta=1e4))


def test_a_model_whose_layers_are_alike_has_one_group() -> None:
    (group,) = kv_groups(LLAMA, 16, KVFormats.of("bf16"))

    assert (group.kind, group.layers, group.window) == (GroupKind.FULL, tuple(range(30)), None)
    assert group.block_bytes == 2 * 30 * 3 * 64 * 2 * 16


@pytest.mark.parametrize(("key", "value", "flag"), [("int4", "auto", "key"), ("int8", "int4", "value")])
def test_heads_that_groups_of_a_format_do_not_divide_are_refused_with_what_serves_them(
    key: str, value: str, flag: str
) -> None:
    with pytest.raises(StartError, match=rf"--kv-{flag}-dtype=int4: .*heads of 80 .*groups of 32 .*int8 and fp8") as it:
        kv_layout(replace(LLAMA, head_dim=80), 16, KVFormats.of("bf16", key, value))

    assert it.value.reason is StartReason.MODEL_UNSUPPORTED


def test_a_window_in_all_layers_is_one_group_too() -> None:
    all_layers = WindowAttention(tokens=4096, layers=tuple(range(30)), rope_theta=1e4)
    (group,) = kv_groups(replace(LLAMA, window=all_layers), 16, KVFormats.of("bf16"))

    assert (group.kind, group.layers, group.window) == (GroupKind.WINDOW, tuple(range(30)), 4096)


def test_a_latent_token_takes_its_rank_and_one_rotary_key_a_layer() -> None:
    """DeepSeek-V2-Lite: 512 + 64 elements where 16 heads of keys and values would be 16 x (192 + 128)."""
    latent = LatentAttention(kv_rank=512, query_rank=None, nope_dim=128, rope_dim=64, value_dim=128)
    (group,) = kv_groups(replace(LLAMA, layers=27, latent=latent), 16, KVFormats.of("bf16"))

    assert group.kind is GroupKind.LATENT
    assert group.block_bytes == 27 * (512 + 64) * 2 * 16


@pytest.mark.parametrize(
    ("layers", "slots", "groups", "idle"),
    [(26, 4, 7, 2), (34, 5, 7, 1), (48, 8, 6, 0), (62, 11, 6, 4)],
    ids=["1B", "4B", "12B", "27B"],
)
def test_gemma_3_shares_a_pool_between_both_kinds_with_little_left_idle(
    layers: int, slots: int, groups: int, idle: int
) -> None:
    config = gemma(layers)
    got = kv_groups(config, 16, KVFormats.of("bf16"))

    assert len(got) == groups
    assert sorted(layer for group in got for layer in group.layers) == list(range(layers))
    assert {group.block_bytes for group in got} == {2 * slots * 3 * 64 * 2 * 16}
    assert sum(slots - len(group.layers) for group in got) == idle
    assert got[0].kind is GroupKind.FULL
    assert {(group.kind, group.window) for group in got} == {(GroupKind.FULL, None), (GroupKind.WINDOW, 1024)}


@given(st.lists(st.integers(0, 200), min_size=1, max_size=2).filter(any))
def test_no_other_number_of_slots_makes_fewer_groups_with_so_little_idle(counts: list[int]) -> None:
    def groups(slots: int) -> int:
        return sum(-(-count // slots) for count in counts)

    def fits(slots: int) -> bool:
        return all(-count % slots <= MOST_PADDING * count for count in counts)

    chosen = slots_per_block(counts)

    assert fits(chosen)
    assert all(groups(slots) >= groups(chosen) for slots in range(1, max(counts) + 1) if fits(slots))
    assert all(groups(slots) > groups(chosen) for slots in range(1, chosen) if fits(slots))


def test_each_layer_has_a_place_of_its_own() -> None:
    layout = kv_layout(gemma(34), 16, KVFormats.of("bf16"))

    assert len(set(layout.places)) == 34
    assert all(place.slot < layout.slots and place.group < len(layout.windows) for place in layout.places)
