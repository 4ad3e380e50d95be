"""The CPU kernels' screening of a draw, against the plain computation."""

import pytest
import torch
from torch import Tensor

from kvik_kernels.cpu.library import InstructionSet, load_library
from kvik_kernels.cpu.screen import Screen
from tests.support.cpu_kernels import SETS, needs_kernels

pytestmark = needs_kernels
each_set = pytest.mark.parametrize("isa", SETS, ids=lambda isa: isa.name)
COUNTS = (1, 7, 16, 17, 63, 64, 65, 511, 512, 513, 2001)
MASK = (1 << 64) - 1


def draw(count: int) -> Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(count)) * 4


def upper_bits(key: int, token: int) -> int:
    """Of 1 - u, with u the uniform of SplitMix64's output `token`; the last xor changes none of them."""
    state = ((token + 1) * 0x9E3779B97F4A7C15 + key) & MASK
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    state = ((state ^ (state >> 27)) * -0x94D049BB133111EB) & MASK
    return state >> 32


@each_set
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("named", [False, True])
def test_what_passes_is_told_by_mass_and_bits(isa: InstructionSet, count: int, named: bool) -> None:
    values, top = draw(count), float(draw(count).max())
    tokens = torch.arange(count) * 3 + 5 if named else None
    for key in (0, 12345, MASK, -1):
        factor = 2.0**31
        got = Screen(load_library(), isa).places(values, tokens, key=key, top=top, factor=factor, slack=4.0)
        masses = ((values.double() - top).exp() * factor + 4.0).tolist()
        shares = [
            upper_bits(key & MASK, place if tokens is None else int(tokens[place])) / mass
            for place, mass in enumerate(masses)
        ]
        assert got.tolist() == sorted(set(got.tolist()))
        assert {place for place, share in enumerate(shares) if share < 0.9999} <= set(got.tolist())
        assert {place for place, share in enumerate(shares) if share > 1.0001}.isdisjoint(got.tolist())


@each_set
def test_everything_passes_a_large_slack_and_masked_tokens_pass_by_it_alone(isa: InstructionSet) -> None:
    values = torch.full((130,), -torch.inf)
    values[70] = 0.0
    screen = Screen(load_library(), isa)
    assert screen.places(values, None, key=1, top=0.0, factor=1.0, slack=2.0**32).tolist() == list(range(130))
    assert screen.places(values, None, key=1, top=0.0, factor=2.0**33, slack=-1.0).tolist() == [70]


def test_arguments_that_do_not_fit_are_named() -> None:
    screen, values = Screen(load_library()), draw(8)
    for bad, error in ((values.double(), TypeError), (values[::2], ValueError), (values.view(2, 4), ValueError)):
        with pytest.raises(error, match="values"):
            screen.places(bad, None, key=1, top=0.0, factor=1.0, slack=4.0)
    for tokens, error in ((torch.arange(8).int(), TypeError), (torch.arange(7), ValueError)):
        with pytest.raises(error, match="tokens"):
            screen.places(values, tokens, key=1, top=0.0, factor=1.0, slack=4.0)
