"""Rotated queries and keys have the products of unrotated ones, whatever the width of a head."""

import pytest
import torch

from kvik_engine.attention.rotation import Rotation

CPU = torch.device("cpu")


@pytest.mark.parametrize("width", [1, 5, 24, 32, 64, 80, 96, 128, 256])
def test_products_of_rotated_vectors_are_those_of_the_vectors(width: int) -> None:
    draw = torch.Generator().manual_seed(width)
    query, key = torch.randn(2, 7, 3, width, generator=draw, dtype=torch.float64)
    rotation = Rotation(width, torch.float64, CPU)
    got = (rotation(query) * rotation(key)).sum(-1) * rotation.scale

    torch.testing.assert_close(got, (query * key).sum(-1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("width", [64, 128])
def test_the_matrix_is_exact_in_every_type(dtype: torch.dtype, width: int) -> None:
    """What is one element of a vector comes back as equally large parts, with no rounding."""
    parts = Rotation(width, dtype, CPU)(torch.eye(width, dtype=dtype))

    assert torch.equal(parts.float().abs(), torch.full((width, width), 0.125))


def test_one_large_element_is_spread_over_all_of_them() -> None:
    key = torch.zeros(1, 64)
    key[0, 17] = 80.0

    assert Rotation(64, torch.float32, CPU)(key).abs().tolist() == [[10.0] * 64]


def test_vectors_that_lie_apart_are_rotated_as_they_are() -> None:
    whole = torch.randn(4, 9, 64, generator=torch.Generator().manual_seed(1))
    rotation = Rotation(64, torch.float32, CPU)

    torch.testing.assert_close(rotation(whole[:, 3:6]), rotation(whole)[:, 3:6])
