"""The runner over hand-made plans: rows, chunks, prefixes, forks, copies and overlapped steps change no token."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import numpy as np
import pytest
import torch

from kvik_engine.attention.reference import ReferenceBackend
from kvik_engine.layers.head import LanguageHead
from kvik_engine.layers.product import PlainProduct
from kvik_engine.models.llama import Llama
from kvik_engine.params import SamplingParams
from kvik_engine.runner.rows import RowTable
from kvik_engine.runner.runner import ModelRunner
from kvik_engine.step import (
    BlockCopy,
    BlockId,
    HostSlot,
    Row,
    RowFork,
    RowStart,
    RowWork,
    Sample,
    StepPlan,
    SwapIn,
    SwapOut,
    TableChange,
)
from tests.support.plan_driver import GREEDY, DrivenRequest, PlanDriver
from tests.support.tiny_model import BLOCK_TOKENS, TINY, tiny_runner

DRAWN = SamplingParams(max_tokens=99, seed=5, temperature=1.0)
BLOCKS, ROWS = 256, 8
LENGTHS = (1, 3, 4, 5, 17, 30, 64, 90)


def prompt(length: int) -> list[int]:
    draw = torch.Generator().manual_seed(length)
    return torch.randint(0, TINY.vocab_size, (length,), generator=draw).tolist()


def drive(requests: list[DrivenRequest], *, runner: ModelRunner | None = None, **how: int) -> list[list[int]]:
    driver = PlanDriver(
        runner or tiny_runner(blocks=BLOCKS, rows=ROWS), rows=ROWS, blocks=BLOCKS, block_tokens=BLOCK_TOKENS
    )
    driver.run(requests, **{"chunk": 1000, **how})
    return [request.outputs for request in requests]


def requests(params: SamplingParams = GREEDY, **options: int) -> list[DrivenRequest]:
    return [
        DrivenRequest(prompt(length), max_tokens=12, params=replace(params, seed=length), **options)
        for length in LENGTHS
    ]


@pytest.fixture(scope="module", params=[GREEDY, DRAWN], ids=["greedy", "drawn"])
def params(request: pytest.FixtureRequest) -> SamplingParams:
    given: SamplingParams = request.param
    return given


@pytest.fixture(scope="module")
def alone(params: SamplingParams) -> list[list[int]]:
    """Each request in a runner of its own, over the reference backend."""
    return [drive([one], runner=tiny_runner(backend=ReferenceBackend()))[0] for one in requests(params)]


@pytest.mark.parametrize("chunk", [1, 5, 16, 1000])
@pytest.mark.parametrize("depth", [0, 1])
def test_packed_rows_give_the_tokens_of_each_alone(
    params: SamplingParams, alone: list[list[int]], chunk: int, depth: int
) -> None:
    assert drive(requests(params), chunk=chunk, depth=depth) == alone


def test_a_small_step_budget_mixes_chunks_and_decodes_and_changes_nothing(
    params: SamplingParams, alone: list[list[int]]
) -> None:
    assert drive(requests(params), chunk=7, budget=11) == alone


@pytest.mark.parametrize("depth", [0, 1])
def test_a_preempted_row_comes_back_with_the_same_tokens(
    params: SamplingParams, alone: list[list[int]], depth: int
) -> None:
    assert drive(requests(params, preempt_after=5), chunk=9, depth=depth) == alone


def test_more_requests_than_rows_take_over_rows_as_they_end(params: SamplingParams, alone: list[list[int]]) -> None:
    assert drive([*requests(params), *requests(params), *requests(params)], chunk=20) == alone * 3


def test_a_prefix_that_is_in_the_cache_is_not_computed_again() -> None:
    runner = tiny_runner(blocks=BLOCKS, rows=ROWS)
    driver = PlanDriver(runner, rows=ROWS, blocks=BLOCKS, block_tokens=BLOCK_TOKENS)
    whole = prompt(30)
    blocks = driver.take_blocks(28)
    work = RowWork(Row(0), 0, 28, False, (tuple(blocks),), ())
    runner.launch(StepPlan(0, (work,), started=(RowStart(Row(0), whole[:28], 28, 0, GREEDY, ((),)),)))
    runner.launch(StepPlan(1, (), ended=(Row(0),)))
    assert runner.collect().samples == ()
    assert runner.collect().samples == ()
    hit = DrivenRequest(whole, max_tokens=12, cached_blocks=blocks)
    driver.run([hit], chunk=1000)

    assert hit.outputs == drive([DrivenRequest(whole, max_tokens=12)])[0]


def test_forks_sample_from_the_sources_logits_and_go_on_as_rows_of_their_own(params: SamplingParams) -> None:
    """Branches 1 and 2 share the prompt's full blocks; the part-filled last one is copied before each writes on."""
    tokens, steps = prompt(10), 6
    want = [drive([DrivenRequest(tokens, max_tokens=steps, params=params, choice=c)])[0] for c in range(3)]
    runner = tiny_runner()
    shared = (BlockId(5), BlockId(9), BlockId(3))
    work = RowWork(Row(0), 0, 10, False, (shared,), (Row(0), Row(4), Row(6)))
    runner.launch(
        StepPlan(
            0,
            (work,),
            started=(RowStart(Row(0), tokens, 10, 0, params, ((),)),),
            forks=(RowFork(Row(4), Row(0), 1, (shared,)), RowFork(Row(6), Row(0), 2, (shared,))),
        )
    )
    got = by_row(runner)
    for step in range(1, steps):
        first = step == 1
        runner.launch(
            StepPlan(
                step,
                tuple(decode(row, 9 + step) for row in (0, 4, 6)),
                copies=(BlockCopy(BlockId(3), BlockId(11)), BlockCopy(BlockId(3), BlockId(12))) if first else (),
                changes=(
                    (TableChange(Row(4), 0, 2, BlockId(11)), TableChange(Row(6), 0, 2, BlockId(12))) if first else ()
                ),
            )
        )
        for row, sample in by_row(runner).items():
            got[row] += sample

    assert [got[Row(0)], got[Row(4)], got[Row(6)]] == want


