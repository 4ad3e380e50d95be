"""docs/contract.md, sections 2 and 3: what the operator says to an engine is understood, and the other way round."""

import argparse
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvik_engine.cli import class_defaults, model, serve
from kvik_engine.errors import StartError, StartReason
from kvik_operator.crd.effective import effective
from kvik_operator.crd.engine_version import Version
from kvik_operator.names import ENGINE_REASONS, Reason
from kvik_operator.objects.engine_args import pull_args, serve_args
from kvik_operator.objects.engine_flags import MODEL_PULL, SERVE, Flag
from kvik_operator.objects.model_source import model_source
from kvik_operator.reconcile.pod_state import engine_reason
from tests.support.engine_reads import engine_reads
from tests.support.pools import SOURCE, spec_of

ROOT = Path(__file__).resolve().parents[2]
CONTRACT = (ROOT / "docs" / "contract.md").read_text()
CRD = yaml.safe_load((ROOT / "crds" / "inferencepools.kvik.dev.yaml").read_text())
SPEC = CRD["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]

EVERYTHING: dict[str, Any] = {
    "model": {
        "source": SOURCE,
        "name": "org/m:1",
        "digest": "sha256:" + "a" * 64,
        "dtype": "BF16",
        "quantization": "INT8",
        "maxContextTokens": 8192,
    },
    "slo": {"class": "Interactive", "ttft": "750ms"},
    "batching": {
        "maxRequests": 8,
        "maxBatchTokens": 256,
        "chunkedPrefillTokens": 64,
        "maxQueuedRequests": 3,
        "admission": "Goodput",
        "preemption": {"mode": "Auto", "swapThresholdTokens": 1000},
    },
    "kvCache": {
        "size": "1.5Gi",
        "blockTokens": 32,
        "keyDtype": "INT8",
        "valueDtype": "FP8Dynamic",
        "dtypeCheck": "Warn",
        "swapSpace": "0.5Gi",
        "diskCache": {"size": "2.5G"},
        "prefixCache": "BlockHash",
    },
    "apiKeys": {"secretRef": {"name": "clients"}},
    "resources": {"device": "CPU"},
    "startup": {"timeout": "90s"},
    "drain": {"timeout": "1500ms"},
}

SWAP_SPACE = {"swapSpace": "1Gi"}


def test_the_engine_reads_every_flag_as_the_pool_means_it() -> None:
    assert engine_reads(spec_of(**EVERYTHING)) == {
        "model_name": "org/m:1",
        "digest": "sha256:" + "a" * 64,
        "device": "cpu",
        "dtype": "bf16",
        "quantization": "int8",
        "max_context_tokens": 8192,
        "slo_class": "interactive",
        "slo_ttft": 0.75,
        "max_requests": 8,
        "max_batch_tokens": 256,
        "chunked_prefill_tokens": 64,
        "max_queued_requests": 3,
        "admission": "goodput",
        "preemption_mode": "auto",
        "swap_threshold_tokens": 1000,
        "kv_cache_size": 3 * 2**29,
        "block_tokens": 32,
        "kv_key_dtype": "int8",
        "kv_value_dtype": "fp8-dynamic",
        "kv_dtype_check": "warn",
        "swap_space": 2**29,
        "disk_cache": "/var/cache/kvik-kv",
        "disk_cache_size": 2_500_000_000,
        "prefix_cache": "block-hash",
        "api_keys_file": "/var/run/secrets/kvik/api/keys",
        "drain_timeout": 1.5,
        "startup_timeout": 90.0,
    }


def documented_flags(command: str) -> dict[str, str]:
    """The contract's table of one command: flag, without dashes, to the version that brought it."""
    table = CONTRACT.partition(f"| Flag of `{command}` |")[2].partition("\n\n")[0]
    return dict(re.findall(r"^\| `--([a-z-]+)` \|.*\| (\S+) \|$", table, re.MULTILINE))


@pytest.mark.parametrize(
    ("command", "of_operator", "of_engine"),
    [("kvik serve", SERVE, serve), ("kvik model pull", MODEL_PULL, model)],
    ids=["serve", "model pull"],
)
def test_operator_contract_and_engine_have_the_same_flags_since_the_same_versions(
    command: str, of_operator: Mapping[str, Flag], of_engine: Any
) -> None:
    """A flag that another column says to be there, and the engine refuses, is a pool that never starts."""
    parser = argparse.ArgumentParser()
    of_engine.add_arguments(parser)
    helps = _help(parser) if of_engine is serve else _help(_subcommand(parser, "pull"))
    assert {name: str(flag.since) for name, flag in of_operator.items()} == documented_flags(command)
    assert {f"--{name}" for name in of_operator} <= set(re.findall(r"--[a-z-]+", helps))


def _help(parser: argparse.ArgumentParser) -> str:
    return parser.format_help()


def _subcommand(parser: argparse.ArgumentParser, name: str) -> argparse.ArgumentParser:
    (commands,) = (action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    found: argparse.ArgumentParser = commands[name]
    return found


def test_no_flag_is_younger_than_this_version() -> None:
    present = Version.parse((ROOT / "VERSION").read_text().strip())
    assert all(flag.since <= present for table in (SERVE, MODEL_PULL) for flag in table.values())


def test_every_flag_carries_a_field_of_the_schema() -> None:
    """`EngineTooOld` names that field."""
    for flag in (*SERVE.values(), *MODEL_PULL.values()):
        fields: Any = SPEC
        for name in flag.field.split("."):
            assert name in fields, flag.field
            fields = fields[name].get("properties")


def test_the_operator_sets_every_flag_that_it_knows() -> None:
    args = serve_args(spec_of(**EVERYTHING), effective(spec_of(**EVERYTHING), "chat"), model_source(SOURCE), None)
    percent = spec_of(kvCache={"memoryPercent": 85})
    args += serve_args(percent, effective(percent, "chat"), model_source(SOURCE), None)
    assert {arg.split("=")[0] for arg in args if arg.startswith("--")} == {f"--{name}" for name in SERVE}
    hub = spec_of(model={**EVERYTHING["model"], "source": "hf://o/n@r"})
    args = pull_args(hub, "hf://o/n@r", "/token", None)
    assert {arg.split("=")[0] for arg in args if arg.startswith("--")} == {f"--{name}" for name in MODEL_PULL}


def test_the_engine_reads_the_memory_fraction() -> None:
    assert engine_reads(spec_of(kvCache={"memoryPercent": 85}))["memory_fraction"] == 0.85


@pytest.mark.parametrize("dtype", SPEC["model"]["properties"]["dtype"]["enum"])
@pytest.mark.parametrize("slo_class", SPEC["slo"]["properties"]["class"]["enum"])
@pytest.mark.parametrize("device", SPEC["resources"]["properties"]["device"]["enum"])
def test_every_word_of_the_schema_is_one_of_the_engines(dtype: str, slo_class: str, device: str) -> None:
    for prefix_cache in SPEC["kvCache"]["properties"]["prefixCache"]["enum"]:
        read = engine_reads(
            spec_of(
                model={"source": SOURCE, "dtype": dtype},
                slo={"class": slo_class},
                resources={"device": device},
                kvCache={"prefixCache": prefix_cache},
            )
        )
        assert read["dtype"] == dtype.lower()


NUMBERS = [
    ("model", "maxContextTokens"),
    ("batching", "maxRequests"),
    ("batching", "maxBatchTokens"),
    ("batching", "chunkedPrefillTokens"),
    ("batching", "maxQueuedRequests"),
]


@pytest.mark.parametrize(("group", "field"), NUMBERS)
@pytest.mark.parametrize("bound", ["minimum", "maximum"])
def test_the_engine_takes_every_number_that_the_schema_takes(group: str, field: str, bound: str) -> None:
    value = SPEC[group]["properties"][field][bound]
    groups = {group: {field: value}} if group != "model" else {"model": {"source": SOURCE, field: value}}
    name = re.sub("([A-Z])", lambda letter: "_" + letter.group().lower(), field)
    assert engine_reads(spec_of(**groups))[name] == value


@pytest.mark.parametrize("slo_class", ["Interactive", "Balanced", "Batch"])
@pytest.mark.parametrize("device", ["GPU", "CPU"])
def test_both_know_the_same_class_table(slo_class: str, device: str) -> None:
    """The operator passes the values; the engine's own serve people without an operator."""
    values = effective(spec_of(slo={"class": slo_class}, resources={"device": device}), "chat").batching
    assert class_defaults.batching(slo_class.lower(), device.lower(), {}) == {
        "max_requests": values.max_requests,
        "max_batch_tokens": values.max_batch_tokens,
        "chunked_prefill_tokens": values.chunked_prefill_tokens,
        "max_queued_requests": values.max_queued_requests,
    }


@pytest.mark.parametrize("admission", SPEC["batching"]["properties"]["admission"]["enum"])
def test_the_engine_knows_every_kind_of_admission(admission: str) -> None:
    assert engine_reads(spec_of(batching={"admission": admission}))["admission"] == admission.lower()


@pytest.mark.parametrize("mode", SPEC["batching"]["properties"]["preemption"]["properties"]["mode"]["enum"])
def test_the_engine_knows_every_mode_of_preemption(mode: str) -> None:
    pool = spec_of(batching={"preemption": {"mode": mode}}, kvCache=SWAP_SPACE)
    assert engine_reads(pool)["preemption_mode"] == mode.lower()


@pytest.mark.parametrize("bound", ["minimum", "maximum"])
def test_the_engine_takes_every_swap_threshold_that_the_schema_takes(bound: str) -> None:
    value = SPEC["batching"]["properties"]["preemption"]["properties"]["swapThresholdTokens"][bound]
    read = engine_reads(spec_of(batching={"preemption": {"swapThresholdTokens": value}}, kvCache=SWAP_SPACE))
    assert read["swap_threshold_tokens"] == value


def test_the_fetching_containers_flags_are_known() -> None:
    parser = argparse.ArgumentParser(exit_on_error=False, allow_abbrev=False)
    model.add_arguments(parser)
    hub = spec_of(model={"source": "hf://o/n@r#m.gguf", "digest": "sha256:" + "a" * 64})
    read = parser.parse_args(pull_args(hub, "hf://o/n@r#m.gguf", "/token", None)[1:])
    assert (read.source, read.to, read.token_file) == ("hf://o/n@r#m.gguf", "/models/pool", "/token")
    assert read.digest == "sha256:" + "a" * 64


def documented_reasons() -> set[str]:
    section = CONTRACT.partition("## 3.")[2].partition("## 4.")[0]
    return set(re.findall(r"^\| `([A-Za-z]+)` \|", section, re.MULTILINE))


def test_the_operator_knows_every_reason_of_the_contract_and_of_the_engine() -> None:
    assert {str(reason) for reason in ENGINE_REASONS} == documented_reasons()
    assert {str(reason) for reason in StartReason} <= documented_reasons()


@pytest.mark.parametrize("reason", StartReason)
def test_an_engines_last_line_is_found_by_the_operator(reason: StartReason) -> None:
    assert engine_reason(str(StartError(reason, "a: b: c"))) == (Reason(reason), "a: b: c")
