"""Serve a model over an OpenAI-compatible HTTP API.

MODEL is one of
  demo                       SmolLM2-135M-Instruct, fetched once (98 MB)
  DIR                        a folder with safetensors, config.json and tokenizer.json
  FILE.gguf                  a GGUF file
  hf://ORG/NAME@REV[#FILE]   from the Hugging Face hub, fetched once

Each option can also be set by an environment variable, --max-requests by KVIK_MAX_REQUESTS and so on; the flag wins.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from kvik_engine.config import EngineConfig
from kvik_engine.errors import StartError, StartReason

HELP = "serve a model"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from kvik_engine.cli.serve_options import OPTIONS

    parser.usage = "kvik serve MODEL [--option VALUE ...]"
    parser.add_argument("model", metavar="MODEL", help="demo, a folder, a .gguf file or hf://ORG/NAME@REV")
    groups: dict[str, argparse._ArgumentGroup] = {}
    for option in OPTIONS:
        group = groups.get(option.group) or groups.setdefault(option.group, parser.add_argument_group(option.group))
        help_text = f"{option.help} (default: {option.default})"
        group.add_argument(option.flag, dest=option.name, metavar=option.metavar, help=help_text)


def run(arguments: argparse.Namespace) -> int:
    from kvik_engine.cli.serve_options import OPTIONS, read_options
    from kvik_engine.launch import launch
    from kvik_engine.log import configure_logging
    from kvik_engine.run_dir import default_base

    configure_logging("launch")
    given = read_options({option.name: getattr(arguments, option.name) for option in OPTIONS}, os.environ)
    run_base = Path(given.pop("run_dir", None) or default_base())
    return launch(build_config(arguments.model, given, run_base), run_base)


def build_config(source: str, given: dict[str, Any], run_base: Path) -> EngineConfig:
    """Everything resolved: local path, device, class defaults. Fetches the model if it is not there yet."""
    from kvik_engine.cli.class_defaults import batching
    from kvik_engine.cli.devices import resolve_device
    from kvik_engine.cli.sources import default_cache_dir, local_model

    given = dict(given)
    cache_dir = Path(given.pop("cache_dir", None) or default_cache_dir(os.environ))
    model = local_model(source, cache_dir)
    device = resolve_device(given.pop("device", "auto"))
    slo_class = given.pop("slo_class", "balanced")
    if given.get("port", 8000) == given.get("metrics_port", 8001):
        raise StartError(StartReason.CONFIG_INVALID, "--port and --metrics-port are the same")
    block_tokens = given.get("block_tokens", 16)
    if block_tokens & (block_tokens - 1):
        raise StartError(StartReason.CONFIG_INVALID, f"--block-tokens: {block_tokens} is no power of two")
    if given.get("admission") == "goodput" and "slo_ttft" not in given:
        raise StartError(StartReason.CONFIG_INVALID, "--admission goodput needs --slo-ttft")
    given |= batching(slo_class, device, given)
    return EngineConfig(
        source=source,
        model_path=str(model.path),
        model_name=given.pop("model_name", None) or model.name,
        model_revision=model.revision,
        model_digest=given.pop("digest", None),
        cache_dir=str(cache_dir),
        run_dir=str(run_base),
        device=device,
        slo_class=slo_class,
        **given,
    )
