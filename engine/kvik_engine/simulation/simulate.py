"""Run a trace: the loop, scheduler and KV cache that `core.build` puts together, on a model of a device."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvik_engine.config import EngineConfig
from kvik_engine.core.build import build_core, size
from kvik_engine.core.loop import EngineCore
from kvik_engine.core.strategy import PRODUCT, Strategy
from kvik_engine.kv.offload import OffloadUse
from kvik_engine.kv.sizing import Ledger
from kvik_engine.scheduler.news import Counters
from kvik_engine.simulation.clients import Pool, Record, SimulatedClients
from kvik_engine.simulation.device import Device
from kvik_engine.simulation.runner import SimulatedRunner, VirtualClock
from kvik_engine.simulation.trace import TraceRequest

_ANY_WAIT = 1.0
"""The virtual clock does not really wait."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a simulation. `seconds` passed on the virtual clock, `wall_seconds` on ours."""

    records: Sequence[Record]
    ledger: Ledger
    pool: Pool
    counters: Counters
    offload: OffloadUse
    steps: int
    seconds: float
    wall_seconds: float


class SimulationStuck(RuntimeError):
    """The core has work and does nothing: a bug of the scheduler."""


def config_of(device: Device, **settings: object) -> EngineConfig:
    """An engine's configuration for `device`; `settings` as EngineConfig names them."""
    fixed = {"source": "", "model_path": "", "cache_dir": "", "run_dir": "", "model_name": "simulated"}
    return EngineConfig(**{**fixed, "device": device.kind, **settings})  # type: ignore[arg-type]


def simulate(
    trace: Sequence[TraceRequest],
    device: Device,
    config: EngineConfig,
    *,
    overlap: int = 0,
    max_steps: int | None = None,
    strategy: Strategy = PRODUCT,
    observe: Callable[[EngineCore], None] | None = None,
) -> Outcome:
    """Serve the trace, sorted by arrival, to its end or for `max_steps` steps; `observe` looks at the core after each.

    StartError when the configuration does not fit the device. At the end the books of the KV cache balance.
    """
    started = time.perf_counter()
    clock = VirtualClock()
    runner = SimulatedRunner(device, config.block_tokens, [request.output_tokens for request in trace], clock)
    ledger = size(config, runner.facts)
    runner.allocate(ledger.blocks)
    clients = SimulatedClients(trace, ledger.block_tokens, clock)
    host = runner.allocate_host(ledger.swap_slots) if ledger.swap_slots else None
    core = build_core(config, runner, ledger, clients, clock, overlap=overlap, strategy=strategy, host=host)
    while (core.busy or not clients.all_sent) and (max_steps is None or core.stats.steps < max_steps):
        if not core.step(wait=_ANY_WAIT):
            raise SimulationStuck(f"after {core.stats.steps} steps, with {core.scheduler.unfinished} requests")
        if observe is not None:
            observe(core)
    if not core.busy:
        core.check_idle()
    return Outcome(
        records=clients.records,
        ledger=ledger,
        pool=clients.pool,
        counters=core.scheduler.counters,
        offload=core.scheduler.offload.use,
        steps=core.stats.steps,
        seconds=clock.now,
        wall_seconds=time.perf_counter() - started,
    )
