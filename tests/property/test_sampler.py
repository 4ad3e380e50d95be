"""The sampler's short cuts against a full sort and every token's noise: the same token in every case."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kvik_engine.params import SamplingParams
from kvik_engine.sampling import cpu_choice, cpu_filters, cpu_screen, device_choice
from kvik_engine.sampling.batch import SamplingRow
from kvik_engine.sampling.device_filters import floor_of_weight
from kvik_engine.sampling.noise import gumbel, stream_key
from kvik_engine.sampling.sampler import sample
from kvik_kernels.cpu.filters import Filters
from kvik_kernels.cpu.library import InstructionSet, load_library
from kvik_kernels.cpu.screen import Screen
from tests.support.cpu_kernels import SETS
from tests.support.plain_sampler import batch_of, plain_sample

SEEDS = st.integers(0, (1 << 64) - 1)
by_numpy_and_kernels = pytest.mark.parametrize(
    "isa", [None, *SETS], ids=lambda isa: "numpy" if isa is None else isa.name.lower()
)


def computed_by(isa: InstructionSet | None) -> AbstractContextManager[object]:
    """By the kernels for an instruction set, or by numpy."""
    screen, filters = (None, None) if isa is None else (Screen(load_library(), isa), Filters(load_library(), isa))
    together = ExitStack()
    together.enter_context(patch.object(cpu_screen, "_kernel", lambda: screen))
    together.enter_context(patch.object(cpu_filters, "compiled", lambda: filters))
    return together


@st.composite
def distributions(draw: st.DrawFn) -> Tensor:
    """fp32 [vocabulary]: flat, peaked, with ties, shifted far from 0; of one token up to more than are ever sorted."""
    vocabulary = draw(st.sampled_from([1, 2, 7, 255, 257, 512, 513, 600, 3000, 9000]))
    logits = torch.randn(vocabulary, generator=torch.Generator().manual_seed(draw(st.integers(0, 1 << 30))))
    logits *= draw(st.sampled_from([0.0, 0.01, 1.0, 3.0, 12.0]))
    if draw(st.booleans()):
        logits = (logits * 4).round() / 4
    if draw(st.booleans()):
        logits[draw(st.integers(0, vocabulary - 1))] += 15
    return logits + draw(st.sampled_from([0.0, -0.0, 300.0, -1e4, 1e8]))


@st.composite
def masked(draw: st.DrawFn) -> Tensor:
    """The same after some tokens were forbidden, if there are enough."""
    logits = draw(distributions())
    if len(logits) > 9:
        logits[3 : 3 + draw(st.integers(0, 5))] = -math.inf
    return logits


@st.composite
def sampling(draw: st.DrawFn) -> SamplingParams:
    """Any temperature with any of the filters."""
    return SamplingParams(
        max_tokens=9,
        seed=draw(SEEDS),
        temperature=draw(st.sampled_from([0.01, 0.3, 0.7, 1.0, 1.5, 2.0])),
        top_k=draw(st.none() | st.integers(1, 40) | st.integers(1, 9000)),
        top_p=draw(st.just(1.0) | st.sampled_from([1e-6, 0.5, 0.9, 0.99, 0.999999]) | st.floats(0.01, 1.0)),
        min_p=draw(st.just(0.0) | st.sampled_from([1e-8, 0.05, 1.0]) | st.floats(1e-6, 1.0)),
    )


@by_numpy_and_kernels
@settings(max_examples=100, deadline=None)
@given(logits=masked(), each=st.lists(sampling(), min_size=1, max_size=4), position=st.integers(0, 5))
def test_filtered_draws_equal_a_full_sort_on_cpus_and_accelerators(
    isa: InstructionSet | None, logits: Tensor, each: list[SamplingParams], position: int
) -> None:
    rows = [SamplingRow(params, choice, 3) for choice, params in enumerate(each)]
    together = logits.repeat(len(rows), 1)
    finite = torch.ones(len(rows), dtype=torch.bool)

    known = [0] * (3 + position)
    want = [plain_sample(logits, row, known) for row in rows]
    batch = batch_of(rows, [known] * len(rows))
    with computed_by(isa):
        assert cpu_choice.choose(together, batch, finite).tolist() == want
    assert device_choice.choose(together.clone(), batch, finite).tolist() == want


@settings(max_examples=80, deadline=None)
@given(data=st.data(), logits=distributions(), params=sampling())
def test_bias_penalties_and_forbidden_stops_equal_the_plain_computation(
    data: st.DataObject, logits: Tensor, params: SamplingParams
) -> None:
    tokens = st.integers(0, len(logits) - 1)
    known = data.draw(st.lists(tokens, min_size=1, max_size=30))
    params = replace(
        params,
        temperature=data.draw(st.sampled_from([0.0, params.temperature])),
        presence_penalty=data.draw(st.sampled_from([0.0, 0.5, -2.0])),
        frequency_penalty=data.draw(st.sampled_from([0.0, 0.3, -1.0])),
        repetition_penalty=data.draw(st.sampled_from([1.0, 1.3, 0.7])),
        logit_bias=tuple((token, 2.5) for token in data.draw(st.lists(tokens, max_size=3))),
        stop_token_ids=tuple(data.draw(st.lists(tokens, max_size=3))),
        min_tokens=data.draw(st.sampled_from([0, 9])),
    )
    row = SamplingRow(params, 0, data.draw(st.integers(1, len(known))))
    neighbour = SamplingRow(replace(params, presence_penalty=0.0, seed=1), 0, 1)
    got = sample(logits.repeat(2, 1), batch_of([neighbour, row], [known, known]))

    assert got.tokens[1] == plain_sample(logits, row, known)


@by_numpy_and_kernels
@settings(max_examples=100, deadline=None)
@given(logits=distributions(), seed=SEEDS)
def test_no_token_that_reaches_the_level_is_screened_out(isa: InstructionSet | None, logits: Tensor, seed: int) -> None:
    key = stream_key(seed, 0, 0)
    with computed_by(isa):
        places, level = cpu_screen.screen(logits.numpy(), None, float(logits.max()), key)
    scores = logits + gumbel(torch.tensor([key]), len(logits))[0]

    assert set(torch.nonzero(scores >= level).flatten().tolist()) <= set(places.tolist())


def test_a_draw_whose_winner_stays_below_the_level_is_made_among_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_screen, "REACH", -1.0)  # two draws in three stay below this level
    logits = torch.randn(300, 2000, generator=torch.Generator().manual_seed(3))
    rows = [SamplingRow(SamplingParams(max_tokens=9, seed=seed), 0, 1) for seed in range(300)]
    below = [
        scores.max().item() < logits[seed].logsumexp(0).item() + 1
        for seed, scores in enumerate(logits + gumbel(torch.tensor([stream_key(s, 0, 0) for s in range(300)]), 2000))
    ]

    assert sum(below) > 150
    got = cpu_choice.choose(logits, batch_of(rows, [[0]] * 300), torch.ones(300, dtype=torch.bool))
    assert got.tolist() == [plain_sample(logits[seed], row, [0]) for seed, row in enumerate(rows)]


@settings(max_examples=200, deadline=None)
@given(
    values=st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False) | st.just(-math.inf), min_size=1),
    data=st.data(),
)
def test_floor_of_weight_equals_adding_up_in_sorted_order(values: list[float], data: st.DataObject) -> None:
    weights = data.draw(st.lists(st.integers(0, 1 << 40), min_size=len(values), max_size=len(values)))
    weights[0] += 1
    wanted = data.draw(st.integers(1, sum(weights)))

    want = next(
        value
        for value in sorted(values, reverse=True)
        if sum(weight for other, weight in zip(values, weights, strict=True) if other >= value) >= wanted
    )
    got = floor_of_weight(torch.tensor([values]), torch.tensor([weights]), torch.tensor([[wanted]]))
    assert got.item() == want
