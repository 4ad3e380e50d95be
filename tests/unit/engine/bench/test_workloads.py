"""Workloads, arrivals and prompts: all of them from a seed."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvik_engine.bench.prompts import Message, TooShort, write
from kvik_engine.bench.workloads import KINDS, Workload, arrivals, conversations

WORKLOAD = Workload("random", input_tokens=40, output_tokens=16, prefix_tokens=100, prefixes=3, turns=4)
TEMPLATE = 9
"""Tokens that the pretended chat template adds to each message."""


def of_kind(kind: str) -> Workload:
    return replace(WORKLOAD, kind=kind)


async def counted(messages: Sequence[Message]) -> int | None:
    """A server whose tokens are words."""
    return sum(TEMPLATE + len(message["content"].split()) for message in messages)


async def uncounted(_: Sequence[Message]) -> int | None:
    return None


@given(st.sampled_from(KINDS), st.integers(1, 200), st.integers())
def test_a_workload_has_the_requests_asked_for_and_its_seed_decides_everything(kind: str, n: int, seed: int) -> None:
    made = conversations(of_kind(kind), n, str(seed))
    assert sum(len(talk.turns) for talk in made) == n
    assert made == conversations(of_kind(kind), n, str(seed))


def test_mixed_lengths_differ_within_their_bounds_and_random_ones_are_as_given() -> None:
    turns = [talk.turns[0] for talk in conversations(of_kind("mixed"), 300, "1")]
    lengths = {turn.input_tokens for turn in turns}
    assert len(lengths) > 50
    assert min(lengths) < 20 < 100 < max(lengths)
    assert all(10 <= turn.input_tokens <= 160 and 4 <= turn.output_tokens <= 64 for turn in turns)
    assert {talk.turns[0].input_tokens for talk in conversations(WORKLOAD, 20, "1")} == {40}


@given(st.integers(1, 100), st.floats(0.01, 100), st.integers())
def test_arrivals_ascend_from_zero(count: int, rate: float, seed: int) -> None:
    times = arrivals(count, rate, str(seed))
    assert len(times) == count
    assert times[0] == 0.0
    assert times == sorted(times)


def test_arrivals_come_at_the_rate_with_gaps_of_a_poisson_process() -> None:
    times = arrivals(20_001, 5.0, "0")
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert sum(gaps) / len(gaps) == pytest.approx(0.2, rel=0.05)
    assert sum(gap < 0.2 for gap in gaps) / len(gaps) == pytest.approx(0.632, abs=0.02)


async def test_prompts_are_exactly_as_long_as_asked_for_where_the_server_counts() -> None:
    made = await write(WORKLOAD, conversations(WORKLOAD, 5, "0"), "0", counted)
    assert made.exact
    for script in made.scripts:
        assert await counted([*script.opening, *script.says]) == WORKLOAD.input_tokens


async def test_prompts_are_counted_for_sixteen_conversations_at_once_and_stay_in_order() -> None:
    now = most = 0

    async def slowly(messages: Sequence[Message]) -> int | None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0)
        now -= 1
        return await counted(messages)

    talks = conversations(WORKLOAD, 50, "0")
    made = await write(WORKLOAD, talks, "0", slowly)
    assert most == 16
    assert [script.conversation for script in made.scripts] == talks
    assert made == await write(WORKLOAD, talks, "0", counted)


async def test_a_shared_prefix_is_the_same_text_in_each_conversation_that_has_it_and_the_rest_is_not() -> None:
    workload = of_kind("shared-prefix")
    made = await write(workload, conversations(workload, 6, "0"), "0", counted)
    openings = [script.opening[0]["content"] for script in made.scripts]
    assert openings[:3] == openings[3:]
    assert len(set(openings)) == 3
    assert len({script.says[0]["content"] for script in made.scripts}) == 6
    for script in made.scripts:
        assert await counted([*script.opening, *script.says]) == 140


async def test_a_server_that_does_not_count_gets_a_word_for_a_token_and_the_output_can_say_so() -> None:
    made = await write(WORKLOAD, conversations(WORKLOAD, 2, "0"), "0", uncounted)
    assert not made.exact
    assert [len(script.says[0]["content"].split()) for script in made.scripts] == [40, 40]


async def test_another_seed_has_other_words() -> None:
    """The warm-up must not bring the measured prompts into the prefix cache."""
    talks = conversations(WORKLOAD, 3, "0")
    made = [await write(WORKLOAD, talks, seed, counted) for seed in ("0", "warm-up 0")]
    one, other = ({script.says[0]["content"] for script in scripts.scripts} for scripts in made)
    assert one.isdisjoint(other)


async def test_a_prompt_shorter_than_the_template_is_refused_with_the_least_that_there_is() -> None:
    short = replace(WORKLOAD, input_tokens=5)
    with pytest.raises(TooShort, match="10 tokens at least, not 5"):
        await write(short, conversations(short, 1, "0"), "0", counted)