def decode(row: int, start: int) -> RowWork:
    """The row's last sample is computed; a new block comes where one begins."""
    new = (BlockId(20 + row * 8 + start),) if start % BLOCK_TOKENS == 0 else ()
    return RowWork(Row(row), start, 1, True, (new,), (Row(row),))


def by_row(runner: ModelRunner) -> dict[Row, list[int]]:
    return {sample.row: [sample.token] for sample in runner.collect().samples}


def test_results_come_first_in_first_out_and_in_the_order_of_the_sampled_rows() -> None:
    runner = tiny_runner()
    starts = tuple(RowStart(Row(row), prompt(3 + row), 3 + row, 0, GREEDY, ((),)) for row in (6, 1, 3))
    works = tuple(
        RowWork(
            start.row,
            0,
            len(start.tokens),
            False,
            ((BlockId(1 + 3 * start.row), BlockId(2 + 3 * start.row), BlockId(3 + 3 * start.row)),),
            (start.row,),
        )
        for start in starts
    )
    runner.launch(StepPlan(7, works, started=starts))
    runner.launch(StepPlan(8, (), ended=(Row(1),)))
    first, second = runner.collect(), runner.collect()

    assert (first.step, second.step) == (7, 8)
    assert [sample.row for sample in first.samples] == [6, 1, 3]
    assert second.samples == ()
    assert first.seconds > 0


def test_a_prompt_that_is_not_complete_samples_nothing() -> None:
    runner = tiny_runner()
    start = RowStart(Row(2), prompt(9), 9, 0, GREEDY, ((),))
    runner.launch(StepPlan(0, (RowWork(Row(2), 0, 4, False, ((BlockId(1),),), ()),), started=(start,)))

    assert runner.collect().samples == ()


def test_logprobs_reach_the_samples_of_the_rows_that_asked() -> None:
    asked = replace(GREEDY, logprobs=3)
    runner = tiny_runner()
    started = (
        RowStart(Row(0), prompt(4), 4, 0, GREEDY, ((),)),
        RowStart(Row(1), prompt(5), 5, 0, asked, ((),)),
        RowStart(Row(2), prompt(6), 6, 0, replace(asked, logprobs=0), ((),)),
    )
    blocks = {0: (1,), 1: (2, 3), 2: (4, 5)}
    works = tuple(
        RowWork(s.row, 0, len(s.tokens), False, (tuple(BlockId(b) for b in blocks[s.row]),), (s.row,)) for s in started
    )
    runner.launch(StepPlan(0, works, started=started))
    plain, three, chosen_only = runner.collect().samples

    assert (plain.logprob, plain.top) == (None, ())
    assert three.logprob == three.top[0].logprob
    assert three.token == three.top[0].token
    assert [top.logprob for top in three.top] == sorted((top.logprob for top in three.top), reverse=True)
    assert len(three.top) == 3
    assert chosen_only.logprob is not None
    assert chosen_only.top == ()


