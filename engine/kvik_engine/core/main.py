"""Entry of the core process: load the model, size the cache, serve until told to stop.

    python -m kvik_engine.core.main RUN_DIR/config.json

No asyncio: poll the inbox, step, send one frame, block on the socket when idle. Ends with 0 on SIGTERM, with 78 when
starting again cannot help (StartError), with 70 when a step raised: launch then starts a fresh core.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from kvik_engine.config import EngineConfig
from kvik_engine.core.build import build_core, describe, limits, size
from kvik_engine.core.disk_cache import open_disk_cache
from kvik_engine.core.faults import ENVIRONMENT, parse_faults, with_faults
from kvik_engine.core.garbage import collect_between_steps
from kvik_engine.core.loop import EngineCore
from kvik_engine.core.warm_up import warm_up
from kvik_engine.errors import StartError
from kvik_engine.exits import EXIT_START_ERROR, report_start_error
from kvik_engine.ipc.core_channel import CoreChannel
from kvik_engine.ipc.framing import core_socket
from kvik_engine.ipc.heartbeat import HEARTBEAT_FILE, STALL_SECONDS, HeartbeatWriter, Phase
from kvik_engine.ipc.messages import Hello
from kvik_engine.kv.sizing import Ledger
from kvik_engine.log import configure_logging
from kvik_engine.spelling import SPELLING_FILE, read_spelling
from kvik_engine.step import HostSpace, SwapSpace

log = logging.getLogger(__name__)

EXIT_STEP_FAILED = 70
OVERLAP = 0
"""Steps planned and not settled. A CPU computes inside `launch`, so there is nothing to overlap with."""
_IDLE_SECONDS = 1.0
_STALL_STEPS = 2.0
"""A step that takes so many times what the largest one should is hung. Liveness fails only half a minute later."""


class StopFlag:
    """Set by SIGTERM or SIGINT; the loop looks at it between steps."""

    def __init__(self) -> None:
        self.set = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)

    def _stop(self, number: int, frame: object) -> None:
        self.set = True


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="kvik core")
    parser.add_argument("config", type=Path)
    options = parser.parse_args(arguments)
    configure_logging("core")
    try:
        serve(EngineConfig.read(options.config))
    except StartError as error:
        report_start_error(error)
        return EXIT_START_ERROR
    except Exception:
        log.exception("the core failed")
        return EXIT_STEP_FAILED
    return 0


def serve(config: EngineConfig) -> None:
    """Load, then step until told to stop. StartError while loading; any other exception is a bug.

    SIGTERM ends the process at once while it loads: there is nothing to finish, and a load may take minutes.
    """
    from kvik_engine.runner.load import load_runner

    heartbeat = HeartbeatWriter(Path(config.run_dir) / HEARTBEAT_FILE)

    def progress(phase: str) -> None:
        log.info("starting", extra={"phase": phase})
        heartbeat.beat(Phase.STARTING)

    faults = parse_faults(os.environ.get(ENVIRONMENT, ""))
    progress("loading the model")
    runner = load_runner(config, progress)
    loaded = time.perf_counter()
    ledger = size(config, runner.facts)
    log.info(str(ledger))
    if ledger.context < min(ledger.model_context, config.max_context_tokens or ledger.model_context):
        log.warning("the KV cache is smaller than the context", extra={"served_context": ledger.context})
    progress("allocating the KV cache")
    allocated = runner.allocate(ledger.blocks)
    assert allocated == ledger.allocated_bytes, f"the ledger says {ledger.allocated_bytes}, {allocated} were allocated"
    host = allocate_swap_space(runner, ledger)
    below = open_disk_cache(config, runner.facts, host)
    progress("warming up")
    heartbeat.stall_seconds = stall_seconds(warm_up(runner, limits(config), ledger))
    model = describe(runner.facts, ledger, warm_seconds=time.perf_counter() - loaded, warm_at=time.time())

    def hello() -> Hello:
        return Hello(model=model, stats=core.stats.snapshot(core.scheduler))

    channel = CoreChannel(core_socket(config.run_dir), hello)
    failing = with_faults(runner, faults)
    spell = read_spelling(Path(config.run_dir) / SPELLING_FILE)
    core = build_core(
        config, failing, ledger, channel, time.monotonic, overlap=OVERLAP, host=host, below=below, spell=spell
    )
    collect_between_steps()
    stop = StopFlag()
    log.info("ready", extra={"blocks": ledger.blocks, "stall_seconds": heartbeat.stall_seconds})
    try:
        run(core, heartbeat, stop)
    finally:
        heartbeat.beat(Phase.STOPPING)
        channel.close()


def allocate_swap_space(runner: SwapSpace, ledger: Ledger) -> HostSpace | None:
    """The host pool and how fast blocks move to and from it; None without one."""
    if not ledger.swap_slots:
        return None
    host = runner.allocate_host(ledger.swap_slots)
    log.info("swap space", extra={"blocks": ledger.swap_slots, "copy_bytes_per_second": host.copy_bytes_per_second})
    return host


def run(core: EngineCore, heartbeat: HeartbeatWriter, stop: StopFlag) -> None:
    """Step after step. When nothing happened for a second, see once that no block is lost."""
    checked = True
    while not stop.set:
        happened = core.step(wait=_IDLE_SECONDS)
        heartbeat.beat(Phase.READY, step=core.stats.steps, unfinished=core.scheduler.unfinished)
        if happened:
            checked = False
        elif not checked and not core.busy:
            core.check_idle()
            checked = True


def stall_seconds(largest_step_seconds: float) -> float:
    """After how long without a step the probes call the core hung."""
    return max(STALL_SECONDS, _STALL_STEPS * largest_step_seconds)


if __name__ == "__main__":
    raise SystemExit(main())
