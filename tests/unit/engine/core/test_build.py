from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from kvik_engine.config import EngineConfig
from kvik_engine.core.build import build_core, describe, limits, prefix_cache, size
from kvik_engine.core.disk_cache import fingerprint, open_disk_cache
from kvik_engine.core.main import allocate_swap_space
from kvik_engine.core.warm_up import warm_up
from kvik_engine.errors import StartError, StartReason
from kvik_engine.kv.block_files import bytes_on_disk
from kvik_engine.kv.disk_tier import NoLowerTier
from kvik_engine.kv.prefix_cache import NoPrefixCache
from kvik_engine.kv.prefix_hash import BlockHashCache
from kvik_engine.kv.radix import RadixCache
from kvik_engine.step import StepResult
from tests.support.engine_harness import MemoryChannel
from tests.support.fake_runner import FakeRunner


def make_config(tmp_path: Path, **changes: object) -> EngineConfig:
    config = EngineConfig(
        source="demo",
        model_path="model.gguf",
        model_name="demo",
        run_dir=str(tmp_path),
        cache_dir=str(tmp_path),
        max_requests=4,
        max_batch_tokens=64,
        chunked_prefill_tokens=32,
        max_queued_requests=256,
        kv_cache_size=64 * 200,
    )
    return replace(config, **changes)  # type: ignore[arg-type]


def test_the_pool_is_what_the_ledger_says_and_so_is_what_the_api_is_told(tmp_path: Path) -> None:
    config, runner = make_config(tmp_path), FakeRunner()
    ledger = size(config, runner.facts)
    assert runner.allocate(ledger.blocks) == ledger.allocated_bytes == 64 * 200
    core = build_core(config, runner, ledger, MemoryChannel(), time.monotonic, overlap=0)
    info = describe(runner.facts, ledger, warm_seconds=0.5, warm_at=1e9)
    assert core.scheduler.kv.pool.total == info.blocks_total == 199
    assert (info.max_tokens, info.context_length) == (796, 4096)
    assert info.startup_seconds == {"weights_loaded": 0.0, "warm": 0.5}


def test_warm_counts_from_the_end_of_the_phase_before_it(tmp_path: Path) -> None:
    """On a CPU measuring the memory is a part of it; on a GPU that is when the kernels are compiled."""
    runner = FakeRunner()
    ledger = size(make_config(tmp_path), runner.facts)
    for measured, want in (("warm", {"warm": 0.75}), ("compiled", {"compiled": 0.25, "warm": 0.5})):
        facts = replace(runner.facts, startup_seconds={"weights_loaded": 2.0, measured: 0.25})
        info = describe(facts, ledger, warm_seconds=0.5, warm_at=1e9)
        assert info.startup_seconds == {"weights_loaded": 2.0, **want}


def test_the_runner_is_warm_and_empty_before_the_first_client(tmp_path: Path) -> None:
    config, runner = make_config(tmp_path), FakeRunner(zeroed=True)
    ledger = size(config, runner.facts)
    runner.allocate(ledger.blocks)
    warm_up(runner, limits(config), ledger)
    started = [start.row for plan in runner.plans for start in plan.started]
    ended = [row for plan in runner.plans for row in plan.ended]
    assert sorted(started) == sorted(ended) != []


def test_the_warm_up_tells_how_long_the_largest_step_takes(tmp_path: Path) -> None:
    config, runner = make_config(tmp_path, max_batch_tokens=640), FakeRunner(seconds=3.2, zeroed=True)
    ledger = size(config, runner.facts)
    runner.allocate(ledger.blocks)
    assert warm_up(runner, limits(config), ledger) == pytest.approx(32.0)


class SlowAtTheEnd(FakeRunner):
    """A step takes longer the more past its rows have, as attention does."""

    def collect(self) -> StepResult:
        plan = self.plans[-1]
        return replace(super().collect(), seconds=0.064 + sum(work.start for work in plan.work) / 1000)


def test_the_largest_step_is_judged_at_the_end_of_the_context(tmp_path: Path) -> None:
    """A healthy step near the end would otherwise count as hung, and the kubelet would end the engine."""
    config, runner = make_config(tmp_path, max_batch_tokens=640), SlowAtTheEnd(zeroed=True)
    ledger = size(config, runner.facts)
    runner.allocate(ledger.blocks)
    deep = 0.064 + (ledger.context - 64) / 1000
    assert warm_up(runner, limits(config), ledger) == pytest.approx(deep / 64 * 640)


def test_a_warm_up_computes_no_more_tokens_in_a_step_than_serving_will(tmp_path: Path) -> None:
    """Memory was measured for steps of max_batch_tokens at most."""
    config, runner = make_config(tmp_path, max_batch_tokens=16), FakeRunner(zeroed=True)
    ledger = size(config, runner.facts)
    runner.allocate(ledger.blocks)
    warm_up(runner, limits(config), ledger)
    assert max(plan.tokens for plan in runner.plans) == 16


def test_a_warm_up_fits_the_smallest_context(tmp_path: Path) -> None:
    config, runner = make_config(tmp_path), FakeRunner(context_length=4, zeroed=True)
    ledger = size(config, runner.facts)
    runner.allocate(ledger.blocks)
    warm_up(runner, limits(config), ledger)


def test_a_budget_that_cannot_feed_all_rows_is_a_mistake_of_ours(tmp_path: Path) -> None:
    """cli.class_defaults refuses it."""
    with pytest.raises(AssertionError, match="one token a step"):
        limits(make_config(tmp_path, max_batch_tokens=3))


def test_a_chunk_is_never_larger_than_the_budget(tmp_path: Path) -> None:
    assert limits(make_config(tmp_path, chunked_prefill_tokens=1000)).chunked_prefill_tokens == 64


