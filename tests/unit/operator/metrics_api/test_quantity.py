"""Numbers as Kubernetes quantities."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvik_operator.crd.quantities import parse_quantity
from kvik_operator.metrics_api.quantity import format_quantity


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (3.0, "3"),
        (0.437, "437m"),
        (1.5, "1500m"),
        (0.1, "100m"),
        (0.0001, "1m"),
        (0.25, "250m"),
        (2e15, "2000000000000000"),
    ],
)
def test_a_number_is_written_in_thousandths_rounded_up(value: float, text: str) -> None:
    assert format_quantity(value) == text


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_no_quantity(value: float) -> None:
    """A NaN that passes as a metric scales pools to their end (ray #64725)."""
    with pytest.raises(ValueError, match="is no quantity"):
        format_quantity(value)


@given(st.floats(min_value=0, max_value=2**53))
def test_it_is_never_below_the_number_and_off_by_a_thousandth_at_most(value: float) -> None:
    read = float(parse_quantity(format_quantity(value)))
    assert value <= read * (1 + 1e-15)
    assert read <= value + 0.001 + value * 1e-15
