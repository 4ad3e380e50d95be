"""`/live`, `/ready` and `/metrics` on one port, in a loop of their own: a busy reconcile delays no probe."""

import asyncio
from collections.abc import Callable
from typing import Final

from aiohttp import web

from kvik_operator.serving.connection import Bounds
from kvik_operator.serving.port import Port
from kvik_operator.telemetry.metrics import CONTENT_TYPE

BOUNDS: Final = Bounds(connections=64)
"""Kubelets open one for each probe, Prometheus keeps one. Who asks for a probe keeps none."""

Problems = Callable[[], tuple[str, ...]]
"""In words what is wrong; empty: nothing."""


async def serve(host: str, port: int, *, live: Problems, ready: Problems, metrics: Callable[[], bytes]) -> None:
    """Until cancelled."""

    async def metrics_page(_: web.Request) -> web.Response:
        return web.Response(body=metrics(), headers={"Content-Type": CONTENT_TYPE})

    app = web.Application()
    app.router.add_get("/live", _probe(live))
    app.router.add_get("/ready", _probe(ready))
    app.router.add_get("/metrics", metrics_page)
    async with Port(app, host, port, BOUNDS) as listening:
        listening.open(None)
        await asyncio.Event().wait()


def _probe(problems: Problems) -> Callable[[web.Request], "asyncio.Future[web.Response]"]:
    async def answer(_: web.Request) -> web.Response:
        found = problems()
        response = web.Response(status=503 if found else 200, text="\n".join(found or ("ok",)) + "\n")
        response.force_close()
        return response

    return answer  # type: ignore[return-value]  # aiohttp's handler type is a coroutine function
