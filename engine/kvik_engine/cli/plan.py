"""What a model takes on a device, how many requests fit, how fast it can be and what it costs: on paper, in a moment.

MODEL is a config.json, a folder, a .gguf file, or demo or hf://ORG/NAME@REV once they have been fetched. Nothing is
fetched and nothing is loaded. Memory and prices are those of one device.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvik_engine.cli import values
from kvik_engine.cli.serve_options import OPTIONS, Option
from kvik_engine.config import DEFAULTS
from kvik_engine.errors import StartError, StartReason

if TYPE_CHECKING:
    from kvik_engine.cli.sources import LocalModel

HELP = "say what a model needs and how many requests fit"

_DTYPES = ("fp32", "bf16", "fp16")
_OPTIONS = (
    Option("memory", values.size, "Device", "SIZE", "of the device, such as 80GiB", "the GPU's"),
    Option("gpu", str, "Device", "NAME", "for time and cost, such as h100", "no time, no cost"),
    Option("memory_fraction", values.fraction, "Device", "0-1", "of the memory, weights included"),
    Option("tensor_parallel", values.count(1, 1024), "Device", "N", "devices that share the model", "1"),
    Option("price_per_hour", values.price, "Device", "PRICE", "of one GPU, in any currency", "no cost"),
    Option("context", values.count(1, 1 << 28), "Requests", "N", "tokens of a request, answer included", "the model's"),
    Option("concurrency", values.count(1, 1 << 20), "Requests", "N", "requests at once", "64"),
    Option("shared_prefix", values.count(0, 1 << 28), "Requests", "N", "tokens that all begin with", "0"),
    Option(
        "dtype",
        values.one_of(*_DTYPES),
        "Engine",
        "|".join(_DTYPES),
        "of weights; and of the KV cache unless it is quantised",
        "bf16",
    ),
    *(option for option in OPTIONS if option.name in ("kv_key_dtype", "kv_value_dtype")),
    Option("block_tokens", values.power_of_two(8, 256), "Engine", "N", "tokens a block; a power of two"),
    Option("max_batch_tokens", values.count(16, 1 << 20), "Engine", "N", "tokens computed in a step", "4096"),
    Option("cache_dir", str, "Engine", "DIR", "where fetched models are", "~/.cache/kvik"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "kvik plan MODEL --memory SIZE [--option VALUE ...]"
    parser.add_argument("model", metavar="MODEL", help="config.json, a folder, a .gguf, demo or hf://ORG/NAME@REV")
    parser.add_argument("--json", action="store_true", help="print one JSON object (docs/plan.md)")
    groups: dict[str, argparse._ArgumentGroup] = {}
    for option in _OPTIONS:
        group = groups.get(option.group) or groups.setdefault(option.group, parser.add_argument_group(option.group))
        group.add_argument(option.flag, dest=option.name, metavar=option.metavar, help=option.full_help)


def run(arguments: argparse.Namespace) -> int:
    from kvik_engine.attention.kv_layout import KVFormats
    from kvik_engine.capacity.model_on_disk import read_model
    from kvik_engine.capacity.plan import Wanted, make_plan
    from kvik_engine.capacity.report import as_json, as_text
    from kvik_engine.cli.sources import default_cache_dir

    given = _read({option.name: getattr(arguments, option.name) for option in _OPTIONS})
    cache_dir = Path(given.get("cache_dir") or default_cache_dir(os.environ))
    local = _local(arguments.model, cache_dir)
    gpu, memory_bytes = _device(given)
    model = read_model(local.path)
    dtype = given.get("dtype", "bf16")
    wanted = Wanted(
        memory_bytes=memory_bytes,
        memory_fraction=given.get("memory_fraction", DEFAULTS["memory_fraction"]),
        dtype=dtype,
        formats=KVFormats.of(dtype, *(given.get(name, DEFAULTS[name]) for name in ("kv_key_dtype", "kv_value_dtype"))),
        block_tokens=given.get("block_tokens", DEFAULTS["block_tokens"]),
        context=given.get("context", model.config.context_length),
        concurrency=given.get("concurrency", 64),
        shared_prefix=given.get("shared_prefix", 0),
        max_batch_tokens=given.get("max_batch_tokens", 4096),
        ranks=given.get("tensor_parallel", 1),
        gpu=gpu,
        price_per_hour=given.get("price_per_hour"),
    )
    plan = make_plan(model.config, wanted)
    if arguments.json:
        print(json.dumps(as_json(local.name, model, wanted, plan), indent=1))
    else:
        print(as_text(local.name, model, wanted, plan))
    return 0


def _local(source: str, cache_dir: Path) -> LocalModel:
    """StartError where it was not fetched, with the way that needs no fetching of weights."""
    from kvik_engine.cli.sources import HUB, fetched_model

    try:
        return fetched_model(source, cache_dir)
    except StartError as error:
        if error.reason is StartReason.MODEL_NOT_FOUND and source.startswith(HUB):
            raise StartError(error.reason, f"{error.message}; or give its config.json, which is enough") from None
        raise


def _read(flags: dict[str, str | None]) -> dict[str, Any]:
    """The options that were given. StartError (ConfigInvalid) names the wrong one."""
    given: dict[str, Any] = {}
    for option in _OPTIONS:
        text = flags[option.name]
        if text is not None:
            try:
                given[option.name] = option.read(text)
            except ValueError as error:
                raise StartError(StartReason.CONFIG_INVALID, f"{option.flag}: {error}") from error
    return given


def _device(given: dict[str, Any]) -> tuple[Any, int]:
    """The GPU, if one is named, and the memory of one device."""
    from kvik_engine.capacity.gpus import GPUS

    name = given.get("gpu")
    gpu = None if name is None else GPUS.get(name.lower())
    if name is not None and gpu is None:
        raise StartError(StartReason.CONFIG_INVALID, f"--gpu: {name[:80]!r} is none of {', '.join(GPUS)}")
    if gpu is None and "price_per_hour" in given:
        raise StartError(StartReason.CONFIG_INVALID, "--price-per-hour needs --gpu")
    if gpu is None and "memory" not in given:
        raise StartError(StartReason.CONFIG_INVALID, f"give --memory, or --gpu as one of {', '.join(GPUS)}")
    memory: int = given["memory"] if gpu is None else given.get("memory", gpu.memory_bytes)
    return gpu, memory
