from datetime import timedelta
from decimal import Decimal

import pytest

from kvik_operator.crd.quantities import format_bytes, format_duration, parse_duration, parse_quantity


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("120s", 120), ("1h30m", 5400), ("1m1ms", 60.001), ("99999h", 99999 * 3600)],
)
def test_a_gep_2257_duration_is_read(text: str, seconds: float) -> None:
    assert parse_duration(text).total_seconds() == seconds


@pytest.mark.parametrize("text", ["", "5", "1d", "-1s", "1.5s", "PT1S", "1s ", "0s", "0h0ms", "100000s", "1s1s1s1s1s"])
def test_anything_else_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "want"),
    [("1500ms", "1500ms"), ("2s", "2s"), ("5m", "300s"), ("30m", "30m"), ("90m", "90m"), ("2h", "2h"), ("61s", "61s")],
)
def test_a_duration_is_written_in_one_unit(text: str, want: str) -> None:
    assert format_duration(parse_duration(text)) == want
    assert parse_duration(want) == parse_duration(text)


def test_a_duration_of_days_is_written_in_hours() -> None:
    assert format_duration(timedelta(days=2)) == "48h"


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("300m", "0.3"),
        (2, "2"),
        ("2500Mi", str(2500 * 2**20)),
        ("1.5Gi", str(3 * 2**29)),
        ("1e3", "1000"),
        ("1E", str(10**18)),
        ("+.5k", "500"),
        ("100n", "1e-7"),
    ],
)
def test_a_quantity_is_read_exactly(text: str | int, want: str) -> None:
    assert parse_quantity(text) == Decimal(want)


@pytest.mark.parametrize("text", ["", "1 Gi", "Gi", "1gi", "1.2.3", "one", "1e", "--1"])
def test_anything_else_is_no_quantity(text: str) -> None:
    with pytest.raises(ValueError, match="quantity"):
        parse_quantity(text)


@pytest.mark.parametrize("text", ["1e999999999", "1e400", "1e-400", "1E+19"])
def test_a_quantity_that_no_machine_holds_is_refused_at_once(text: str) -> None:
    """The API server accepts it; without a bound one pool could fill the operator's memory."""
    with pytest.raises(ValueError, match="out of range"):
        parse_quantity(text)


@pytest.mark.parametrize(
    ("value", "want"),
    [("6442450944", "6Gi"), ("1.5Gi", "1536Mi"), ("2500000000", "2500000000"), ("0.5", "1"), ("0", "0")],
)
def test_bytes_are_written_in_the_largest_unit_that_loses_nothing(value: str, want: str) -> None:
    assert format_bytes(parse_quantity(value)) == want
