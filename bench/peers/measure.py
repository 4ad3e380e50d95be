"""Sends the written loads to a running server, one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.peers.loads import SEED, WARMUP, Load, Written, written
from kvik_engine.bench.endpoint import Chats, Endpoint, base_of, session
from kvik_engine.bench.figures import Slo, figures
from kvik_engine.bench.load import closed
from kvik_engine.bench.report import Run, as_json

TIMEOUT = 120.0
"""Seconds of a request."""


async def write_all(url: str, loads: Sequence[Load]) -> list[Written]:
    async with session(TIMEOUT, None) as http:
        chats, _ = await _chats(Endpoint(http, base_of(url)))
        return [await written(load, chats.count) for load in loads]


async def under(url: str, load: Written) -> dict[str, Any]:
    """As `kvik bench --json` tells it."""
    async with session(TIMEOUT, None) as http:
        endpoint = Endpoint(http, base_of(url))
        chats, model = await _chats(endpoint)
        await closed(load.before, load.load.clients, chats.chat)
        results = await closed(load.measured, load.load.clients, chats.chat)
    run = Run(
        url=endpoint.base,
        model=model,
        workload=load.load.workload,
        requests=load.load.requests,
        concurrency=load.load.clients,
        rate=None,
        seed=SEED,
        warmup=WARMUP,
        ignore_eos=True,
        slo=Slo(),
        exact_prompts=True,
        latest_start=None,
    )
    return as_json(run, figures(results, run.slo))


async def _chats(endpoint: Endpoint) -> tuple[Chats, str]:
    """With the only model, and its name. RuntimeError where there are several."""
    models = await endpoint.models()
    if len(models) != 1:
        raise RuntimeError(f"{endpoint.base} serves {len(models)} models, not one")
    return Chats(endpoint, models[0], ignore_eos=True), models[0]
