"""The arithmetic of bench.kv_quality."""

import pytest
import torch

from bench.kv_quality import CAPACITY, StepTimes, capacity, equal_beginnings
from kvik_engine.attention.kv_layout import KVFormats
from tests.support.kv_model import MODEL


def test_answers_count_up_to_their_first_different_token() -> None:
    want = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])
    got = torch.tensor([[1, 2, 3, 4], [5, 0, 7, 8]])

    assert equal_beginnings(got, want) == (4 + 1) / 8


def test_a_ratio_of_steps_is_the_median_of_the_pairs() -> None:
    """One pair met other work on the machine, which slowed both."""
    times = StepTimes(full=[0.010, 0.100, 0.012], quantised=[0.011, 0.110, 0.018])

    assert times.ratio == pytest.approx(1.1)
    assert times.milliseconds == pytest.approx(18.0)


@pytest.mark.parametrize("pair", CAPACITY)
def test_heads_of_64_have_the_capacity_that_each_pair_promises(pair: str) -> None:
    assert capacity(MODEL, KVFormats.of("bf16", *pair.split("+"))) >= CAPACITY[pair]


def test_a_bf16_cache_has_the_capacity_of_itself() -> None:
    assert capacity(MODEL, KVFormats.of("bf16")) == 1.0
