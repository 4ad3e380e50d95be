"""Serve a trace with the engine's own scheduler and KV cache on a model of a device, in virtual time.

A trace has one JSON object a line: arrival (seconds), prompt_tokens, output_tokens, and if wanted max_tokens, class,
priority, tenant, prefix_id and prefix_tokens (docs/simulator.md).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvik_engine.errors import StartError, StartReason

if TYPE_CHECKING:
    from kvik_engine.simulation.trace import TraceRequest

HELP = "try a configuration on a trace, without a model"

MAX_TRACE_SECONDS = 1e6
MAX_RATE = 1e4
_LEAST = 1e-3
_SYNTHETIC: dict[str, Any] = {"seconds": 120.0, "rate": 1.0, "seed": 0}
"""What a synthetic trace is made with unless the user says otherwise."""
_ENGINE_OPTIONS = (
    "slo_class",
    "slo_ttft",
    "admission",
    "max_requests",
    "max_batch_tokens",
    "chunked_prefill_tokens",
    "max_queued_requests",
    "max_context_tokens",
    "kv_cache_size",
    "memory_fraction",
    "block_tokens",
    "prefix_cache",
    "swap_space",
    "preemption_mode",
    "swap_threshold_tokens",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from kvik_engine.cli.serve_options import OPTIONS
    from kvik_engine.simulation.device import DEVICES
    from kvik_engine.simulation.workloads import WORKLOADS

    load = parser.add_mutually_exclusive_group(required=True)
    load.add_argument("--trace", metavar="FILE", type=Path, help="requests, one JSON object a line")
    load.add_argument("--workload", choices=sorted(WORKLOADS), help="a synthetic trace")
    parser.add_argument("--device", choices=sorted(DEVICES), default="h100-8b", help="(default: h100-8b)")
    parser.add_argument("--seconds", type=_seconds, help=_synthetic_help("seconds", "of a synthetic trace"))
    parser.add_argument("--rate", type=_rate, metavar="X", help=_synthetic_help("rate", "times the workload's own"))
    parser.add_argument("--seed", type=int, help=_synthetic_help("seed", "of a synthetic trace"))
    parser.add_argument("--overlap", type=int, choices=(0, 1), default=0, help="steps planned ahead (default: 0)")
    parser.add_argument("--write-trace", metavar="FILE", type=Path, help="keep the trace that was served")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    engine = parser.add_argument_group("Engine, as `kvik serve` takes them")
    for option in OPTIONS:
        if option.name in _ENGINE_OPTIONS:
            engine.add_argument(option.flag, dest=option.name, metavar=option.metavar, help=option.help)


def _seconds(text: str) -> float:
    return _above_zero(text, MAX_TRACE_SECONDS)


def _rate(text: str) -> float:
    return _above_zero(text, MAX_RATE)


def _synthetic_help(name: str, what: str) -> str:
    return f"{what} (default: {_SYNTHETIC[name]:g})"


def _above_zero(text: str, most: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not _LEAST <= value <= most:  # also what is no number at all
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from {_LEAST:g} to {most:g}")
    return value


def run(arguments: argparse.Namespace) -> int:
    from kvik_engine.cli.class_defaults import batching
    from kvik_engine.cli.option_rules import check_options
    from kvik_engine.cli.serve_options import read_options
    from kvik_engine.config import DEFAULTS
    from kvik_engine.simulation.device import DEVICES
    from kvik_engine.simulation.report import class_targets, report
    from kvik_engine.simulation.simulate import config_of, simulate
    from kvik_engine.simulation.trace import write_trace

    device = DEVICES[arguments.device]
    given = read_options({name: getattr(arguments, name) for name in _ENGINE_OPTIONS}, {})
    check_options(given)
    given |= batching(given.get("slo_class", DEFAULTS["slo_class"]), device.kind, given)
    trace = _trace(arguments)
    if arguments.write_trace is not None:
        write_trace(arguments.write_trace, trace)
    config = config_of(device, **given)
    outcome = simulate(trace, device, config, overlap=arguments.overlap)
    told = report(outcome, class_targets(config.slo_class, config.slo_ttft))
    print(json.dumps(told.as_json()) if arguments.json else told)
    return 0


def _trace(arguments: argparse.Namespace) -> list[TraceRequest]:
    """The trace of the file, or a synthetic one. StartError (ConfigInvalid) for a broken file, or options beside it."""
    from kvik_engine.simulation.trace import TraceError, read_trace
    from kvik_engine.simulation.workloads import WORKLOADS, faster, generate

    made = {name: getattr(arguments, name) for name in _SYNTHETIC if getattr(arguments, name) is not None}
    if arguments.trace is None:
        how = {**_SYNTHETIC, **made}
        return generate(faster(WORKLOADS[arguments.workload], how.pop("rate")), **how)
    if made:
        flag = f"--{next(iter(made))}"
        raise StartError(StartReason.CONFIG_INVALID, f"{flag} is for a --workload; a --trace is served as it is")
    try:
        return read_trace(arguments.trace)
    except (OSError, TraceError) as error:
        raise StartError(StartReason.CONFIG_INVALID, f"--trace: {error}") from error
