"""Argument checks shared by the operations. Each names the argument in the error it raises."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvik_kernels.quantised import WITHOUT_SCALES, is_quantised, kept_width, scales_shape

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch


def require_shape(name: str, tensor: torch.Tensor, shape: Sequence[int | None]) -> None:
    """Raise ValueError unless `tensor` has `shape`; None fits any length."""
    if tensor.dim() != len(shape) or any(
        want is not None and got != want for got, want in zip(tensor.shape, shape, strict=True)
    ):
        wanted = ", ".join("any" if want is None else str(want) for want in shape)
        raise ValueError(f"{name}: expected shape [{wanted}], got {list(tensor.shape)}")


def require_dtype(name: str, tensor: torch.Tensor, *allowed: torch.dtype) -> None:
    """Raise TypeError unless `tensor` has one of the `allowed` dtypes."""
    if tensor.dtype not in allowed:
        raise TypeError(f"{name}: expected {' or '.join(map(str, allowed))}, got {tensor.dtype}")


def require_unit_stride(name: str, tensor: torch.Tensor) -> None:
    """Raise ValueError unless the last dimension of `tensor` is contiguous, which the kernels take for granted."""
    if tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
        raise ValueError(f"{name}: the last dimension must be contiguous, its stride is {tensor.stride(-1)}")


def require_positive(name: str, value: int) -> None:
    """Raise ValueError unless `value` is 1 or more."""
    if value < 1:
        raise ValueError(f"{name}: expected 1 or more, got {value}")


def require_all_fit(dtype: torch.dtype, *tensors: tuple[str, torch.Tensor, tuple[int | None, ...]]) -> None:
    """Name, tensor and shape of each, all of one dtype and with a contiguous last dimension. For calls that are made in
    every layer: tells in a microsecond that all is well, and looks for what is wrong only if it is not."""
    for _, tensor, shape in tensors:
        found = tensor.shape
        if tensor.dtype is not dtype or len(found) != len(shape) or found[1:] != shape[1:] or tensor.stride(-1) != 1:
            break
        if shape[0] not in (found[0], None):
            break
    else:
        return
    for name, tensor, shape in tensors:
        require_shape(name, tensor, shape)
        require_dtype(name, tensor, dtype)
        require_unit_stride(name, tensor)


def require_same_device(name: str, tensor: torch.Tensor, other_name: str, other: torch.Tensor) -> None:
    """Raise ValueError unless both tensors lie on one device."""
    if tensor.device != other.device:
        raise ValueError(f"{name}: expected the device of {other_name}, {other.device}, got {tensor.device}")


def require_block_tokens(name: str, block_tokens: int) -> None:
    """Raise ValueError unless the block length is a power of two: kernels split positions by shift and mask."""
    if block_tokens < 1 or block_tokens & (block_tokens - 1):
        raise ValueError(f"{name}: tokens per block must be a power of two, got {block_tokens}")


def require_scales(name: str, cache: torch.Tensor, scales: torch.Tensor | None, width: int) -> None:
    """Raise TypeError or ValueError unless the bfloat16 scales are those of a cache of vectors of `width` elements, as
    kvik_kernels.quantised has them. Those of a head's tokens in a block lie one behind the other."""
    import torch

    if scales is None:
        if is_quantised(cache.dtype) and str(cache.dtype) not in WITHOUT_SCALES:
            raise ValueError(f"{name}: a cache of {cache.dtype} has some")
        return
    if not is_quantised(cache.dtype):
        raise ValueError(f"{name}: a cache of {cache.dtype} has none")
    of_vector = scales_shape(cache.dtype, width)
    require_shape(name, scales, (*cache.shape[:3], *of_vector))
    require_dtype(name, scales, torch.bfloat16)
    require_unit_stride(name, scales)
    if of_vector and scales.stride(2) != of_vector[0]:
        raise ValueError(f"{name}: those of a head's tokens must lie one behind the other")


def require_kept(
    name: str, cache: torch.Tensor, scales_name: str, scales: torch.Tensor | None, plain: torch.dtype, width: int
) -> None:
    """Raise TypeError or ValueError unless a cache of vectors of `width` elements is of dtype `plain` or quantised,
    with scales on its device where it has any."""
    if not is_quantised(cache.dtype):
        require_dtype(name, cache, plain)
    require_shape(name, cache, (None, None, None, kept_width(cache.dtype, width)))
    require_scales(scales_name, cache, scales, width)
    if scales is not None:
        require_same_device(scales_name, scales, name, cache)
