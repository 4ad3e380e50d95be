from hypothesis import given
from hypothesis import strategies as st

from kvik_operator.autoscale.windows import (
    GROWTH_PERIOD_SECONDS,
    MAX_GAP_SECONDS,
    DownWindow,
    GrowthLimit,
    ShrinkLimit,
)


def test_nothing_is_known_before_a_whole_window_was_seen() -> None:
    """A fresh operator does not scale down."""
    window = DownWindow()
    for now in range(0, 300, 5):
        window.add(float(now), 1, 300.0)
        assert window.highest(float(now), 300.0) is None
    window.add(300.0, 1, 300.0)
    assert window.highest(300.0, 300.0) == 1


def test_the_most_that_was_needed_rules_until_it_leaves_the_window() -> None:
    window = DownWindow()
    for now in range(0, 61, 5):
        window.add(float(now), 4 if now == 30 else 1, 30.0)
    assert window.highest(60.0, 30.0) == 4
    window.add(65.0, 1, 30.0)
    assert window.highest(65.0, 30.0) == 1


def test_a_gap_in_the_data_starts_the_window_anew() -> None:
    window = DownWindow()
    for now in range(0, 41, 5):
        window.add(float(now), 1, 30.0)
    assert window.highest(40.0, 30.0) == 1
    after = 40.0 + MAX_GAP_SECONDS + 1
    window.add(after, 1, 30.0)
    assert window.highest(after, 30.0) is None


def test_a_longer_window_waits_for_what_it_has_not_seen() -> None:
    """However long the pool has run: samples beyond the shorter window are forgotten."""
    window = DownWindow()
    for now in range(0, 3601, 5):
        window.add(float(now), 8 if now < 3500 else 1, 20.0)
    assert window.highest(3600.0, 20.0) == 1
    assert window.highest(3600.0, 600.0) is None
    for now in range(3605, 4181, 5):
        window.add(float(now), 1, 600.0)
        assert (window.highest(float(now), 600.0) is None) == (now < 4180), now
    assert window.highest(4180.0, 600.0) == 1


def test_replicas_at_most_double_in_fifteen_seconds() -> None:
    growth = GrowthLimit()
    growth.note(0.0, 1)
    assert growth.limit() == 2
    growth.note(5.0, 2)
    assert growth.limit() == 2
    growth.note(GROWTH_PERIOD_SECONDS, 2)
    assert growth.limit() == 4


def test_one_pod_goes_in_a_third_of_the_window() -> None:
    shrink = ShrinkLimit()
    shrink.note(0.0, 8, 300.0)
    assert shrink.limit() == 7
    shrink.note(5.0, 7, 300.0)
    assert shrink.limit() == 7
    shrink.note(100.0, 7, 300.0)
    assert shrink.limit() == 6


def test_of_many_pods_a_tenth_goes_in_a_third_of_the_window() -> None:
    shrink = ShrinkLimit()
    shrink.note(0.0, 47, 300.0)
    assert (shrink.step(), shrink.limit()) == (4, 43)


@given(st.lists(st.tuples(st.floats(0.1, 19), st.integers(1, 50)), min_size=1, max_size=60), st.floats(1, 200))
def test_the_window_answers_with_the_maximum_of_what_it_covers(steps: list[tuple[float, int]], length: float) -> None:
    window, now, seen = DownWindow(), 0.0, list[tuple[float, int]]()
    for pause, needed in steps:
        now += pause
        window.add(now, needed, length)
        seen.append((now, needed))
    covered = seen[0][0] <= now - length
    want = max(needed for at, needed in seen if at >= now - length) if covered else None
    assert window.highest(now, length) == want
