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
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvik_engine.config import DEFAULTS, EngineConfig
from kvik_engine.errors import StartError, StartReason

HELP = "serve a model"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from kvik_engine.cli.serve_options import OPTIONS

    parser.usage = "kvik serve MODEL [--option VALUE ...]"
    parser.add_argument("model", metavar="MODEL", help="demo, a folder, a .gguf file or hf://ORG/NAME@REV")
    groups: dict[str, argparse._ArgumentGroup] = {}
    for option in OPTIONS:
        group = groups.get(option.group) or groups.setdefault(option.group, parser.add_argument_group(option.group))
        group.add_argument(option.flag, dest=option.name, metavar=option.metavar, help=option.full_help)


def run(arguments: argparse.Namespace) -> int:
    from kvik_engine.cli.serve_options import OPTIONS, read_options
    from kvik_engine.launch import launch
    from kvik_engine.log import configure_logging
    from kvik_engine.run_dir import default_base

    configure_logging("launch")
    given = read_options({option.name: getattr(arguments, option.name) for option in OPTIONS}, os.environ)
    run_base = Path(given.pop("run_dir", None) or default_base())
    settings = resolve(given)
    check_places(settings, run_base)
    return launch(build_config(arguments.model, settings, run_base), run_base)


def resolve(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options with device and class defaults filled in. StartError (ConfigInvalid) when they contradict."""
    from kvik_engine.cli.class_defaults import batching
    from kvik_engine.cli.devices import resolve_device
    from kvik_engine.cli.option_rules import check_options

    settings = {**given, "device": resolve_device(given.get("device", DEFAULTS["device"]))}
    check_options(settings)
    return settings | batching(settings.get("slo_class", DEFAULTS["slo_class"]), settings["device"], settings)


def check_places(settings: Mapping[str, Any], run_base: Path) -> None:
    """Whether what the options name can be had: StartError if not, before a model is fetched for nothing.

    All of it is made again by whoever needs it.
    """
    from kvik_engine.api.keys import keys_or_refuse
    from kvik_engine.api.ports import bind_or_refuse

    keys_or_refuse(settings.get("api_keys_file"))
    _try_run_dir(run_base)
    for name in ("port", "metrics_port"):
        bind_or_refuse(settings.get("host", DEFAULTS["host"]), settings.get(name, DEFAULTS[name])).close()


def _try_run_dir(run_base: Path) -> None:
    """A Unix socket's path has at most 107 bytes, and some file systems hold no sockets."""
    from kvik_engine.api.admin_socket import ADMIN_SOCKET
    from kvik_engine.launch import make_run_dir

    run_dir = make_run_dir(run_base)
    try:
        with socket.socket(socket.AF_UNIX) as trial:
            trial.bind(str(run_dir.path / ADMIN_SOCKET))
    except OSError as error:
        raise StartError(StartReason.CONFIG_INVALID, f"--run-dir {run_base} can hold no socket: {error}") from error
    finally:
        run_dir.remove()


def build_config(source: str, settings: Mapping[str, Any], run_base: Path) -> EngineConfig:
    """The configuration with its model, which is fetched if it is not there yet."""
    from kvik_engine.cli.sources import default_cache_dir, local_model

    settings = dict(settings)
    digest, name = settings.pop("digest", None), settings.pop("model_name", None)
    cache_dir = Path(settings.pop("cache_dir", None) or default_cache_dir(os.environ))
    model = local_model(source, cache_dir)
    return EngineConfig(
        source=source,
        model_path=str(model.path),
        model_name=name or model.name,
        model_revision=model.revision,
        model_digest=digest,
        cache_dir=str(cache_dir),
        run_dir=str(run_base),
        **settings,
    )
