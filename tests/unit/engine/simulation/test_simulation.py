from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from kvik_engine.cli import main
from kvik_engine.errors import StartError
from kvik_engine.exits import EXIT_START_ERROR
from kvik_engine.simulation.device import DEMO_CPU, H100_8B, CostModel
from kvik_engine.simulation.report import CLASS_TARGETS, Spread, Target, class_targets, report
from kvik_engine.simulation.simulate import Outcome, config_of, simulate
from kvik_engine.simulation.trace import TraceError, TraceRequest, prompt_of, read_trace, write_trace
from kvik_engine.simulation.workloads import CHAT, WORKLOADS, faster, generate
from kvik_engine.step import BlockId, HostSlot, Row, RowWork, StepPlan, SwapIn, SwapOut

SETTINGS = {"max_requests": 8, "max_batch_tokens": 512, "chunked_prefill_tokens": 128, "max_queued_requests": 256}


def run(*requests: TraceRequest, overlap: int = 0, **settings: object) -> Outcome:
    return simulate(requests, H100_8B, config_of(H100_8B, **{**SETTINGS, **settings}), overlap=overlap)


def request(arrival: float, prompt: int = 100, output: int = 10, **rest: object) -> TraceRequest:
    return TraceRequest(arrival=arrival, prompt_tokens=prompt, output_tokens=output, **rest)  # type: ignore[arg-type]


def test_a_step_costs_what_it_computes_and_reads() -> None:
    cost = CostModel(step=1.0, prefill_token=0.1, decode_row=0.01, kv_token=0.001)
    prefill = RowWork(Row(0), 20, 30, False, ((),), ())
    decode = RowWork(Row(1), 9, 1, True, ((),), (Row(1),))
    assert cost.seconds(StepPlan(1, (prefill, decode))) == pytest.approx(1.0 + 3.0 + 0.01 + 0.06)


@pytest.mark.parametrize("overlap", [0, 1])
def test_a_lone_request_takes_as_long_as_the_device_says(overlap: int) -> None:
    """100 prompt tokens in one step, then nine steps of one row each."""
    cost = H100_8B.cost
    (record,) = run(request(5.0), overlap=overlap).records
    first = cost.step + 100 * cost.prefill_token + 100 * cost.kv_token
    assert record.ttft == pytest.approx(first)
    rest = sum(cost.step + cost.decode_row + length * cost.kv_token for length in range(101, 110))
    assert record.e2e == pytest.approx(first + rest)
    assert record.tpot == pytest.approx(rest / 9)


def test_an_answer_ends_by_its_end_token_or_at_what_the_client_allows() -> None:
    outcome = run(request(0.0, output=10, max_tokens=500), request(0.0, output=10, max_tokens=10))
    assert [record.tokens for record in outcome.records] == [10, 10]
    assert outcome.counters.generation_tokens == 20


def test_the_clock_jumps_over_idle_hours() -> None:
    outcome = run(request(0.0), request(7200.0))
    assert outcome.steps == 20
    assert outcome.records[1].ttft == pytest.approx(outcome.records[0].ttft)


def test_a_shared_beginning_is_found_by_its_tenant_alone() -> None:
    shared = {"prompt": 100, "prefix_id": "system", "prefix_tokens": 64}
    a, b, c = (request(float(i), tenant=tenant, **shared) for i, tenant in enumerate(("x", "x", "y")))  # type: ignore[arg-type]
    assert [record.cached_tokens for record in run(a, b, c).records] == [0, 64, 0]
    assert prompt_of(0, a)[:64] == prompt_of(1, b)[:64]
    assert prompt_of(0, a)[64:] != prompt_of(1, b)[64:]


def test_what_the_queue_refuses_is_reported_and_not_lost() -> None:
    outcome = run(*(request(0.0, output=50) for _ in range(20)), max_queued_requests=4)
    told = report(outcome)
    assert (told.groups[0].requests, told.groups[0].finished, told.groups[0].refused) == (20, 12, 8)


def test_goodput_counts_only_what_met_every_target_of_its_class() -> None:
    outcome = run(request(0.0), request(0.0, slo_class="batch"))
    strict = {**CLASS_TARGETS, "balanced": Target(ttft=1e-4, tpot=None)}
    everyone, balanced, batch = report(outcome, strict).groups
    assert (balanced.slo_class, balanced.goodput) == ("balanced", 0.0)
    assert everyone.goodput == batch.goodput == pytest.approx(1 / outcome.seconds)


