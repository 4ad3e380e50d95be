from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from kvik_engine.config import EngineConfig
from kvik_engine.core.build import build_core, describe, limits, prefix_cache, size
from kvik_engine.core.warm_up import warm_up
from kvik_engine.errors import StartError, StartReason
from kvik_engine.kv.prefix_cache import NoPrefixCache
from kvik_engine.kv.prefix_hash import BlockHashCache
from kvik_engine.kv.radix import RadixCache
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
        kv_cache_size=64 * 200,
    )
    return replace(config, **changes)  # type: ignore[arg-type]


def test_the_pool_is_what_the_ledger_says_and_so_is_what_the_api_is_told(tmp_path: Path) -> None:
    config, runner = make_config(tmp_path), FakeRunner()
    ledger = size(config, runner.facts)
    assert runner.allocate(ledger.blocks) == ledger.allocated_bytes == 64 * 200
    core = build_core(config, runner, ledger, MemoryChannel(), time.monotonic, overlap=0)
    info = describe(runner.facts, ledger, {"warm": 0.5})
    assert core.scheduler.kv.pool.total == info.blocks_total == 199
    assert (info.max_tokens, info.context_length) == (796, 4096)
    assert info.startup_seconds == {"weights_loaded": 0.0, "warm": 0.5}


def test_the_runner_is_warm_and_empty_before_the_first_client(tmp_path: Path) -> None:
    config, runner = make_config(tmp_path), FakeRunner()
    ledger = size(config, runner.facts)
    runner.allocate(ledger.blocks)
    assert warm_up(runner, limits(config), ledger).seconds > 0
    started = [start.row for plan in runner.plans for start in plan.started]
    ended = [row for plan in runner.plans for row in plan.ended]
    assert sorted(started) == sorted(ended) != []


def test_the_warm_up_tells_how_long_the_largest_step_takes(tmp_path: Path) -> None:
    config, runner = make_config(tmp_path, max_batch_tokens=640), FakeRunner(seconds=3.2)
    ledger = size(config, runner.facts)
    runner.allocate(ledger.blocks)
    assert warm_up(runner, limits(config), ledger).largest_step_seconds == pytest.approx(32.0)


def test_a_warm_up_fits_the_smallest_context(tmp_path: Path) -> None:
    config, runner = make_config(tmp_path), FakeRunner(context_length=4)
    ledger = size(config, runner.facts)
    runner.allocate(ledger.blocks)
    warm_up(runner, limits(config), ledger)


def test_a_budget_that_cannot_feed_all_rows_is_a_start_error(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="max-batch-tokens 3") as error:
        limits(make_config(tmp_path, max_batch_tokens=3))
    assert error.value.reason is StartReason.CONFIG_INVALID


def test_a_chunk_is_never_larger_than_the_budget(tmp_path: Path) -> None:
    assert limits(make_config(tmp_path, chunked_prefill_tokens=1000)).chunked_prefill_tokens == 64


def test_the_prefix_cache_is_chosen_by_name(tmp_path: Path) -> None:
    groups = FakeRunner().facts.groups
    assert isinstance(prefix_cache(make_config(tmp_path), groups), RadixCache)
    assert isinstance(prefix_cache(make_config(tmp_path, prefix_cache="block-hash"), groups), BlockHashCache)
    assert isinstance(prefix_cache(make_config(tmp_path, prefix_cache="disabled"), groups), NoPrefixCache)
    with pytest.raises(StartError, match="radish"):
        prefix_cache(make_config(tmp_path, prefix_cache="radish"), groups)