def test_a_row_whose_output_is_not_finite_ends_alone_and_its_blocks_can_be_used_again() -> None:
    runner = tiny_runner()
    bad, good = prompt(6), prompt(7)
    model = cast("Llama", runner._model)
    embedding = model.embedding.weight
    model.head = LanguageHead(PlainProduct(embedding.clone()))
    keep = embedding[bad[2]].clone()
    assert bad[2] not in good
    want = drive([DrivenRequest(good, max_tokens=4)])[0]
    embedding[bad[2]] = torch.inf
    samples = start_two(runner, bad, good)
    embedding[bad[2]] = keep

    assert samples[0].error == "the model's output for this request was not finite"
    assert samples[1] == Sample(Row(1), want[0])
    third = RowStart(Row(0), good, 7, 0, GREEDY, ((),))
    reuse = RowWork(Row(0), 0, 7, False, ((BlockId(2), BlockId(1)),), (Row(0),))
    runner.launch(StepPlan(1, (reuse, decode(1, 7)), ended=(Row(0),), started=(third,)))
    assert [sample.token for sample in runner.collect().samples] == want[:2]


def start_two(runner: ModelRunner, bad: list[int], good: list[int]) -> tuple[Sample, ...]:
    started = (
        RowStart(Row(0), bad, len(bad), 0, GREEDY, ((),)),
        RowStart(Row(1), good, len(good), 0, GREEDY, ((),)),
    )
    works = (
        RowWork(Row(0), 0, len(bad), False, ((BlockId(1), BlockId(2)),), (Row(0),)),
        RowWork(Row(1), 0, len(good), False, ((BlockId(3), BlockId(4)),), (Row(1),)),
    )
    runner.launch(StepPlan(0, works, started=started))
    return runner.collect().samples


def test_penalties_see_the_tokens_of_their_row_alone_also_after_preemption() -> None:
    penalised = replace(GREEDY, repetition_penalty=1.8, presence_penalty=0.7, frequency_penalty=0.4)
    mine = DrivenRequest(prompt(9), max_tokens=20, params=penalised)
    want = drive([mine])[0]
    assert len(set(want)) > len(set(drive([DrivenRequest(prompt(9), max_tokens=20)])[0]))
    again = DrivenRequest(prompt(9), max_tokens=20, params=penalised, preempt_after=8)
    others = [DrivenRequest(prompt(length), max_tokens=25) for length in (4, 40)]

    assert drive([others[0], again, others[1]], chunk=6, depth=1)[1] == want


def test_what_the_pool_takes_is_what_the_groups_say() -> None:
    runner = tiny_runner()
    (group,) = runner.facts.groups

    assert runner.allocate(99) == 100 * group.block_bytes


def test_a_row_goes_on_from_blocks_that_were_swapped_out_and_in_elsewhere() -> None:
    """In one step the old blocks go out and another row writes into them; a later step brings them back elsewhere."""
    runner = tiny_runner(blocks=BLOCKS, rows=ROWS)
    runner.allocate_host(8)
    first, second = prompt(12), prompt(11)
    whole = 12 // BLOCK_TOKENS
    old = tuple(BlockId(1 + n) for n in range(whole))
    new = tuple(BlockId(50 + n) for n in range(whole + 1))
    slots = [HostSlot(7 - n) for n in range(whole)]

    def start(row: int, tokens: list[int], blocks: tuple[BlockId, ...] = ()) -> RowStart:
        return RowStart(Row(row), tokens, len(tokens), 0, GREEDY, (blocks,))

    def work(row: int, at: int, length: int, blocks: tuple[BlockId, ...]) -> RowWork:
        return RowWork(Row(row), at, length, False, (blocks,), (Row(row),))

    runner.launch(StepPlan(1, (work(0, 0, 12, old),), started=(start(0, first),)))
    token = runner.collect().samples[0].token
    outs = tuple(SwapOut(block, slot) for block, slot in zip(old, slots, strict=True))
    runner.launch(StepPlan(2, (work(1, 0, 11, old),), ended=(Row(0),), started=(start(1, second),), swap_outs=outs))
    runner.collect()
    back = tuple(SwapIn(slot, block) for slot, block in zip(slots, new, strict=False))
    runner.launch(
        StepPlan(3, (work(2, 12, 1, new[whole:]),), started=(start(2, [*first, token], new[:whole]),), swap_ins=back)
    )
    went_on = runner.collect().samples[0].token

    (want,) = drive([DrivenRequest(first, max_tokens=2)])
    assert [token, went_on] == want


def test_a_token_past_a_rows_end_is_a_mistake_of_ours_and_no_token_of_the_next_row() -> None:
    table = RowTable(rows=2, max_tokens=64, block_tokens=16, groups=1, device=torch.device("cpu"))
    width = table.tokens.shape[1]
    assert table.token_places(np.array([0]), np.array([width - 1])) == [width - 1]
    table.check_reach(width - 1)
    with pytest.raises(AssertionError, match="past"):
        table.check_reach(width)
