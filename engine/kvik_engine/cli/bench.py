"""Send load to an OpenAI endpoint and say what its clients see: TTFT, TPOT, ITL, E2E, throughput and goodput.

URL is any server that streams chats, such as http://127.0.0.1:8000. An API key is taken from OPENAI_API_KEY. The exit
code is 1 if any request failed. docs/bench.md defines every figure.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from kvik_engine.cli import values
from kvik_engine.errors import StartError, StartReason
from kvik_engine.exits import EXIT_START_ERROR

if TYPE_CHECKING:
    from kvik_engine.bench.endpoint import Chats
    from kvik_engine.bench.figures import Result
    from kvik_engine.bench.prompts import Scripts
    from kvik_engine.bench.workloads import Workload

HELP = "measure an OpenAI endpoint under load"

MOST_TOKENS = 1_000_000
EXIT_FAILED_REQUESTS = 1
_DEFAULT_CONCURRENCY = 1
_PREFIX = {"prefix_tokens": 512, "prefixes": 2}
_TURNS = {"turns": 4}
_T = TypeVar("_T")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from kvik_engine.bench.workloads import KINDS

    tokens, number = _read(values.count(1, MOST_TOKENS)), _read(values.count(1, 10**6))
    parser.add_argument("url", metavar="URL", help="of the server, with or without /v1")
    parser.add_argument("--model", help="(default: the only one that is served)")
    work = parser.add_argument_group("Workload")
    work.add_argument("--workload", choices=KINDS, default="random", help="(default: random)")
    work.add_argument("--requests", type=number, default=100, help="in all (default: 100)")
    work.add_argument("--input-tokens", type=tokens, default=128, help="of each request's own (default: 128)")
    work.add_argument("--output-tokens", type=tokens, default=64, help="asked for at most (default: 64)")
    work.add_argument("--prefix-tokens", type=tokens, help="of shared-prefix (default: 512)")
    work.add_argument("--prefixes", type=number, help="different ones of shared-prefix (default: 2)")
    work.add_argument("--turns", type=number, help="of a conversation of multi-turn (default: 4)")
    work.add_argument(
        "--ignore-eos", action="store_true", help="have answers of the full length (not part of OpenAI's API)"
    )
    work.add_argument("--seed", type=int, default=0, help="of words, lengths and arrivals (default: 0)")
    load = parser.add_mutually_exclusive_group()
    load.add_argument(
        "--concurrency", type=number, help="closed load: clients, one request at a time each (default: 1)"
    )
    load.add_argument("--rate", type=_rate, help="open load: conversations that begin in a second, a Poisson process")
    parser.add_argument("--warmup", type=_read(values.count(0, 10**6)), default=1, help="requests before (default: 1)")
    duration = _read(values.duration)
    parser.add_argument("--slo-ttft", type=duration, metavar="DURATION", help="bound of goodput, such as 500ms")
    parser.add_argument("--slo-tpot", type=duration, metavar="DURATION", help="bound of goodput, such as 50ms")
    parser.add_argument(
        "--timeout", type=duration, default=600.0, metavar="DURATION", help="of a request (default: 10m)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--plot", type=_picture, metavar="FILE.svg", help="write the latencies as a picture, too")


def _read(reader: Callable[[str], _T]) -> Callable[[str], _T]:
    """The reader as argparse wants it, with its own words for what is wrong."""

    def read(text: str) -> _T:
        try:
            return reader(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return read


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not 1e-3 <= rate <= 1e4:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0.001 to 10000")
    return rate


def _picture(text: str) -> Path:
    """Refused before the load rather than after it."""
    path = Path(text)
    if path.suffix != ".svg":
        raise argparse.ArgumentTypeError(f"{text!r} does not end in .svg")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {path.parent}")
    return path


def run(arguments: argparse.Namespace) -> int:
    import uvloop

    from kvik_engine.bench.endpoint import NotAnEndpoint
    from kvik_engine.bench.prompts import TooShort

    workload = _workload(arguments)
    try:
        return uvloop.run(_measure(arguments, workload))
    except (NotAnEndpoint, TooShort) as error:
        print(f"kvik bench: {error}", file=sys.stderr)
        return EXIT_START_ERROR


def _workload(arguments: argparse.Namespace) -> Workload:
    """StartError (ConfigInvalid) for an option of another workload."""
    from kvik_engine.bench.workloads import Workload

    chosen = dict[str, int]()
    for kind, defaults in (("shared-prefix", _PREFIX), ("multi-turn", _TURNS)):
        for name, default in defaults.items():
            given = getattr(arguments, name)
            if given is not None and arguments.workload != kind:
                flag = f"--{name.replace('_', '-')}"
                raise StartError(StartReason.CONFIG_INVALID, f"{flag} is for --workload {kind}")
            chosen[name] = default if given is None else given
    return Workload(arguments.workload, arguments.input_tokens, arguments.output_tokens, **chosen)


async def _measure(arguments: argparse.Namespace, workload: Workload) -> int:
    from kvik_engine.bench.endpoint import Chats, Endpoint, base_of, session
    from kvik_engine.bench.figures import Slo, figures
    from kvik_engine.bench.load import closed
    from kvik_engine.bench.plot import picture
    from kvik_engine.bench.report import Run, as_json, as_table, headline

    base = base_of(arguments.url)
    async with session(arguments.timeout, os.environ.get("OPENAI_API_KEY")) as http:
        endpoint = Endpoint(http, base)
        model = _chosen(arguments.model, await endpoint.models(), base)
        chats = Chats(endpoint, model, ignore_eos=arguments.ignore_eos)
        print(f"kvik bench: making prompts of the lengths asked for: {arguments.requests}", file=sys.stderr)
        # Words of another seed, or the prefix cache would know the prompts.
        before = await _scripts(chats, workload, arguments.warmup, f"warm-up {arguments.seed}")
        scripts = await _scripts(chats, workload, arguments.requests, str(arguments.seed))
        await closed(before.scripts, arguments.concurrency or _DEFAULT_CONCURRENCY, chats.chat)
        results, latest_start = await _send(arguments, scripts, chats)
    slo = Slo(arguments.slo_ttft, arguments.slo_tpot)
    found = figures(results, slo)
    told = Run(
        url=base,
        model=model,
        workload=workload,
        requests=arguments.requests,
        concurrency=None if arguments.rate is not None else arguments.concurrency or _DEFAULT_CONCURRENCY,
        rate=arguments.rate,
        seed=arguments.seed,
        warmup=arguments.warmup,
        ignore_eos=arguments.ignore_eos,
        slo=slo,
        exact_prompts=scripts.exact,
        latest_start=latest_start,
    )
    print(json.dumps(as_json(told, found)) if arguments.json else as_table(told, found))
    if arguments.plot is not None:
        arguments.plot.write_text(picture(headline(told), results, slo))
    return EXIT_FAILED_REQUESTS if found.failed else 0


def _chosen(wanted: str | None, served: list[str], base: str) -> str:
    if wanted is None and len(served) == 1:
        return served[0]
    if wanted in served and wanted is not None:
        return wanted
    asked = "--model must be one of them" if wanted is None else f"--model {wanted} is none of them"
    raise StartError(StartReason.CONFIG_INVALID, f"{base} serves {', '.join(served) or 'no model'}: {asked}")


async def _scripts(chats: Chats, workload: Workload, requests: int, seed: str) -> Scripts:
    from kvik_engine.bench.prompts import write
    from kvik_engine.bench.workloads import conversations

    return await write(workload, conversations(workload, requests, seed), seed, chats.count)


async def _send(arguments: argparse.Namespace, scripts: Scripts, chats: Chats) -> tuple[list[Result], float | None]:
    from kvik_engine.bench.load import closed, opened
    from kvik_engine.bench.workloads import arrivals

    if arguments.rate is None:
        return await closed(scripts.scripts, arguments.concurrency or _DEFAULT_CONCURRENCY, chats.chat), None
    times = arrivals(len(scripts.scripts), arguments.rate, str(arguments.seed))
    return await opened(scripts.scripts, times, chats.chat)
