"""Compares Kvik with llama.cpp, and with endpoints given by URL, on this machine: `make bench-peers`.

One JSON line for each server and load goes into bench/results/peers.jsonl, in place of those of the run before, since
only figures of one run can be compared; a section of docs/performance.md is made from them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
from collections.abc import Sequence
from typing import Any

from bench import kept_lines
from bench.claims.engine import demo_file
from bench.machine import machine_now
from bench.peers.goals import OURS_INT8, TOKENS, TPOT, TTFT, judged
from bench.peers.loads import LOADS, Load, shortened
from bench.peers.measure import under, write_all
from bench.peers.page import PAGE, RESULTS, placed, section
from bench.peers.servers import Given, Kvik, LlamaCpp, Server, given
from kvik_engine.errors import KvikError

KINDS = ("BF16", "Q4_0", "Q8_0")


def measured(servers: Sequence[Server], loads: Sequence[Load]) -> list[dict[str, Any]]:
    """A line for each server and load. The first server counts the prompts' tokens, for all."""
    machine, lines, prepared = machine_now(), list[dict[str, Any]](), None
    for server in servers:
        with server.serving() as url:
            prepared = prepared or asyncio.run(write_all(url, loads))
            for load in prepared:
                seen = asyncio.run(under(url, load))
                lines.append({"server": server.name, "under": load.load.name, "version": server.version, **seen})
                lines[-1]["machine"] = machine
                print(_said(lines[-1]), flush=True)
    return lines


def _said(line: dict[str, Any]) -> str:
    figures = ", ".join(f"{figure.name} {figure.of(line) or 0:.1f}" for figure in (TTFT, TPOT, TOKENS))
    return f"{line['under']:<12}{line['server']:<16}{figures}, failed {line['failed']}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.peers", description=__doc__)
    parser.add_argument(
        "--peer",
        type=_given,
        action="append",
        default=[],
        metavar="NAME=URL",
        help="another OpenAI endpoint that serves the same model",
    )
    parser.add_argument("--trial", action="store_true", help="a fourth of the requests, and nothing is written")
    parser.add_argument("--page", action="store_true", help="write the section from the lines that are there")
    arguments = parser.parse_args()
    if not arguments.page:
        lines = compared(arguments.peer, [shortened(load) for load in LOADS] if arguments.trial else LOADS)
        if arguments.trial:
            return 0
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text("".join(json.dumps(line) + "\n" for line in lines))
    PAGE.write_text(placed(PAGE.read_text(), section(kept_lines.read(RESULTS))))
    return 0


def _given(text: str) -> Given:
    try:
        return given(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def compared(more: Sequence[Server], loads: Sequence[Load]) -> list[dict[str, Any]]:
    """Measures, and prints how each goal came out."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that servers end too
    servers: list[Server] = [Kvik(), Kvik(OURS_INT8, "int8"), *(LlamaCpp(kind, demo_file()) for kind in KINDS), *more]
    try:
        lines = measured(servers, loads)
    except (KvikError, RuntimeError) as error:
        raise SystemExit(f"bench.peers: {error}") from error
    for one in judged(lines):
        ratio = "-" if one.ratio is None else f"{one.ratio:.2f}"
        what = f"{one.goal.under}, {one.goal.figure.name} beside {one.against or ', '.join(one.goal.peers)}"
        print(f"{what}: {ratio}, wanted {one.goal.wanted}: {one.verdict.value}")
    return lines


if __name__ == "__main__":
    sys.exit(main())
