"""The scoreboard's lines and page: that what is published is what was seen, failures included."""

from __future__ import annotations

from typing import Any

from bench.kept_lines import read
from bench.scoreboard.__main__ import ROWS
from bench.scoreboard.nodes import Loss, judged
from bench.scoreboard.page import PAGE, RESULTS, page
from bench.scoreboard.row import Outcome, Row, line
from bench.scoreboard.under_traffic import Seen, outcome
from tests.support.in_cluster_traffic import Traffic

MACHINE = {"cpu": "Abacus", "cpus": 2, "load": 0.5, "version": "0.1.0", "commit": "c0ffee0000", "date": "2026-11-30"}


def result(row_id: str = "7a", **more: Any) -> dict[str, Any]:
    measured = Outcome(**{"value": 0.0, "ok": True, "figures": {"requests": 2345.0}, **more})
    row = Row(
        id=row_id,
        what="A roll fails no request",
        unit="failed requests",
        wanted="0 of 2,000",
        how="a roll",
        measure=lambda _: measured,
    )
    return line(row, measured, MACHINE)


def test_the_published_page_is_made_from_the_published_lines() -> None:
    assert PAGE.read_text() == page(read(RESULTS))


def test_every_published_line_is_of_a_row_that_can_be_tried_again() -> None:
    published = [one["id"] for one in read(RESULTS)]

    assert published, "nothing was tried"
    assert len(published) == len(set(published))
    assert set(published) <= {row.id for row in ROWS}


def test_rows_have_different_names() -> None:
    assert len({row.id for row in ROWS}) == len(ROWS)


def test_the_page_says_what_was_seen_and_on_which_machine_day_and_commit() -> None:
    text = page([result()])

    assert "| 7a | A roll fails no request | 0 failed requests | 0 of 2,000 | yes |" in text
    assert "Made from commit c0ffee0000 on 2026-11-30." in text
    for part in ("requests 2,345", "Abacus", "load 0.5", "version 0.1.0", "commit c0ffee0000"):
        assert part in text


def test_a_row_that_is_not_kept_is_shown_with_its_reason() -> None:
    text = page([result(value=2.0, ok=False, reason="2 failed"), result("7b", value=None, ok=False, reason="no pod")])

    assert "| 2 failed requests | 0 of 2,000 | **no** |" in text
    assert "**Not kept**: 2 failed." in text
    assert "| nothing | 0 of 2,000 | **no** |" in text


def seen(short: int = 2000, seconds: float = 10.0, failures: tuple[str, ...] = (), long: int = 8) -> Seen:
    return Seen(Traffic(short, list(failures), 0.1, seconds), Traffic(long, [], 0.2, seconds))


def test_a_change_under_too_little_traffic_proves_nothing() -> None:
    assert outcome(seen()).ok
    assert outcome(seen(seconds=11.0)).reason == "the machine had time for 182 requests a second only"
    assert outcome(seen(short=1000, seconds=5.0)).reason == "only 1008 requests were sent"
    assert outcome(seen(seconds=11.0)).only_slow
    assert not outcome(seen(seconds=11.0, failures=("503 draining",))).only_slow


def test_a_change_under_no_traffic_at_all_is_no_slow_machine() -> None:
    for kind, found in (("short", outcome(seen(short=0))), ("long", outcome(seen(long=0)))):
        assert not found.ok
        assert not found.only_slow
        assert f"no {kind} request succeeded" in str(found.reason)


def test_one_failed_request_is_one_too_many_and_is_told() -> None:
    found = outcome(seen(failures=("503 draining",)))

    assert (found.value, found.ok) == (1, False)
    assert found.reason == "1 failed, the first with: 503 draining"


def test_what_else_went_wrong_fails_a_row_too() -> None:
    assert outcome(seen(), "replaced: Pod/a").reason == "replaced: Pod/a"


def watched(*looks: tuple[float, bool, bool]) -> Loss:
    """After these looks: seconds, whether NodeLost was told, whether a pod served elsewhere."""
    loss = Loss()
    for seconds, says_lost, serves in looks:
        loss = loss.with_look(seconds, says_lost=says_lost, serves=serves)
    return loss


def test_a_lost_node_is_timed_from_its_first_of_each() -> None:
    looks = ((1.0, False, False), (2.0, True, False), (9.0, True, False), (35.0, True, True), (36.0, False, True))
    found = judged(watched(*looks, (50.0, True, True)))

    assert (found.value, found.ok) == (35.0, True)
    assert found.figures == {"told after, seconds": 2.0, "taken back after the pool served, seconds": 1.0}


def test_a_lost_node_that_is_told_healed_or_taken_back_too_late_fails_its_row() -> None:
    late = judged(watched((31.0, True, False), (61.0, True, True), (77.0, False, True)))

    assert late.reason == "told after 31 s; served after 61 s; taken back after 16 s"
    assert not late.ok
    assert judged(watched((30.0, True, False), (60.0, True, True), (75.0, False, True))).ok


def test_a_lost_node_of_which_nothing_is_ever_told_fails_its_row() -> None:
    for looks, what in (
        (((40.0, False, True),), "not told while it was watched; not taken back while it was watched"),
        (((1.0, True, False),), "not served while it was watched; not taken back while it was watched"),
        (((1.0, True, False), (40.0, True, True)), "not taken back while it was watched"),
    ):
        found = judged(watched(*looks))
        assert (found.ok, found.reason) == (False, what)
