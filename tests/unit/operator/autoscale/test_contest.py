from kvik_operator.autoscale.contest import FOREIGN_CHANGES, WITHIN_SECONDS, Contest


def test_our_own_changes_contest_nothing() -> None:
    contest = Contest()
    contest.observe(1, 0.0)
    for now, replicas in ((10.0, 2), (20.0, 4), (30.0, 8), (40.0, 4)):
        contest.wrote(replicas, now)
        contest.observe(replicas, now + 1)
    assert not contest.contested()


def test_three_foreign_changes_within_ten_minutes_do() -> None:
    """LLMKube #484: 41 flaps in 14 minutes."""
    contest = Contest()
    contest.observe(1, 0.0)
    for n in range(FOREIGN_CHANGES):
        assert not contest.contested()
        contest.observe(5 + n, 10.0 * n + 1)
    assert contest.contested()


def test_somebody_who_puts_our_numbers_back_is_noticed() -> None:
    contest = Contest()
    contest.observe(1, 0.0)
    for n in range(FOREIGN_CHANGES):
        contest.wrote(4, 20.0 * n + 5)
        contest.observe(4, 20.0 * n + 6)
        contest.observe(1, 20.0 * n + 10)
    assert contest.contested()


def test_a_person_who_scales_once_in_a_while_does_not_contest() -> None:
    contest = Contest()
    for n in range(20):
        contest.observe(n, n * (WITHIN_SECONDS / 2 + 1))
        assert not contest.contested()


def test_it_is_over_ten_minutes_after_the_last_foreign_change() -> None:
    """Also where the three changes themselves were spread over ten minutes."""
    for times in ((0.0, 1.0, 2.0), (0.0, 300.0, 599.0)):
        contest = Contest()
        contest.observe(9, 0.0)
        for replicas, at in enumerate(times):
            contest.observe(replicas, at)
        for later in (1.0, WITHIN_SECONDS / 2, WITHIN_SECONDS):
            contest.observe(2, times[-1] + later)
            assert contest.contested(), later
        contest.observe(2, times[-1] + WITHIN_SECONDS + 1)
        assert not contest.contested()


def test_each_further_foreign_change_makes_it_last_ten_minutes_more() -> None:
    contest = Contest()
    for n in range(FOREIGN_CHANGES + 1):
        contest.observe(n, float(n))
    assert contest.contested()
    contest.observe(9, WITHIN_SECONDS)
    contest.observe(9, 2 * WITHIN_SECONDS)
    assert contest.contested()
    contest.observe(9, 2 * WITHIN_SECONDS + 1)
    assert not contest.contested()
    contest.observe(8, 2 * WITHIN_SECONDS + 2)
    assert not contest.contested(), "one change is none too many"


def test_a_value_that_the_watch_has_not_brought_yet_is_awaited_for_a_while() -> None:
    contest = Contest()
    contest.wrote(3, 100.0)
    assert contest.awaits(3, 110.0, patience=15.0)
    assert not contest.awaits(4, 110.0, patience=15.0)
    assert not contest.awaits(3, 116.0, patience=15.0)
