"""Arguments that do not fit are refused by name, before any kernel is imported."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from kvik_kernels import kv_write, paged_attention


def write_arguments() -> dict[str, Any]:
    buffer = torch.zeros(4, 2, 2, 2, 16, 64)
    return {
        "k": torch.zeros(3, 2, 64),
        "v": torch.zeros(3, 2, 64),
        "k_cache": buffer[:, 0, 0],
        "v_cache": buffer[:, 0, 1],
        "slots": torch.zeros(3, dtype=torch.int64),
    }


def attention_arguments() -> dict[str, Any]:
    buffer = torch.zeros(4, 2, 2, 2, 16, 64)
    return {
        "q": torch.zeros(5, 6, 64),
        "k_cache": buffer[:, 0, 0],
        "v_cache": buffer[:, 0, 1],
        "block_tables": torch.zeros(2, 3, dtype=torch.int32),
        "query_starts": torch.tensor([0, 1, 5], dtype=torch.int32),
        "seq_lens": torch.tensor([8, 4], dtype=torch.int32),
        "scale": 0.125,
        "max_query_len": 4,
    }


def turned(tensor: torch.Tensor) -> torch.Tensor:
    """The same shape with a last dimension that is not contiguous."""
    return tensor.transpose(-1, -2).contiguous().transpose(-1, -2)


WRITE_FAULTS: list[tuple[str, Any, type[Exception]]] = [
    ("k", torch.zeros(3, 128), ValueError),
    ("k", torch.zeros(3, 2, 64, dtype=torch.float64), TypeError),
    ("k", turned(torch.zeros(3, 2, 64)), ValueError),
    ("v", torch.zeros(3, 1, 64), ValueError),
    ("v", torch.zeros(3, 2, 64, dtype=torch.float16), TypeError),
    ("k_cache", torch.zeros(4, 3, 16, 64), ValueError),
    ("k_cache", torch.zeros(4, 2, 12, 64), ValueError),
    ("v_cache", torch.zeros(4, 2, 8, 64), ValueError),
    ("v_cache", torch.zeros(4, 2, 16, 64, dtype=torch.bfloat16), TypeError),
    ("v_cache", turned(torch.zeros(4, 2, 16, 64)), ValueError),
    ("slots", torch.zeros(2, dtype=torch.int64), ValueError),
    ("slots", torch.zeros(3, dtype=torch.int32), TypeError),
    ("slots", torch.zeros(6, dtype=torch.int64)[::2], ValueError),
    ("slots", torch.zeros(3, dtype=torch.int64, device="meta"), ValueError),
]

ATTENTION_FAULTS: list[tuple[str, Any, type[Exception]]] = [
    ("q", torch.zeros(5, 384), ValueError),
    ("q", torch.zeros(5, 6, 64, dtype=torch.float64), TypeError),
    ("q", torch.zeros(5, 5, 64), ValueError),
    ("q", turned(torch.zeros(5, 6, 64)), ValueError),
    ("k_cache", torch.zeros(4, 2, 16, 32), ValueError),
    ("k_cache", torch.zeros(4, 2, 16, 64, dtype=torch.float16), TypeError),
    ("v_cache", torch.zeros(4, 1, 16, 64), ValueError),
    ("block_tables", torch.zeros(2, 3, dtype=torch.int64), TypeError),
    ("block_tables", torch.zeros(3, 3, dtype=torch.int32), ValueError),
    ("block_tables", torch.zeros(2, 6, dtype=torch.int32)[:, ::2], ValueError),
    ("query_starts", torch.zeros(2, dtype=torch.int32), ValueError),
    ("query_starts", torch.zeros(3, dtype=torch.int64), TypeError),
    ("seq_lens", torch.zeros(2, 1, dtype=torch.int32), ValueError),
    ("seq_lens", torch.zeros(2, dtype=torch.float32), TypeError),
    ("seq_lens", torch.zeros(2, dtype=torch.int32, device="meta"), ValueError),
    ("out", torch.zeros(4, 6, 64), ValueError),
    ("out", torch.zeros(5, 6, 64, dtype=torch.float16), TypeError),
    ("scale", 0.0, ValueError),
    ("scale", float("nan"), ValueError),
    ("max_query_len", 0, ValueError),
]


@pytest.mark.parametrize(("name", "value", "error"), WRITE_FAULTS)
def test_kv_write_names_the_argument_that_does_not_fit(name: str, value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=rf"^{name}: "):
        kv_write(**write_arguments() | {name: value})


@pytest.mark.parametrize(("name", "value", "error"), ATTENTION_FAULTS)
def test_paged_attention_names_the_argument_that_does_not_fit(name: str, value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=rf"^{name}: "):
        paged_attention(**attention_arguments() | {name: value})


def test_a_head_wider_than_the_tiles_is_refused() -> None:
    caches = {name: torch.zeros(4, 2, 16, 512) for name in ("k_cache", "v_cache")}
    with pytest.raises(ValueError, match=r"^q: head dimensions of 1 to 256 are supported, got 512"):
        paged_attention(**attention_arguments() | {"q": torch.zeros(5, 6, 512)} | caches)


@pytest.mark.parametrize(
    ("operation", "arguments"), [(kv_write, write_arguments), (paged_attention, attention_arguments)]
)
def test_cpu_tensors_are_refused_outside_the_interpreter(
    operation: Callable[..., object], arguments: Callable[[], dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine chooses its backend; a silent fall-back to torch would hide a wrong choice."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ValueError, match="Triton kernels need a CUDA or ROCm tensor"):
        operation(**arguments())
