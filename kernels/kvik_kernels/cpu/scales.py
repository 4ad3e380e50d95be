"""What the C++ kernels are told of quantised caches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvik_kernels.checks import require_scales
from kvik_kernels.quantised import is_quantised

if TYPE_CHECKING:
    import torch

_NO_SCALES = (0, 0)


def kept_dtype(name: str, kept: torch.dtype | None, computed: torch.dtype) -> torch.dtype:
    """What a cache keeps: the dtype that is computed in when None.

    Raises TypeError, with the argument's name, for one that is neither that nor quantised.
    """
    if kept is None or kept == computed:
        return computed
    if not is_quantised(kept):
        raise TypeError(f"{name}: expected {computed} or a quantised dtype, got {kept}")
    return kept


def scale_arguments(
    keys: torch.Tensor,
    key_scales: torch.Tensor | None,
    values: torch.Tensor,
    value_scales: torch.Tensor | None,
    width: int,
) -> tuple[int | None, int | None, tuple[int, ...], tuple[int, ...]]:
    """The last fields of `struct Layer` and `struct NewTokens`: addresses, then strides of blocks and heads.

    Raises TypeError or ValueError for scales that do not fit their cache, naming them.
    """
    key_at, key_strides = _told("key_scales", keys, key_scales, width)
    value_at, value_strides = _told("value_scales", values, value_scales, width)
    return key_at, value_at, key_strides, value_strides


def _told(
    name: str, cache: torch.Tensor, scales: torch.Tensor | None, width: int
) -> tuple[int | None, tuple[int, ...]]:
    require_scales(name, cache, scales, width)
    return (None, _NO_SCALES) if scales is None else (scales.data_ptr(), scales.stride()[:2])
