"""A stand-in for the engine that is ready in a second: `python -m tests.support.stub_engine serve SOURCE --flag=value`.

It speaks docs/contract.md and answers chats with `word0 word1 ...`. It takes the engine's flags and heeds those that
change what the operator or a client can see; its own knobs are `STUB_...` and `PUT /stub` on the metrics port.
`STUB_FAIL="ModelNotFound: no such file"` makes it leave that line in /dev/termination-log and exit 78.
"""

import argparse
import asyncio
import os
import re
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from aiohttp import web

from tests.support.stub_engine.engine import StubEngine, StubOptions
from tests.support.stub_engine.http import api_app, metrics_app

CONFIGURATION_EXIT = 78
_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}


def main(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    if failure := environ.get("STUB_FAIL"):
        Path(environ.get("STUB_TERMINATION_LOG", "/dev/termination-log")).write_text(failure + "\n")
        return CONFIGURATION_EXIT
    arguments = _arguments(argv)
    options = StubOptions(
        model_name=arguments.model_name,
        max_requests=arguments.max_requests,
        max_queued_requests=arguments.max_queued_requests,
        kv_blocks_total=int(environ.get("STUB_KV_BLOCKS", "728")),
        block_tokens=arguments.block_tokens,
        tokens_per_second=float(environ.get("STUB_TOKENS_PER_SECOND", "50")),
        prefill_tokens_per_second=float(environ.get("STUB_PREFILL_TOKENS_PER_SECOND", "1000")),
        ready_after=float(environ.get("STUB_READY_AFTER", "1")),
        accept_while_draining=float(environ.get("STUB_ACCEPT_WHILE_DRAINING", "5")),
        drain_timeout=seconds(arguments.drain_timeout),
        admission=arguments.admission,
        swap_space=arguments.swap_space,
        disk_cache_size=arguments.disk_cache_size,
        api_keys_file=arguments.api_keys_file,
    )
    asyncio.run(_serve(StubEngine(options), arguments.host, arguments.port, arguments.metrics_port))
    return 0


def seconds(duration: str) -> float:
    """`1m30s` -> 90.0 (GEP-2257)."""
    return sum(float(number) * _UNITS[unit] for number, unit in re.findall(r"(\d+)(ms|h|m|s)", duration))


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    """The flags of `kvik serve` that matter here; the others are taken and have no effect on a stub."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("command", choices=["serve"])
    parser.add_argument("source")
    parser.add_argument("--host", default="0.0.0.0")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--metrics-port", type=int, default=8001)
    parser.add_argument("--model-name", default="stub")
    parser.add_argument("--max-requests", type=int, default=32)
    parser.add_argument("--max-queued-requests", type=int, default=256)
    parser.add_argument("--block-tokens", type=int, default=16)
    parser.add_argument("--drain-timeout", default="120s")
    parser.add_argument("--admission", default="queue")
    parser.add_argument("--swap-space", type=int, default=0)
    parser.add_argument("--disk-cache-size", type=int)
    parser.add_argument("--api-keys-file", type=Path)
    return parser.parse_known_args(list(argv))[0]


async def _serve(engine: StubEngine, host: str, port: int, metrics_port: int) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, engine.drain)
    runners = []
    for app, at in ((metrics_app(engine), metrics_port), (api_app(engine), port)):
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        await web.TCPSite(runner, host, at).start()
        runners.append(runner)
    await engine.wait_until_drained()
    for runner in runners:
        await runner.cleanup()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
