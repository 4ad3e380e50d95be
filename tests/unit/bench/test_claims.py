"""The claims' lines and page: that what is published is what was measured, failures included."""

from __future__ import annotations

from typing import Any

import pytest

from bench.claims.__main__ import CLAIMS
from bench.claims.claim import COUNTED, Claim, Measured, line
from bench.claims.engine import CpuClock
from bench.claims.page import PAGE, RESULTS, page
from bench.kept_lines import merge, read

MACHINE = {"cpu": "Abacus", "cpus": 2, "load": 0.5, "dtype": "fp32", "version": "0.1.0", "date": "2026-11-29"}


def result(claim_id: str = "3", **more: Any) -> dict[str, Any]:
    measured = Measured(**{"baseline": 4096.0, "ours": 64.0, "ratio": 64.0, "ok": True, **more})
    claim = Claim(
        id=claim_id,
        what="One prefix is held once",
        baseline="no prefix cache",
        unit="blocks",
        wanted="60 times fewer",
        concurrency="64",
        prompt_tokens="1024 + 16",
        output_tokens="16",
        clock=COUNTED,
        measure=lambda: measured,
    )
    return line(claim, claim.measure(), MACHINE)


def test_the_published_page_is_made_from_the_published_lines() -> None:
    assert PAGE.read_text() == page(read(RESULTS))


def test_every_published_line_is_of_a_claim_that_can_be_tried_again() -> None:
    published = [one["id"] for one in read(RESULTS)]

    assert published, "nothing was measured"
    assert len(published) == len(set(published))
    assert set(published) <= {claim.id for claim in CLAIMS}


def test_claims_have_different_names() -> None:
    assert len({claim.id for claim in CLAIMS}) == len(CLAIMS)


def test_the_page_says_how_many_requests_of_which_lengths_and_on_what_machine() -> None:
    text = page([result()])

    for part in (
        "Requests at once: 64",
        "Prompt tokens: 1024 + 16",
        "Output tokens: 16",
        "Abacus",
        "load 0.5",
        "version 0.1.0",
    ):
        assert part in text
    assert "| 3 | One prefix is held once | 4,096 | 64 | blocks | 64 | 60 times fewer | yes |" in text


def test_a_claim_that_does_not_hold_is_shown_with_its_reason() -> None:
    text = page([result(ok=False, reason="2 tokens were lost")])

    assert "| **no** |" in text
    assert "**Does not hold**: 2 tokens were lost." in text


def test_a_new_line_takes_the_place_of_the_old_one_of_its_claim() -> None:
    merged = merge([result("10"), result("3", ours=1.0), result("4b")], [result("3"), result("4a")])

    assert [one["id"] for one in merged] == ["3", "4a", "4b", "10"]
    assert merged[0]["ours"] == 64


def test_skipped_time_counts_and_never_goes_back() -> None:
    clock = CpuClock()
    clock.skip_to(100.0)
    assert clock() == pytest.approx(100.0, abs=1.0)
    clock.skip_to(50.0)
    assert clock() >= 100.0
