"""Fetch models, and compute the digest of one.

SOURCE of `pull` is demo or hf://ORG/NAME@REV[#FILE.gguf].
"""

from __future__ import annotations

import argparse
import datetime as dt
import os
from pathlib import Path

HELP = "fetch a model or compute its digest"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(title="actions", required=True, metavar="ACTION")
    pull = actions.add_parser("pull", help="fetch a model into a folder")
    pull.add_argument("source", metavar="SOURCE", help="demo or hf://ORG/NAME@REV[#FILE.gguf]")
    pull.add_argument("--to", metavar="DIR", help="target folder (default: below ~/.cache/kvik/models)")
    pull.add_argument("--digest", metavar="sha256:HEX", help="refuse any other files")
    pull.add_argument("--token-file", metavar="FILE", help="file with the hub's token, for hf:// only")
    pull.set_defaults(action=_pull)
    digest = actions.add_parser("digest", help="print the digest of a model's files")
    digest.add_argument("path", metavar="PATH", help="a folder or a .gguf file")
    digest.set_defaults(action=_digest)


def run(arguments: argparse.Namespace) -> int:
    code: int = arguments.action(arguments)
    return code


def _pull(arguments: argparse.Namespace) -> int:
    from kvik_engine.cli.sources import cached_folder
    from kvik_engine.log import configure_logging

    configure_logging("pull")
    target = Path(arguments.to) if arguments.to else cached_folder(arguments.source, os.environ)
    pull(arguments.source, target, digest=arguments.digest, token_file=arguments.token_file)
    print(target)
    return 0


def pull(source: str, target: Path, *, digest: str | None, token_file: str | None) -> None:
    """Fill `target`. StartError says why it cannot be."""
    from kvik_engine.cli.sources import DEMO
    from kvik_engine.errors import StartError, StartReason
    from kvik_engine.provenance import end_pull

    # Plain HTTP can be resumed by our own rules; no usage reports. Read when the hub's library is imported.
    os.environ |= {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    os.environ.setdefault("HF_HUB_DOWNLOAD_TIMEOUT", "30")
    from kvik_engine.weights.remote import Hub, check_pulled, parse_hub_source, pull_demo, remove_former

    hub_source = None if source == DEMO else parse_hub_source(source)
    if hub_source is None and token_file is not None:
        raise StartError(StartReason.CONFIG_INVALID, "--token-file is only used by hf:// sources")
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StartError(StartReason.CONFIG_INVALID, f"--to {target} cannot be written: {error.strerror}") from error
    pulled = pull_demo(target) if hub_source is None else Hub(_token(token_file)).pull(hub_source, target)
    remove_former(target, pulled)
    check_pulled(target, digest)
    end_pull(target, source, pulled.revision, pulled.files, dt.datetime.now(dt.UTC))


def _token(path: str | None) -> str | None:
    from kvik_engine.errors import StartError, StartReason

    if path is None:
        return None
    try:
        return Path(path).read_text().strip() or None
    except OSError as error:
        raise StartError(StartReason.CONFIG_INVALID, f"--token-file {path} cannot be read: {error.strerror}") from error


def _digest(arguments: argparse.Namespace) -> int:
    from kvik_engine.weights.model_files import find_model_files, model_digest

    print(model_digest(find_model_files(Path(arguments.path))))
    return 0
