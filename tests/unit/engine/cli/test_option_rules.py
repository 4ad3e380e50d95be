"""Options that contradict each other, or would do nothing, are refused by name, before a model is looked for."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from kvik_engine.cli import main
from kvik_engine.cli.option_rules import RULES, check_options
from kvik_engine.exits import EXIT_START_ERROR

SOURCE = "hf://org/name@main"
SWAP = "--swap-space=1Gi"
DISK = ("--disk-cache=d", "--disk-cache-size=1Gi")
CONTRADICTIONS: list[tuple[tuple[str, ...], str]] = [
    # the flags, the message's beginning
    (("--port=8001",), "--port and --metrics-port are the same"),
    (("--attention=triton", "--device=cpu"), "--attention=triton does not run on a CPU"),
    (("--attention=cpu", "--device=gpu"), "--attention=cpu does not run on a GPU"),
    (("--quantization=int8", "--device=gpu"), "--quantization=int8 does not run on a GPU"),
    (("--quantization=int8", "--dtype=fp16"), "--quantization=int8 computes in bf16 or fp32"),
    (("--admission=goodput",), "--admission=goodput needs --slo-ttft"),
    (("--kv-cache-size=1Gi", "--memory-fraction=0.5"), "--kv-cache-size and --memory-fraction"),
    (("--kv-cache-size=0", "--memory-fraction=0.5"), "--kv-cache-size and --memory-fraction"),
    (("--preemption-mode=swap",), "--preemption-mode=swap needs --swap-space"),
    (("--preemption-mode=swap", "--swap-space=0"), "--preemption-mode=swap needs --swap-space"),
    (("--swap-threshold-tokens=9", "--preemption-mode=swap", SWAP), "--swap-threshold-tokens is read with"),
    (("--swap-threshold-tokens=9", "--preemption-mode=recompute", SWAP), "--swap-threshold-tokens is read with"),
    (("--swap-threshold-tokens=9",), "--swap-threshold-tokens needs --swap-space"),
    ((SWAP, "--preemption-mode=recompute", "--prefix-cache=disabled"), "--swap-space would stay empty"),
    ((SWAP, "--disk-cache=d"), "--disk-cache needs --disk-cache-size"),
    ((SWAP, "--disk-cache=d", "--disk-cache-size=0"), "--disk-cache needs --disk-cache-size"),
    ((SWAP, "--disk-cache-size=1Gi"), "--disk-cache-size needs --disk-cache"),
    (DISK, "--disk-cache needs --swap-space"),
    ((SWAP, *DISK, "--prefix-cache=disabled"), "--disk-cache holds prefixes"),
]
WRONG_ALONE: list[tuple[tuple[str, ...], str]] = [
    (("--block-tokens=24",), "--block-tokens: 24 is no power of two"),
    (("--max-requests=64", "--max-batch-tokens=32"), "--max-requests is larger than --max-batch-tokens"),
    (("--api-keys-file=/nowhere/keys",), "--api-keys-file: /nowhere/keys cannot be read"),
    (("--run-dir=/dev/null/run",), "--run-dir /dev/null/run cannot be used"),
]


@pytest.fixture
def no_source(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Looking for the model, or starting anything, fails the test."""

    def touched(*_: object) -> None:
        raise AssertionError("too late: the model is looked for already")

    monkeypatch.setattr("kvik_engine.cli.sources.local_model", touched)
    monkeypatch.setattr("kvik_engine.launch.launch", touched)
    monkeypatch.setenv("KVIK_RUN_DIR", str(tmp_path / "run"))


def flags_of(case: object) -> str:
    return " ".join(case) if isinstance(case, tuple) else ""


@pytest.mark.parametrize(("flags", "message"), CONTRADICTIONS + WRONG_ALONE, ids=flags_of)
@pytest.mark.usefixtures("no_source")
def test_bad_options_are_told_before_the_model_is_touched(
    flags: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", SOURCE, *flags]) == EXIT_START_ERROR
    assert capsys.readouterr().err.startswith(f"ConfigInvalid: {message}")


@pytest.mark.usefixtures("no_source")
def test_a_bad_variable_is_told_as_early(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("KVIK_PREEMPTION_MODE", "swap")
    assert main(["serve", SOURCE]) == EXIT_START_ERROR
    assert "--preemption-mode=swap needs --swap-space" in capsys.readouterr().err


@pytest.mark.usefixtures("no_source")
def test_good_options_get_as_far_as_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvik_engine.api.ports.bind", lambda *_: socket.socket())  # the usual ports may be in use here
    with pytest.raises(AssertionError, match="too late"):
        main(["serve", SOURCE, SWAP, *DISK, "--preemption-mode=swap"])


def test_every_rule_is_tried() -> None:
    tried = {rule.message for rule in RULES for _, message in CONTRADICTIONS if rule.message.startswith(message)}
    assert tried == {rule.message for rule in RULES}


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"preemption_mode": "recompute"},
        {"preemption_mode": "auto", "swap_threshold_tokens": 0, "swap_space": 1},
        {"preemption_mode": "recompute", "swap_space": 1},
        {"prefix_cache": "disabled", "swap_space": 1},
        {"kv_cache_size": 1},
        {"swap_space": 0, "disk_cache_size": 0, "preemption_mode": "recompute", "prefix_cache": "disabled"},
        {"memory_fraction": 0.5},
        {"slo_ttft": 1.0},
        {"attention": "reference", "device": "cpu"},
        {"attention": "triton", "device": "cuda"},
    ],
    ids=str,
)
def test_options_that_have_an_effect_pass(given: dict[str, object]) -> None:
    check_options(given)


SIMULATE = ("simulate", "--workload", "chat", "--seconds", "1")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((*SIMULATE, "--kv-cache-size=1Gi", "--memory-fraction=0.5"), "--kv-cache-size and --memory-fraction"),
        ((*SIMULATE, "--admission=goodput"), "--admission=goodput needs --slo-ttft"),
        ((*SIMULATE, "--block-tokens=24"), "--block-tokens: 24 is no power of two"),
        (("simulate", "--trace", "t", "--seconds", "1"), "--seconds is for a --workload"),
        (("simulate", "--trace", "t", "--rate", "2"), "--rate is for a --workload"),
        (("simulate", "--trace", "t", "--seed", "0"), "--seed is for a --workload"),
        (("plan", "config.json", "--gpu=h100", "--block-tokens=24"), "--block-tokens: 24 is no power of two"),
        (("model", "pull", "demo", "--to=/dev/null/d", "--token-file=t"), "--token-file is only used by hf://"),
    ],
    ids=flags_of,
)
def test_the_other_commands_refuse_the_same_way(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments]) == EXIT_START_ERROR
    assert f"ConfigInvalid: {message}" in capsys.readouterr().err