def test_percentiles_are_values_that_occurred() -> None:
    assert Spread.of([]) is None
    assert Spread.of([None, 3.0, 1.0, 2.0]) == Spread(2.0, 3.0, 3.0, 3.0)
    assert Spread.of([2.0, 1.0]) == Spread(1.0, 2.0, 2.0, 2.0), "nearest rank: half are at most the median"


def test_a_trace_is_the_same_after_a_file(tmp_path: Path) -> None:
    trace = generate(CHAT, seconds=5.0, seed=1)
    write_trace(tmp_path / "t.jsonl", reversed(trace))
    assert read_trace(tmp_path / "t.jsonl") == trace
    assert generate(CHAT, seconds=5.0, seed=1) == trace
    assert generate(CHAT, seconds=5.0, seed=2) != trace


def test_a_stream_does_not_change_with_the_others_beside_it() -> None:
    alone = generate(WORKLOADS["interactive"], seconds=20.0, seed=3)
    beside = generate(WORKLOADS["batch-overload"], seconds=20.0, seed=3)
    assert [r for r in beside if r.slo_class == "interactive"] == alone
    assert len(generate(faster(CHAT, 10.0), seconds=20.0, seed=3)) > 5 * len(generate(CHAT, seconds=20.0, seed=3))


@pytest.mark.parametrize(
    "line",
    [
        '{"arrival": 1}',
        "[]",
        "nonsense",
        '{"arrival": -1, "prompt_tokens": 1, "output_tokens": 1}',
        '{"arrival": 1, "prompt_tokens": 0, "output_tokens": 1}',
        '{"arrival": 1, "prompt_tokens": 1000000000000, "output_tokens": 1}',
        '{"arrival": 1, "prompt_tokens": 1, "output_tokens": 1, "max_tokens": 1000000000000}',
        '{"arrival": 1e300, "prompt_tokens": 1, "output_tokens": 1}',
        '{"arrival": 1, "prompt_tokens": 1, "output_tokens": 9, "max_tokens": 8}',
        '{"arrival": 1, "prompt_tokens": 1, "output_tokens": 1, "class": "gold"}',
        '{"arrival": 1, "prompt_tokens": 1, "output_tokens": 1, "prefix_tokens": 1}',
        '{"arrival": 1, "prompt_tokens": 1, "output_tokens": 1, "colour": "red"}',
    ],
)
def test_a_wrong_line_of_a_trace_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "t.jsonl").write_text('{"arrival": 1, "prompt_tokens": 1, "output_tokens": 1}\n\n' + line)
    with pytest.raises(TraceError, match="line 3"):
        read_trace(tmp_path / "t.jsonl")


def test_a_cache_that_does_not_fit_the_device_is_a_start_error() -> None:
    with pytest.raises(StartError, match="does not fit"):
        run(request(0.0), kv_cache_size=1 << 40)


def test_the_command_prints_one_json_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = tmp_path / "t.jsonl"
    chat = ["simulate", "--workload", "chat", "--seconds", "5", "--seed", "4", "--json"]
    assert main([*chat, "--write-trace", str(kept)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["groups"][0]["finished"] == told["groups"][0]["requests"] > 0
    assert main(["simulate", "--trace", str(kept), "--device", "demo-cpu", "--max-requests", "4"]) == 0
    assert "running" in capsys.readouterr().out
    assert main(["simulate", "--trace", str(tmp_path / "absent")]) == EXIT_START_ERROR


def test_goodput_is_counted_by_the_target_that_is_given(capsys: pytest.CaptureFixture[str]) -> None:
    goodput = []
    for target in ([], ["--slo-ttft", "1ms"]):
        assert main(["simulate", "--workload", "chat", "--seconds", "5", "--json", *target]) == 0
        goodput.append(json.loads(capsys.readouterr().out)["groups"][0]["goodput"])
    assert goodput[0] > 0
    assert goodput[1] == 0
    assert class_targets("batch", 3.0) == {**CLASS_TARGETS, "batch": Target(3.0, None)}


@pytest.mark.parametrize("flag", ["--rate", "--seconds"])
@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "1e300", "1e-300", "many"])
def test_a_load_that_cannot_be_made_is_a_wrong_argument(
    flag: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["simulate", "--workload", "chat", f"{flag}={value}"])
    assert ended.value.code == 2
    assert "is not a number from" in capsys.readouterr().err


