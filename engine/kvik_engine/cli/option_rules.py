"""Which options of `kvik serve` contradict each other, or would do nothing without another.

One table, read before the model is looked for; `kvik simulate` reads it too. The CRD refuses the same in a pool
(docs/decisions/0056).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kvik_engine.config import DEFAULTS
from kvik_engine.errors import StartError, StartReason

Given = Mapping[str, Any]
"""The options that were given, as `read_options` reads them; `device` as `resolve_device` names it."""


def _value(given: Given, name: str) -> Any:
    return given.get(name, DEFAULTS[name])


@dataclass(frozen=True, slots=True)
class Rule:
    """`message` names the flags and the way out."""

    broken: Callable[[Given], bool]
    message: str


RULES = (
    Rule(
        lambda given: _value(given, "port") == _value(given, "metrics_port"),
        "--port and --metrics-port are the same",
    ),
    Rule(
        lambda given: given.get("attention") == "triton" and given.get("device") == "cpu",
        "--attention=triton does not run on a CPU; cpu and reference do",
    ),
    Rule(
        lambda given: given.get("attention") == "cpu" and given.get("device") == "cuda",
        "--attention=cpu does not run on a GPU; triton and reference do",
    ),
    Rule(
        lambda given: given.get("quantization") == "int8" and given.get("device") == "cuda",
        "--quantization=int8 does not run on a GPU: leave it out, or take --device=cpu",
    ),
    Rule(
        lambda given: given.get("quantization") == "int8" and given.get("dtype") == "fp16",
        "--quantization=int8 computes in bf16 or fp32, not in fp16",
    ),
    Rule(
        lambda given: given.get("admission") == "goodput" and "slo_ttft" not in given,
        "--admission=goodput needs --slo-ttft",
    ),
    Rule(
        lambda given: "kv_cache_size" in given and "memory_fraction" in given,
        "--kv-cache-size and --memory-fraction both size the KV cache: give one of them",
    ),
    Rule(
        lambda given: given.get("preemption_mode") == "swap" and not given.get("swap_space"),
        "--preemption-mode=swap needs --swap-space",
    ),
    Rule(
        lambda given: "swap_threshold_tokens" in given and _value(given, "preemption_mode") != "auto",
        "--swap-threshold-tokens is read with --preemption-mode=auto only: leave one of them out",
    ),
    Rule(
        lambda given: "swap_threshold_tokens" in given and not given.get("swap_space"),
        "--swap-threshold-tokens needs --swap-space",
    ),
    Rule(
        lambda given: (
            bool(given.get("swap_space"))
            and given.get("preemption_mode") == "recompute"
            and given.get("prefix_cache") == "disabled"
        ),
        "--swap-space would stay empty: --preemption-mode=recompute and --prefix-cache=disabled put nothing there",
    ),
    Rule(
        lambda given: "disk_cache" in given and not given.get("disk_cache_size"),
        "--disk-cache needs --disk-cache-size",
    ),
    Rule(
        lambda given: bool(given.get("disk_cache_size")) and "disk_cache" not in given,
        "--disk-cache-size needs --disk-cache",
    ),
    Rule(
        lambda given: "disk_cache" in given and not given.get("swap_space"),
        "--disk-cache needs --swap-space, through which all its blocks go",
    ),
    Rule(
        lambda given: "disk_cache" in given and given.get("prefix_cache") == "disabled",
        "--disk-cache holds prefixes, and --prefix-cache is disabled",
    ),
)


def check_options(given: Given) -> None:
    """StartError (ConfigInvalid) for the first broken rule."""
    for rule in RULES:
        if rule.broken(given):
            raise StartError(StartReason.CONFIG_INVALID, rule.message)
