"""From a configuration to a measured runner: the facts that the core sizes its cache by."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from kvik_engine.config import EngineConfig
from kvik_engine.errors import StartError, StartReason
from kvik_engine.params import SamplingParams
from kvik_engine.runner.load import load_runner
from kvik_engine.step import BlockId, GroupKind, Row, RowStart, RowWork, StepPlan
from tests.support.model_files import CONFIG, llama_shapes, write_safetensors_model


@pytest.fixture
def config(tmp_path: Path) -> EngineConfig:
    write_safetensors_model(tmp_path)
    return EngineConfig(
        source="here",
        model_path=str(tmp_path),
        cache_dir=str(tmp_path),
        model_name="zeros",
        run_dir=str(tmp_path),
        device="cpu",
        dtype="fp32",
        max_requests=4,
        max_batch_tokens=32,
        chunked_prefill_tokens=32,
        max_queued_requests=4,
        threads=1,
    )


def test_the_facts_say_what_was_loaded_and_measured(config: EngineConfig) -> None:
    told: list[str] = []
    facts = load_runner(config, told.append).facts

    assert (facts.vocab_size, facts.context_length, facts.dtype, facts.device) == (24, 64, "fp32", "cpu")
    assert facts.attention == "cpu"
    assert facts.parameters == sum(
        rows * (columns[0] if columns else 1) for rows, *columns in llama_shapes(CONFIG).values()
    )
    assert 0 < facts.device_bytes_used < facts.device_bytes_total
    assert set(facts.startup_seconds) == {"weights_loaded", "warm"}, "nothing is compiled for a CPU"
    assert told == ["loading weights of zeros as fp32 on cpu, 1 CPU threads", "measuring memory"]


@pytest.mark.parametrize(("dtype", "item"), [("fp32", 4), ("bf16", 2), ("fp16", 2)])
def test_a_block_takes_the_bytes_of_its_keys_and_values_in_all_layers(
    config: EngineConfig, dtype: str, item: int
) -> None:
    runner = load_runner(replace(config, dtype=dtype, block_tokens=8), lambda _: None)
    (group,) = runner.facts.groups

    assert (group.kind, group.layers, group.block_tokens) == (GroupKind.FULL, (0, 1), 8)
    assert group.block_bytes == 8 * 2 * 2 * 2 * 4 * item, "tokens x (k, v) x layers x heads x width x item"
    assert runner.allocate(11) == 12 * group.block_bytes


def test_a_row_holds_the_whole_context_and_its_last_sample(config: EngineConfig) -> None:
    runner = load_runner(config, lambda _: None)
    runner.allocate(4)
    params = SamplingParams(max_tokens=1, seed=0, temperature=0.0)
    start = RowStart(Row(3), [1] * 64, 64, 0, params, ((),))
    work = RowWork(Row(3), 0, 64, False, (tuple(BlockId(b) for b in (1, 2, 3, 4)),), (Row(3),))
    runner.launch(StepPlan(0, (work,), started=(start,)))

    assert [sample.error for sample in runner.collect().samples] == [None]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model_path": "/nowhere/model.gguf"}, StartReason.MODEL_NOT_FOUND),
        ({"device": "tpu"}, StartReason.CONFIG_INVALID),
        ({"dtype": "int3"}, StartReason.CONFIG_INVALID),
        ({"attention": "triton"}, StartReason.CONFIG_INVALID),
    ],
    ids=["no file", "unknown device", "unknown dtype", "another device's attention"],
)
def test_what_cannot_be_loaded_is_named(config: EngineConfig, change: dict[str, str], reason: StartReason) -> None:
    with pytest.raises(StartError) as caught:
        load_runner(replace(config, **change), lambda _: None)  # type: ignore[arg-type]

    assert caught.value.reason is reason


def test_a_folder_without_weights_is_named(config: EngineConfig, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(StartError, match=r"holds no \.safetensors file") as caught:
        load_runner(config, lambda _: None)

    assert caught.value.reason is StartReason.MODEL_NOT_FOUND


def test_another_architecture_is_refused_before_its_tensors_are_read(config: EngineConfig, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, "architectures": ["MambaForCausalLM"]}))
    with pytest.raises(StartError, match="MambaForCausalLM") as caught:
        load_runner(config, lambda _: None)

    assert caught.value.reason is StartReason.MODEL_UNSUPPORTED