def test_a_run_ends_at_its_most_steps() -> None:
    settings = {**SETTINGS, "max_requests": 64, "max_batch_tokens": 4096, "chunked_prefill_tokens": 512}
    trace = generate(faster(CHAT, 2.4), seconds=10.0, seed=0)
    assert simulate(trace, H100_8B, config_of(H100_8B, **settings), max_steps=300).steps == 300


def test_the_demo_device_serves_its_own_class_defaults() -> None:
    config = config_of(DEMO_CPU, kv_cache_size=256 << 20, **SETTINGS)
    outcome = simulate([request(0.0)], DEMO_CPU, config)
    assert outcome.ledger.blocks == (256 << 20) // (16 * 23040) - 1


CROWDED = [request(0.01 * number, prompt=1000, output=600) for number in range(8)]
"""More than a pool of `FEW` tokens holds at once."""
FEW = {"kv_cache_size": 6000 * H100_8B.kv_bytes_per_token, "prefix_cache": "disabled"}
SPACE = {"swap_space": 20_000 * H100_8B.kv_bytes_per_token}


def test_a_step_pays_for_the_blocks_that_it_copies() -> None:
    slow = replace(H100_8B, copy_bytes_per_second=1e6)
    moving = StepPlan(
        1, (), swap_outs=(SwapOut(BlockId(1), HostSlot(0)),) * 3, swap_ins=(SwapIn(HostSlot(1), BlockId(2)),)
    )
    assert slow.seconds(moving, 500_000) == pytest.approx(slow.cost.step + 4 * 0.5)


@pytest.mark.parametrize("overlap", [0, 1])
def test_what_is_swapped_comes_back_and_is_not_computed_again(overlap: int) -> None:
    recomputed = run(*CROWDED, overlap=overlap, **FEW)
    swapped = run(*CROWDED, overlap=overlap, preemption_mode="swap", **FEW, **SPACE)
    told = report(swapped)

    assert recomputed.counters.preemptions > 0
    assert told.swaps == told.preemptions > 0
    assert told.swapped_out == told.swapped_in > 0
    assert (told.groups[0].finished, told.swap_blocks) == (8, 20_000 // 16)
    assert swapped.seconds < recomputed.seconds, "at 50 GB/s"


def test_slow_copies_take_their_time() -> None:
    asked = {"preemption_mode": "swap", **FEW, **SPACE}
    fast, slow = (
        simulate(CROWDED, device, config_of(device, **{**SETTINGS, **asked}))
        for device in (H100_8B, replace(H100_8B, copy_bytes_per_second=1e9))
    )
    moved = (slow.offload.swapped_out + slow.offload.swapped_in) * 16 * H100_8B.kv_bytes_per_token
    assert slow.seconds - fast.seconds > 0.5 * moved / 1e9


def test_without_a_choice_the_copy_rate_decides_what_is_swapped() -> None:
    swaps = []
    for rate in (1e6, 1e12):
        device = replace(H100_8B, copy_bytes_per_second=rate)
        outcome = simulate(CROWDED, device, config_of(device, **{**SETTINGS, **FEW, **SPACE}))
        assert outcome.counters.preemptions > 0
        swaps.append(outcome.counters.swaps)
    assert swaps[0] == 0 < swaps[1]


def test_an_evicted_prefix_is_found_in_the_swap_space() -> None:
    trace = [request(float(n), prompt=1600, prefix_id=f"p{n % 4}", prefix_tokens=1500) for n in range(12)]
    few = {"kv_cache_size": 3000 * H100_8B.kv_bytes_per_token}
    without, with_space = (report(run(*trace, **few, **more)) for more in ({}, SPACE))
    assert without.prefix_hit_fraction == 0
    assert with_space.prefix_hit_fraction is not None
    assert with_space.prefix_hit_fraction > 0.5


def test_swap_space_that_the_host_does_not_have_is_a_start_error() -> None:
    with pytest.raises(StartError, match="--swap-space"):
        run(request(0.0), swap_space=1 << 40)


def test_the_command_takes_swap_space_as_the_engine_does(capsys: pytest.CaptureFixture[str]) -> None:
    chat = ["simulate", "--workload", "chat", "--seconds", "5", "--preemption-mode", "swap"]
    assert main([*chat, "--swap-space", "4Gi"]) == 0
    assert "swap space 2048 blocks" in capsys.readouterr().out
    assert main(chat) == EXIT_START_ERROR
    assert "--preemption-mode=swap needs --swap-space" in capsys.readouterr().err
