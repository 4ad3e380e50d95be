"""`/live`, `/ready` and `/metrics` on one port, in a loop of their own: a busy reconcile delays no probe."""

import asyncio
from collections.abc import Callable

from aiohttp import web

from kvik_operator.telemetry.metrics import CONTENT_TYPE

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
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()


def _probe(problems: Problems) -> Callable[[web.Request], "asyncio.Future[web.Response]"]:
    async def answer(_: web.Request) -> web.Response:
        found = problems()
        return web.Response(status=503 if found else 200, text="\n".join(found or ("ok",)) + "\n")

    return answer  # type: ignore[return-value]  # aiohttp's handler type is a coroutine function
