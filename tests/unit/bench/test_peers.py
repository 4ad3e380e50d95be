"""Beside other servers: which figure is a win, and that the section says what was measured."""

from __future__ import annotations

from typing import Any

import pytest

from bench.peers.goals import (
    GOALS,
    LLAMA,
    LLAMA_BF16,
    LLAMA_Q4_0,
    OURS,
    OURS_INT8,
    TOKENS,
    TPOT,
    VLLM,
    Goal,
    Judged,
    Verdict,
    judged,
)
from bench.peers.loads import LOADS, Load, written
from bench.peers.page import HEADING, placed, section
from bench.peers.servers import given
from kvik_engine.bench.prompts import Message
from kvik_engine.bench.workloads import Workload

MACHINE = {"cpu": "Abacus", "cpus": 2, "load": 0.5, "date": "2026-11-30"}
QUICK = Goal("1 client", TPOT, (LLAMA_BF16, LLAMA_Q4_0), 1.2)
MANY = Goal("1 client", TOKENS, (LLAMA_BF16, LLAMA_Q4_0), 1.5)


def line(
    server: str, under: str = "1 client", *, tpot: float | None = 10.0, tokens: float = 100.0, failed: int = 0
) -> dict[str, Any]:
    spread = None if tpot is None else {"p50": tpot}
    failures = {"HTTP 500": {"count": failed, "example": "no"}} if failed else {}
    return {
        "server": server,
        "under": under,
        "version": "7",
        "machine": MACHINE,
        "completed": 16 - failed,
        "failed": failed,
        "failures": failures,
        "prompt_tokens": 2048,
        "ttft_ms": spread,
        "tpot_ms": spread,
        "output_tokens_per_second": tokens,
    }


def one(goal: Goal, *lines: dict[str, Any]) -> Judged:
    (found,) = judged(lines, [goal])
    return found


def test_less_time_is_a_win_and_so_are_more_tokens() -> None:
    lines = line(OURS, tpot=11.0, tokens=160.0), line(LLAMA_BF16)
    assert one(QUICK, *lines).verdict is Verdict.REACHED
    assert one(MANY, *lines).verdict is Verdict.REACHED


def test_a_ratio_beyond_its_bound_is_missed() -> None:
    lines = line(OURS, tpot=12.5, tokens=149.0), line(LLAMA_BF16)
    assert (one(QUICK, *lines).ratio, one(QUICK, *lines).verdict) == (1.25, Verdict.MISSED)
    assert one(MANY, *lines).verdict is Verdict.MISSED


def test_the_best_of_the_peers_counts_whichever_way_the_figure_goes() -> None:
    lines = (
        line(OURS, tpot=8.0, tokens=200.0),
        line(LLAMA_BF16, tpot=9.0, tokens=90.0),
        line(LLAMA_Q4_0, tpot=6.0, tokens=150.0),
    )
    assert (one(QUICK, *lines).against, one(QUICK, *lines).verdict) == (LLAMA_Q4_0, Verdict.MISSED)
    assert (one(MANY, *lines).against, one(MANY, *lines).theirs) == (LLAMA_Q4_0, 150.0)


def test_a_bound_kept_beside_a_peer_that_failed_requests_is_no_win() -> None:
    assert one(MANY, line(OURS, tokens=200.0), line(LLAMA_BF16, failed=3)).verdict is Verdict.NO_WIN
    assert one(MANY, line(OURS, tokens=120.0), line(LLAMA_BF16, failed=3)).verdict is Verdict.MISSED


def test_failed_requests_of_ours_miss_every_goal() -> None:
    assert one(MANY, line(OURS, tokens=900.0, failed=1), line(LLAMA_BF16)).verdict is Verdict.MISSED
    assert one(QUICK, line(OURS, tpot=None, failed=16), line(LLAMA_BF16)).verdict is Verdict.MISSED


