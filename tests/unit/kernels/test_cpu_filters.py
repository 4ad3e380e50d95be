"""The CPU kernels' mass of a row and its filters' floors, against sorting in fp64."""

import math

import pytest
import torch
from torch import Tensor

from kvik_kernels.cpu.filters import Filters
from kvik_kernels.cpu.library import InstructionSet, load_library
from tests.support.cpu_kernels import SETS, needs_kernels

pytestmark = needs_kernels
each_set = pytest.mark.parametrize("isa", SETS, ids=lambda isa: isa.name)
COUNTS = (1, 7, 16, 17, 63, 64, 65, 511, 512, 513, 2001, 20_000)
SPREADS = (0.01, 1.0, 4.0, 50.0)
each_row = pytest.mark.parametrize(("count", "spread"), [(count, spread) for count in COUNTS for spread in SPREADS])


def draw(count: int, spread: float = 4.0) -> Tensor:
    """Some of them equal, and every seventh masked but for the first."""
    values = torch.randn(count, generator=torch.Generator().manual_seed(count)) * spread
    values[5::4] = values[5::4].round()
    values[7::7] = -torch.inf
    return values


def reached(values: Tensor, floor: float) -> Tensor:
    return values[values >= floor].sort(descending=True).values


@each_set
@each_row
def test_the_mass_is_the_sum_of_exponentials(isa: InstructionSet, count: int, spread: float) -> None:
    values = draw(count, spread)
    want = float((values.double() - values.max()).exp().sum())
    assert Filters(load_library(), isa).mass(values, float(values.max())) == pytest.approx(want, rel=1e-6)


@each_set
@each_row
def test_the_largest_values_reach_the_floor_of_their_number_and_no_other(
    isa: InstructionSet, count: int, spread: float
) -> None:
    values, filters = draw(count, spread), Filters(load_library(), isa)
    ordered = values[values > -torch.inf].sort(descending=True).values
    for wanted in sorted({1, 2, 3, 50, 65, count // 2 + 1, count - 1, count, count + 5} - {0}):
        got = reached(values, filters.floor_of_count(values, float(ordered[0]), wanted))
        last = ordered[min(wanted, len(ordered)) - 1]
        assert got.tolist() == ordered[ordered >= last].tolist()


@each_set
@each_row
def test_the_fewest_values_of_a_share_of_the_mass_reach_its_floor(
    isa: InstructionSet, count: int, spread: float
) -> None:
    values, filters = draw(count, spread), Filters(load_library(), isa)
    top = float(values.max())
    ordered = values[values > -torch.inf].sort(descending=True).values
    masses = (ordered.double() - top).exp()
    before, total = masses.cumsum(0) - masses, float(masses.sum())
    for share in (1e-9, 0.1, 0.5, 0.9, 0.99, 0.9999):
        got = reached(values, filters.floor_of_share(values, top, share))
        # Sums in fp32 may tell a value apart that lies on the edge.
        for nearly, compare in ((share - 1e-6, len(got).__ge__), (share + 1e-6, len(got).__le__)):
            last = ordered[max(1, int((before < nearly * total).sum())) - 1]
            assert compare(int((ordered >= last).sum()))
        assert got.tolist() == ordered[: len(got)].tolist()


@each_set
def test_values_as_far_apart_as_can_be_still_have_floors(isa: InstructionSet) -> None:
    most = torch.finfo(torch.float32).max
    values, filters = torch.linspace(-1, 1, 301).double().mul(most).float(), Filters(load_library(), isa)
    assert len(reached(values, filters.floor_of_count(values, most, 200))) == 200
    assert len(reached(values, filters.floor_of_share(values, most, 0.5))) == 1
    assert len(reached(torch.zeros(300), filters.floor_of_count(torch.zeros(300), 0.0, 3))) == 300


@each_set
def test_rows_of_nan_end_with_some_floor(isa: InstructionSet) -> None:
    values, filters = torch.full((300,), math.nan), Filters(load_library(), isa)
    floor = filters.floor_of_count(values, math.nan, 3)
    assert len(filters.at_least(values, None, floor)[0]) == 0
    assert len(filters.at_least(values, None, filters.floor_of_share(values, math.nan, 0.5))[0]) == 0


@each_set
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("named", [False, True])
def test_kept_are_the_values_from_a_floor_on_with_their_tokens(isa: InstructionSet, count: int, named: bool) -> None:
    values = draw(count)
    tokens = torch.arange(count) * 3 + 5 if named else None
    for floor in (-math.inf, -1.0, float(values[count // 2]), float(values.max()), math.inf):
        kept, ids = Filters(load_library(), isa).at_least(values, tokens, floor)
        places = torch.nonzero(values >= floor).flatten()
        assert kept.tolist() == values[places].tolist()
        assert ids.tolist() == (places if tokens is None else tokens[places]).tolist()


def test_arguments_that_do_not_fit_are_named() -> None:
    filters, values = Filters(load_library()), draw(8)
    for bad, error in ((values.double(), TypeError), (values[::2], ValueError), (values.view(2, 4), ValueError)):
        with pytest.raises(error, match="values"):
            filters.mass(bad, 0.0)
        with pytest.raises(error, match="values"):
            filters.floor_of_count(bad, 0.0, 1)
        with pytest.raises(error, match="values"):
            filters.at_least(bad, None, 0.0)
    for tokens, error in ((torch.arange(8).int(), TypeError), (torch.arange(7), ValueError)):
        with pytest.raises(error, match="tokens"):
            filters.at_least(values, tokens, 0.0)
