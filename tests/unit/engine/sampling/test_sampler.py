"""Each sampling parameter against a plain computation over one row, and rows that do not mix."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kvik_engine.params import SamplingParams
from kvik_engine.sampling import cpu_choice, cpu_logprobs, device_choice
from kvik_engine.sampling.batch import Samples, SamplingRow, penalised
from kvik_engine.sampling.sampler import sample
from tests.support.plain_sampler import batch_of, plain_sample

VOCAB = 400
PLAIN = SamplingParams(max_tokens=100, seed=11)
GREEDY = replace(PLAIN, temperature=0.0)


def logits_of(rows: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * 3


def run(
    logits: Tensor,
    params: list[SamplingParams],
    tokens: list[list[int]] | None = None,
    prompt: int = 3,
    choice: int = 0,
) -> Samples:
    """Rows with the given params; each has `prompt` prompt tokens and outputs behind them."""
    tokens = tokens or [[0] * (prompt + 2) for _ in params]
    rows = [SamplingRow(params=p, choice=choice, prompt_length=prompt) for p in params]
    return sample(logits.clone(), batch_of(rows, tokens))


CASES = {
    "plain": PLAIN,
    "greedy": GREEDY,
    "temperature": replace(PLAIN, temperature=0.3),
    "high temperature": replace(PLAIN, temperature=1.9),
    "top_k": replace(PLAIN, top_k=5),
    "top_k of one": replace(PLAIN, top_k=1),
    "top_k over the vocabulary": replace(PLAIN, top_k=VOCAB + 10),
    "top_p": replace(PLAIN, top_p=0.7),
    "tiny top_p": replace(PLAIN, top_p=1e-6),
    "min_p": replace(PLAIN, min_p=0.2),
    "all filters": replace(PLAIN, temperature=1.3, min_p=0.01, top_k=30, top_p=0.8),
    "bias": replace(PLAIN, logit_bias=((7, 4.0), (9, -100.0), (7, 0.5))),
    "ban by bias, greedy": replace(GREEDY, logit_bias=tuple((t, -100.0) for t in range(50))),
    "presence": replace(PLAIN, presence_penalty=1.5),
    "frequency": replace(PLAIN, frequency_penalty=0.9),
    "negative penalties": replace(PLAIN, presence_penalty=-2.0, frequency_penalty=-1.0),
    "repetition": replace(PLAIN, repetition_penalty=1.7),
    "repetition below one": replace(GREEDY, repetition_penalty=0.6),
    "min_tokens": replace(GREEDY, min_tokens=3, stop_token_ids=tuple(range(200))),
    "min_tokens reached": replace(GREEDY, min_tokens=2, stop_token_ids=tuple(range(200))),
    "everything": SamplingParams(
        max_tokens=9,
        seed=(1 << 64) - 5,
        temperature=0.8,
        top_k=50,
        top_p=0.9,
        min_p=0.02,
        presence_penalty=0.5,
        frequency_penalty=0.3,
        repetition_penalty=1.2,
        logit_bias=((3, 5.0), (11, 5.0)),
        stop_token_ids=(1, 2),
        min_tokens=5,
        logprobs=4,
    ),
}


@pytest.mark.parametrize("params", CASES.values(), ids=CASES.keys())
def test_a_parameter_does_what_the_plain_computation_does(params: SamplingParams) -> None:
    logits = logits_of(40)
    tokens = [[5, 6, 7, row % 5, row % 3, row % 3][: 4 + row % 3] for row in range(40)]
    each = [replace(params, seed=params.seed ^ row) for row in range(40)]
    got = run(logits, each, tokens)

    want = [
        plain_sample(row, SamplingRow(own, 0, 3), known) for row, own, known in zip(logits, each, tokens, strict=True)
    ]
    assert got.tokens.tolist() == want


def test_rows_of_all_kinds_together_sample_as_each_alone() -> None:
    params = list(CASES.values())
    logits = logits_of(len(params), seed=1)
    tokens = [[1, 2, 3] + [row] * (row % 4) for row in range(len(params))]
    together = run(logits, params, tokens)

    for row, (own, known) in enumerate(zip(params, tokens, strict=True)):
        alone = run(logits[row : row + 1], [own], [known])
        assert together.tokens[row] == alone.tokens[0]


def test_an_accelerator_chooses_the_same_tokens() -> None:
    params = [p for p in CASES.values() if p.logprobs is None and p.logit_bias == () and p.min_tokens == 0]
    rows = [SamplingRow(replace(p, seed=seed), 0, 3) for seed in range(20) for p in params if not penalised(p)]
    logits = logits_of(len(rows), seed=5)
    finite = device_choice.finite_rows(logits)

    batch = batch_of(rows, [[0] * 9] * len(rows))
    want = cpu_choice.choose(logits, batch, finite)
    assert torch.equal(device_choice.choose(logits.clone(), batch, finite), want)


def test_top_p_looks_beyond_its_first_candidates_when_the_distribution_is_flat() -> None:
    logits = torch.zeros(2, 5000)
    logits[0, 17] = 0.5
    logits += torch.linspace(0, 0.1, 5000)
    rows = [SamplingRow(replace(PLAIN, top_p=0.9, seed=seed), 0, 1) for seed in (1, 2)]
    got = sample(logits.clone(), batch_of(rows, [[0], [0]]))

    assert got.tokens.tolist() == [plain_sample(row, own, [0]) for row, own in zip(logits, rows, strict=True)]


def test_samples_follow_the_distribution() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0, -1.0]]).repeat(4000, 1)
    rows = [SamplingRow(params=replace(PLAIN, seed=s), choice=0, prompt_length=1) for s in range(4000)]
    got = sample(logits.clone(), batch_of(rows, [[0] * 5] * len(rows)))

    shares = torch.bincount(got.tokens, minlength=4) / 4000
    assert torch.allclose(shares, logits[0].softmax(-1), atol=0.03)


def test_choices_of_one_request_differ_and_repeat() -> None:
    logits = logits_of(1).repeat(30, 1) / 6
    draws = {}
    for choice in range(4):
        rows = [SamplingRow(params=PLAIN, choice=choice, prompt_length=1)] * 30
        batch = batch_of(rows, [[0] * (1 + output) for output in range(30)])
        draws[choice] = sample(logits.clone(), batch).tokens.tolist()
        assert draws[choice] == sample(logits.clone(), batch).tokens.tolist()

    assert len({tuple(d) for d in draws.values()}) == 4


def test_logprobs_are_of_the_raw_distribution_whatever_the_parameters() -> None:
    logits = logits_of(3)
    params = [
        replace(PLAIN, logprobs=5, temperature=0.2, top_k=1, logit_bias=((4, 100.0),)),
        PLAIN,
        replace(GREEDY, logprobs=0),
    ]
    got = run(logits, params)

    raw = logits.log_softmax(-1)
    assert got.tokens[0] == 4
    assert got.logprobs is not None
    assert got.top_logprobs is not None
    assert got.top_tokens is not None
    torch.testing.assert_close(got.logprobs, torch.stack((raw[0, 4], raw[2, got.tokens[2]])))
    torch.testing.assert_close(got.top_logprobs[0], raw[0].topk(5).values)
    assert got.top_tokens[0].tolist() == raw[0].topk(5).indices.tolist()


def test_logprobs_of_equal_values_name_the_lower_tokens_and_a_row_that_is_not_finite_spoils_no_other() -> None:
    logits = torch.zeros(3, 40)
    logits[0, [31, 7, 19, 23]] = torch.tensor([2.0, 1.0, 1.0, 1.0])
    logits[1, 5] = math.nan
    total, values, tokens = cpu_logprobs.most_likely(logits, 3)

    torch.testing.assert_close(total[::2], logits[::2].logsumexp(1, keepdim=True))
    assert values[::2].tolist() == [[2.0, 1.0, 1.0], [0.0, 0.0, 0.0]]
    assert tokens.tolist() == [[31, 7, 19], [0, 0, 0], [0, 1, 2]]
    assert total[1].isnan().all()
    assert values[1].isnan().all()


def test_no_logprobs_are_computed_when_no_row_asks() -> None:
    got = run(logits_of(2), [PLAIN, GREEDY])

    assert got.logprobs is None
    assert got.top_tokens is None


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("params", [GREEDY, PLAIN, replace(PLAIN, top_p=0.5)], ids=["greedy", "drawn", "filtered"])
def test_a_row_that_is_not_finite_is_marked_and_its_neighbours_are_not_touched(
    bad: float, params: SamplingParams
) -> None:
    logits = logits_of(3)
    alone = run(logits, [params] * 3).tokens.tolist()
    logits[1, 77] = bad
    got = run(logits, [params] * 3)

    assert got.finite.tolist() == [True, False, True]
    assert got.tokens.tolist() == [alone[0], 0, alone[2]]


def test_tokens_as_likely_as_the_last_kept_one_are_kept_too() -> None:
    logits = torch.full((300, VOCAB), -50.0)
    logits[:, :4] = 1.0
    params = [replace(PLAIN, top_k=2, seed=seed) for seed in range(300)]
    got = run(logits, params)

    assert set(got.tokens.tolist()) == {0, 1, 2, 3}
