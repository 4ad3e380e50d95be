from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvik_engine.errors import StartError, StartReason
from kvik_engine.kv.sizing import Ledger, blocks_held, device_bytes, longest_request, size_cache
from kvik_engine.step import GroupKind, KVGroup

MIB = 1 << 20
GIB = 1 << 30


def group(*, layers: int, kv_heads: int, head_dim: int, element: int, block_tokens: int = 16) -> KVGroup:
    return KVGroup(
        GroupKind.FULL, tuple(range(layers)), block_tokens, 2 * layers * kv_heads * head_dim * element * block_tokens
    )


DEMO = group(layers=30, kv_heads=3, head_dim=64, element=2)


def size(
    *kv_groups: KVGroup,
    model_context: int = 8192,
    context_limit: int | None = None,
    kv_cache_size: int | None = None,
    memory_fraction: float = 0.9,
    total: int = 4 * GIB,
    used: int = GIB,
) -> Ledger:
    return size_cache(
        kv_groups or (DEMO,),
        model_context=model_context,
        context_limit=context_limit,
        kv_cache_size=kv_cache_size,
        memory_fraction=memory_fraction,
        device_bytes_total=total,
        device_bytes_used=used,
        step_tokens=512,
    )


@pytest.mark.parametrize(
    ("layers", "kv_heads", "want_kib"),
    [
        pytest.param(80, 64, 2560, id="65B-MHA"),
        pytest.param(80, 8, 320, id="70B-GQA-8"),
        pytest.param(32, 8, 128, id="8B"),
    ],
)
def test_bytes_per_token_are_those_of_the_documents(layers: int, kv_heads: int, want_kib: int) -> None:
    ledger = size(group(layers=layers, kv_heads=kv_heads, head_dim=128, element=2), total=80 * GIB)
    assert ledger.bytes_per_token == want_kib * 1024


def test_the_ledger_never_allocates_more_than_it_was_given() -> None:
    ledger = size(kv_cache_size=64 * MIB)
    assert ledger.allocated_bytes <= 64 * MIB < ledger.allocated_bytes + ledger.block_bytes
    assert ledger.allocated_bytes == (ledger.blocks + 1) * DEMO.block_bytes
    assert ledger.max_tokens == ledger.blocks * 16


def test_without_a_size_the_cache_gets_its_fraction_less_what_is_used() -> None:
    ledger = size(memory_fraction=0.5, total=4 * GIB, used=GIB)
    assert ledger.allocated_bytes <= GIB < ledger.allocated_bytes + ledger.block_bytes


@pytest.mark.parametrize(
    ("limit", "size_bytes", "want"),
    [(None, GIB, 8192), (1000, GIB, 1000), (None, 64 * MIB, 2896), (4000, 64 * MIB, 2896)],
)
def test_the_served_context_is_the_least_of_model_limit_and_pool(limit: int | None, size_bytes: int, want: int) -> None:
    assert size(context_limit=limit, kv_cache_size=size_bytes).context == want


@pytest.mark.parametrize(
    "setting",
    [
        pytest.param({"kv_cache_size": DEMO.block_bytes * 16}, id="one-block-short-of-256-tokens"),
        pytest.param({"kv_cache_size": 1}, id="not-one-block"),
        pytest.param({"kv_cache_size": 3 * GIB + 1}, id="more-than-is-left"),
        pytest.param({"memory_fraction": 0.25}, id="fraction-below-what-is-used"),
    ],
)
def test_too_little_memory_is_a_start_error_that_says_the_numbers(setting: dict[str, float]) -> None:
    with pytest.raises(StartError) as error:
        size(**setting)  # type: ignore[arg-type]
    assert error.value.reason is StartReason.INSUFFICIENT_MEMORY
    assert "MiB" in error.value.message


def test_layers_that_see_a_window_do_not_limit_the_context_by_what_is_behind_it() -> None:
    """One full group and three of 1,024 tokens: far fewer blocks than four full groups would take."""
    full = group(layers=4, kv_heads=1, head_dim=64, element=2)
    windowed = replace(full, kind=GroupKind.WINDOW, window=1024)
    cache = {"kv_cache_size": 1001 * full.block_bytes, "model_context": 100_000}
    held = 3 * (1024 // 16 + 2 + 512 // 16)

    assert size(full, full, full, full, **cache).context == 1000 // 4 * 16
    assert size(full, windowed, windowed, windowed, **cache).context == (1000 - held) * 16


@given(blocks=st.integers(64, 5000), window=st.integers(1, 4096), groups=st.integers(0, 6))
def test_the_served_context_fits_and_a_block_more_does_not(blocks: int, window: int, groups: int) -> None:
    windowed = replace(DEMO, kind=GroupKind.WINDOW, window=window)
    kinds = (DEMO, *[windowed] * groups)
    tokens = longest_request(kinds, blocks, step_tokens=512)

    assert blocks_held(kinds, [tokens], step_tokens=512) <= blocks
    assert blocks_held(kinds, [tokens + 16], step_tokens=512) > blocks


def test_a_model_of_short_context_needs_no_more_than_that() -> None:
    assert size(model_context=32, kv_cache_size=DEMO.block_bytes * 3).context == 32


def test_the_ledger_prints_what_it_decided() -> None:
    text = str(size(kv_cache_size=64 * MIB))
    assert "181 blocks of 16 tokens = 2896 tokens" in text
    assert "served context 2896 of the model's 8192" in text


def test_the_smallest_device_that_would_be_enough_is_enough() -> None:
    for percent in range(1, 100):
        for wanted in range(1, 300):
            total = device_bytes(wanted, 0, percent / 100)
            assert int(percent / 100 * total) >= wanted
            assert int(percent / 100 * (total - 1)) < wanted
