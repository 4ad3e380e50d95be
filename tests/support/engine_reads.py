"""The engine's end of a pool: what it makes of the command line that the operator writes."""

from __future__ import annotations

import argparse
from typing import Any

from kvik_engine.cli import class_defaults, serve
from kvik_engine.cli.devices import resolve_device
from kvik_engine.cli.option_rules import check_options
from kvik_engine.cli.serve_options import read_options
from kvik_operator.crd.effective import effective
from kvik_operator.crd.inferencepool import PoolSpec
from kvik_operator.objects.engine_args import serve_args
from kvik_operator.objects.model_source import model_source


def engine_reads(spec: PoolSpec) -> dict[str, Any]:
    """The operator's command line, as the engine understands and accepts it. StartError names what it does not."""
    args = serve_args(spec, effective(spec, "chat"), model_source(spec.model.source), None)
    parser = argparse.ArgumentParser(exit_on_error=False, allow_abbrev=False)
    serve.add_arguments(parser)
    flags = vars(parser.parse_args(args[1:]))
    assert flags.pop("model") == "/models/smollm2/model.gguf"
    read = read_options(flags, {})
    check_options({**read, "device": resolve_device(read["device"])})
    class_defaults.batching(read["slo_class"], read["device"], read)
    return read
