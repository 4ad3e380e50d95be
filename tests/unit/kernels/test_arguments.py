"""Arguments that do not fit are refused by name, before any kernel is imported."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from kvik_kernels import kv_write, paged_attention, rms_norm, rotary, swiglu


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


def norm_arguments() -> dict[str, Any]:
    return {"x": torch.zeros(3, 64), "weight": torch.zeros(64), "eps": 1e-5, "dtype": torch.float16}


def rotary_arguments() -> dict[str, Any]:
    return {"x": torch.zeros(3, 6, 64), "cos": torch.zeros(3, 1, 32), "sin": torch.zeros(3, 1, 32)}


def gate_arguments() -> dict[str, Any]:
    return {"gate_up": torch.zeros(3, 64)}


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

NORM_FAULTS: list[tuple[str, Any, type[Exception]]] = [
    ("x", torch.zeros(3, 1, 64), ValueError),
    ("x", torch.zeros(3, 64, dtype=torch.float16), TypeError),
    ("x", turned(torch.zeros(3, 64)), ValueError),
    ("weight", torch.zeros(32), ValueError),
    ("weight", torch.zeros(64, dtype=torch.float16), TypeError),
    ("weight", torch.zeros(64, device="meta"), ValueError),
    ("dtype", torch.float64, TypeError),
    ("addend", torch.zeros(2, 64), ValueError),
    ("addend", torch.zeros(3, 64, dtype=torch.float64), TypeError),
    ("addend", turned(torch.zeros(3, 64)), ValueError),
    ("addend", torch.zeros(3, 64, device="meta"), ValueError),
]

ROTARY_FAULTS: list[tuple[str, Any, type[Exception]]] = [
    ("x", torch.zeros(3, 384), ValueError),
    ("x", torch.zeros(3, 6, 63), ValueError),
    ("x", torch.zeros(3, 0, 64), ValueError),
    ("x", torch.zeros(3, 6, 64, dtype=torch.float64), TypeError),
    ("x", turned(torch.zeros(3, 6, 64)), ValueError),
    ("cos", torch.zeros(3, 32), ValueError),
    ("cos", torch.zeros(3, 1, 32, dtype=torch.float16), TypeError),
    ("sin", torch.zeros(3, 1, 64), ValueError),
    ("sin", torch.zeros(3, 1, 64)[..., ::2], ValueError),
    ("sin", torch.zeros(3, 1, 32, device="meta"), ValueError),
]

GATE_FAULTS: list[tuple[str, Any, type[Exception]]] = [
    ("gate_up", torch.zeros(3, 2, 64), ValueError),
    ("gate_up", torch.zeros(3, 63), ValueError),
    ("gate_up", torch.zeros(3, 0), ValueError),
    ("gate_up", torch.zeros(3, 64, dtype=torch.float64), TypeError),
    ("gate_up", turned(torch.zeros(3, 64)), ValueError),
]


@pytest.mark.parametrize(("name", "value", "error"), WRITE_FAULTS)
def test_kv_write_names_the_argument_that_does_not_fit(name: str, value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=rf"^{name}: "):
        kv_write(**write_arguments() | {name: value})


@pytest.mark.parametrize(("name", "value", "error"), ATTENTION_FAULTS)
def test_paged_attention_names_the_argument_that_does_not_fit(name: str, value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=rf"^{name}: "):
        paged_attention(**attention_arguments() | {name: value})


@pytest.mark.parametrize(("name", "value", "error"), NORM_FAULTS)
def test_rms_norm_names_the_argument_that_does_not_fit(name: str, value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=rf"^{name}: "):
        rms_norm(**norm_arguments() | {name: value})


@pytest.mark.parametrize(("name", "value", "error"), ROTARY_FAULTS)
def test_rotary_names_the_argument_that_does_not_fit(name: str, value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=rf"^{name}: "):
        rotary(**rotary_arguments() | {name: value})


@pytest.mark.parametrize(("name", "value", "error"), GATE_FAULTS)
def test_swiglu_names_the_argument_that_does_not_fit(name: str, value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=rf"^{name}: "):
        swiglu(**gate_arguments() | {name: value})


def test_a_row_wider_than_a_program_holds_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^x: rows must have 1 to 32768 elements, got 32769"):
        rms_norm(torch.zeros(1, 32769), torch.zeros(32769), 1e-5, torch.float32)


def test_a_head_wider_than_the_tiles_is_refused() -> None:
    caches = {name: torch.zeros(4, 2, 16, 512) for name in ("k_cache", "v_cache")}
    with pytest.raises(ValueError, match=r"^q: head dimensions of 1 to 256 are supported, got 512"):
        paged_attention(**attention_arguments() | {"q": torch.zeros(5, 6, 512)} | caches)


@pytest.mark.parametrize(
    ("operation", "arguments"),
    [
        (kv_write, write_arguments),
        (paged_attention, attention_arguments),
        (rms_norm, norm_arguments),
        (rotary, rotary_arguments),
        (swiglu, gate_arguments),
    ],
)
def test_cpu_tensors_are_refused_outside_the_interpreter(
    operation: Callable[..., object], arguments: Callable[[], dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine chooses its backend; a silent fall-back to torch would hide a wrong choice."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ValueError, match="Triton kernels need a CUDA or ROCm tensor"):
        operation(**arguments())
