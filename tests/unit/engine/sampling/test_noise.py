"""Noise depends on seed, choice, output position, purpose and token id, and on nothing else."""

import math

import pytest
import torch

from kvik_engine.sampling.noise import Purpose, gumbel, noise_of_bits, stream_key

PINNED_KEY = -1478924511821986345
PINNED_NOISE = [2.845785, 1.400035, 0.709216, -1.143913]


def keys(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64)


def test_noise_of_a_row_is_the_same_alone_and_among_neighbours() -> None:
    mine = stream_key(1234, 0, 7)
    alone = gumbel(keys(mine), 1000)
    among = gumbel(keys(stream_key(9, 0, 0), mine, stream_key(9, 1, 3)), 1000)

    assert torch.equal(alone[0], among[1])


def test_noise_of_a_token_does_not_depend_on_the_size_of_the_vocabulary() -> None:
    key = keys(stream_key(5, 0, 0))

    assert torch.equal(gumbel(key, 64)[0], gumbel(key, 4096)[0, :64])


@pytest.mark.parametrize(
    "other",
    [
        stream_key(43, 0, 0),
        stream_key(42, 1, 0),
        stream_key(42, 0, 1),
        stream_key(42, 1, 1),
        stream_key(42 + (1 << 63), 0, 0),
    ],
    ids=["seed", "choice", "position", "choice and position", "high bit of the seed"],
)
def test_noise_changes_with_each_part_of_its_name(other: int) -> None:
    first, second = gumbel(keys(stream_key(42, 0, 0), other), 5000)

    correlation = torch.corrcoef(torch.stack((first, second)))[0, 1].item()
    assert abs(correlation) < 0.06


def test_keys_of_a_hundred_thousand_names_are_all_different() -> None:
    seen = {stream_key(seed, choice, position) for seed in range(20) for choice in range(5) for position in range(1000)}

    assert len(seen) == 100_000


def test_noise_is_pinned_so_that_a_seed_means_the_same_in_every_version() -> None:
    key = stream_key(2024, 1, 5, Purpose.TOKEN)

    assert key == PINNED_KEY
    assert gumbel(keys(key), 4)[0].tolist() == pytest.approx(PINNED_NOISE, abs=1e-6)


def test_noise_equals_splitmix_and_the_gumbel_formula_in_plain_python() -> None:
    key = stream_key(77, 3, 9)
    mask = (1 << 64) - 1
    want = []
    for token in range(50):
        z = (key + (token + 1) * 0x9E3779B97F4A7C15) & mask
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        z ^= z >> 31
        want.append(-math.log(-math.log(((z >> 12) + 0.5) * 2.0**-52)))

    assert gumbel(keys(key), 50)[0].tolist() == pytest.approx(want, rel=1e-6)


@pytest.mark.parametrize("bits", [0, -1, -(1 << 63), (1 << 63) - 1], ids=["none", "all", "the highest", "all but it"])
def test_noise_is_finite_whatever_the_bits(bits: int) -> None:
    assert noise_of_bits(keys(bits)).isfinite().all()


def test_noise_is_standard_gumbel() -> None:
    values = gumbel(keys(*(stream_key(seed, 0, 0) for seed in range(20))), 10_000).double().flatten()

    assert values.isfinite().all()
    assert values.mean().item() == pytest.approx(0.57722, abs=0.01)
    assert values.var().item() == pytest.approx(math.pi**2 / 6, abs=0.02)
    for quantile in (0.01, 0.25, 0.5, 0.75, 0.99):
        assert values.quantile(quantile).item() == pytest.approx(-math.log(-math.log(quantile)), abs=0.06)