def test_nothing_is_said_of_a_peer_that_was_not_there_or_answered_nothing() -> None:
    assert one(MANY, line(OURS)).verdict is Verdict.NOT_MEASURED
    assert one(QUICK, line(OURS), line(LLAMA_BF16, "8 clients")).verdict is Verdict.NOT_MEASURED
    assert one(QUICK, line(OURS), line(LLAMA_BF16, tpot=None, failed=16)).verdict is Verdict.NOT_MEASURED


def test_goals_are_of_loads_and_servers_that_are_measured() -> None:
    assert {goal.under for goal in GOALS} <= {load.name for load in LOADS}
    assert {peer for goal in GOALS for peer in goal.peers} == {VLLM, *LLAMA}


def test_int8_weights_are_set_beside_the_peers_of_their_goal() -> None:
    goal = Goal("1 client", TPOT, (LLAMA_Q4_0,), 1.3, OURS_INT8)
    lines = line(OURS, tpot=20.0), line(OURS_INT8, tpot=12.0), line(LLAMA_Q4_0)
    assert (one(goal, *lines).ours, one(goal, *lines).verdict) == (12.0, Verdict.REACHED)
    assert one(goal, line(OURS, tpot=5.0), line(LLAMA_Q4_0)).verdict is Verdict.NOT_MEASURED


def test_the_section_names_the_machine_the_misses_and_the_failures() -> None:
    text = section([line(OURS, tpot=12.5), line(LLAMA_BF16, failed=2), line(LLAMA_Q4_0)])
    assert "On 2 x Abacus, load 0.5 before the run, 2026-11-30: kvik bf16 (7), llama.cpp BF16 (7)" in text
    assert "| 14 | **2** | 2,048 | 10.0 ms | 10.0 ms | 100 |" in text
    assert "llama.cpp BF16, 1 client: 2 failed with `HTTP 500`." in text
    assert (
        "| 1 client | TPOT P50, ms | kvik bf16 | llama.cpp BF16 | llama.cpp BF16 | 12.5 | 10.0 | 1.25 | 1.2 or less | "
        "**MISSED** |" in text
    )
    assert "| not measured |" in text


def test_a_section_takes_the_place_of_the_one_before_and_leaves_its_neighbours() -> None:
    new = f"{HEADING}\nnew\n"
    assert placed("# P\n\n## A\na\n", new) == f"# P\n\n## A\na\n\n{new}"
    assert placed(f"# P\n\n{HEADING}\nold\n\n## B\nb\n", new) == f"# P\n\n{new}\n## B\nb\n"
    assert placed(f"# P\n\n{new}", new) == f"# P\n\n{new}"


@pytest.mark.parametrize(
    ("text", "name", "url"),
    [
        ("vllm=http://127.0.0.1:8000", "vllm", "http://127.0.0.1:8000"),
        ("http://h:1/v1?a=b", "http://h:1/v1?a=b", "http://h:1/v1?a=b"),
        ("h:1", "h:1", "h:1"),
    ],
)
def test_a_peer_has_the_name_that_it_is_given_or_its_url(text: str, name: str, url: str) -> None:
    peer = given(text)
    assert (peer.name, peer.url) == (name, url)


@pytest.mark.parametrize("text", ["", "vllm=", "=http://h"])
def test_what_is_no_peer_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no URL"):
        given(text)


async def test_a_load_is_written_as_long_as_it_should_be_or_not_at_all() -> None:
    load = Load("few", "", Workload("random", 10, 4, 0, 1, 1), clients=1, requests=3)

    async def words(messages: object) -> int:
        assert isinstance(messages, tuple)
        return sum(len(message["content"].split()) for message in messages)

    async def nothing(_: object) -> None:
        return None

    made = await written(load, words)
    said: list[Message] = [script.says[0] for script in made.measured]
    assert [len(message["content"].split()) for message in said] == [10, 10, 10]
    assert made.before[0].says[0] not in said
    with pytest.raises(RuntimeError, match="not as long"):
        await written(load, nothing)