def test_the_prefix_cache_is_chosen_by_name(tmp_path: Path) -> None:
    groups = FakeRunner().facts.groups
    assert isinstance(prefix_cache(make_config(tmp_path), groups), RadixCache)
    assert isinstance(prefix_cache(make_config(tmp_path, prefix_cache="block-hash"), groups), BlockHashCache)
    assert isinstance(prefix_cache(make_config(tmp_path, prefix_cache="disabled"), groups), NoPrefixCache)
    with pytest.raises(AssertionError, match="radish"):
        prefix_cache(make_config(tmp_path, prefix_cache="radish"), groups)


def test_on_a_cpu_the_swap_space_is_taken_before_the_cache(tmp_path: Path) -> None:
    runner = FakeRunner(device_bytes_total=64 * 1000)
    config = make_config(tmp_path, kv_cache_size=None, memory_fraction=0.5)
    assert size(config, runner.facts).blocks == 499
    ledger = size(replace(config, swap_space=64 * 400), runner.facts)
    assert (ledger.blocks, ledger.swap_slots) == (299, 400)
    assert "swap space for 400 blocks" in str(ledger)


def test_beside_an_accelerator_the_swap_space_takes_nothing_from_the_cache(tmp_path: Path) -> None:
    facts = replace(FakeRunner().facts, host_bytes_total=64 * 500, host_bytes_used=64 * 100)
    ledger = size(make_config(tmp_path, swap_space=64 * 400), facts)
    assert (ledger.blocks, ledger.swap_slots) == (199, 400)


@pytest.mark.parametrize(
    ("facts", "swap_space", "reason"),
    [
        pytest.param({}, (1 << 30) + 1, StartReason.INSUFFICIENT_MEMORY, id="more-than-the-machine"),
        pytest.param({"device_bytes_used": 64}, 1 << 30, StartReason.INSUFFICIENT_MEMORY, id="more-than-is-left"),
        pytest.param(
            {"host_bytes_total": 1000, "host_bytes_used": 100},
            901,
            StartReason.INSUFFICIENT_MEMORY,
            id="more-than-the-host-beside-an-accelerator",
        ),
        pytest.param({}, 63, StartReason.CONFIG_INVALID, id="less-than-a-block"),
    ],
)
def test_a_swap_space_that_cannot_be_is_a_start_error_that_names_the_flag(
    facts: dict[str, int], swap_space: int, reason: StartReason, tmp_path: Path
) -> None:
    with pytest.raises(StartError, match="--swap-space") as error:
        size(make_config(tmp_path, swap_space=swap_space), replace(FakeRunner().facts, **facts))  # type: ignore[arg-type]
    assert error.value.reason is reason


def test_without_swap_space_nothing_is_allocated_on_the_host(tmp_path: Path) -> None:
    runner = FakeRunner()
    ledger = size(make_config(tmp_path), runner.facts)
    assert allocate_swap_space(runner, ledger) is None
    assert runner.slots == []


def test_the_swap_space_is_what_the_ledger_says(tmp_path: Path) -> None:
    config, runner = make_config(tmp_path, swap_space=64 * 30, preemption_mode="swap"), FakeRunner()
    ledger = size(config, runner.facts)
    runner.allocate(ledger.blocks)
    host = allocate_swap_space(runner, ledger)
    core = build_core(config, runner, ledger, MemoryChannel(), time.monotonic, overlap=0, host=host)
    stats = core.stats.snapshot(core.scheduler)
    assert len(runner.slots) == stats.swap_blocks_total == 30
    assert (stats.swap_blocks_owned, stats.swap_blocks_cached) == (0, 0)


def test_an_unknown_preemption_mode_is_refused(tmp_path: Path) -> None:
    config = make_config(tmp_path, swap_space=64 * 30, preemption_mode="drop")
    runner = FakeRunner()
    ledger = size(config, runner.facts)
    runner.allocate(ledger.blocks)
    with pytest.raises(ValueError, match="PreemptionMode"):
        build_core(
            config,
            runner,
            ledger,
            MemoryChannel(),
            time.monotonic,
            overlap=0,
            host=runner.allocate_host(ledger.swap_slots),
        )


def test_a_disk_cache_below_one_block_is_refused_by_its_flag(tmp_path: Path) -> None:
    runner = FakeRunner()
    file_bytes = bytes_on_disk(runner.facts.groups[0].block_bytes)
    config = make_config(tmp_path, disk_cache="d", disk_cache_size=file_bytes - 1)
    with pytest.raises(StartError, match=f"--disk-cache-size {file_bytes - 1} bytes is less than a block") as error:
        open_disk_cache(config, runner.facts, runner.allocate_host(4))
    assert error.value.reason is StartReason.CONFIG_INVALID


def test_without_a_disk_cache_there_is_none(tmp_path: Path) -> None:
    assert isinstance(open_disk_cache(make_config(tmp_path), FakeRunner().facts, None), NoLowerTier)


def test_the_disk_cache_is_that_of_the_models_files(tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    model.write_bytes(b"one")
    config = make_config(tmp_path, model_path=str(model), disk_cache=str(tmp_path / "disk"), disk_cache_size=1 << 20)
    runner = FakeRunner()
    host = runner.allocate_host(4)
    open_disk_cache(config, runner.facts, host)
    model.write_bytes(b"another")
    open_disk_cache(config, runner.facts, host)
    first, second = (folder.name.rpartition("-")[0] for folder in (tmp_path / "disk").iterdir())
    assert first != second
    for other in ({"dtype": "bf16"}, {"kv_key_dtype": "int8"}, {"kv_value_dtype": "int8"}):
        assert fingerprint("a", runner.facts) != fingerprint("a", replace(runner.facts, **other))
