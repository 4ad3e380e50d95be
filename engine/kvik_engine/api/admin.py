"""Health, load, description and metrics, on both ports."""

from __future__ import annotations

from http import HTTPStatus

from aiohttp import web

from kvik_engine import __version__
from kvik_engine.api.error_body import json_response
from kvik_engine.api.metrics_page import CONTENT_TYPE, MetricsPage
from kvik_engine.api.status import Status

STATUS: web.AppKey[Status] = web.AppKey("status", Status)
METRICS_PAGE: web.AppKey[MetricsPage] = web.AppKey("metrics_page", MetricsPage)


async def live(request: web.Request) -> web.StreamResponse:
    return _verdict("live", request.app[STATUS].live)


async def ready(request: web.Request) -> web.StreamResponse:
    return _verdict("ready", request.app[STATUS].ready)


async def health(request: web.Request) -> web.StreamResponse:
    """What routers ask on the API port: alive and able to answer."""
    status = request.app[STATUS]
    return _verdict("healthy", status.live and status.ready)


async def load(request: web.Request) -> web.StreamResponse:
    return json_response(request.app[STATUS].load())


async def info(request: web.Request) -> web.StreamResponse:
    described = request.app[STATUS].info()
    if described is None:
        return _verdict("warm", False)
    return json_response(described)


async def metrics(request: web.Request) -> web.StreamResponse:
    return web.Response(body=request.app[METRICS_PAGE].render(), headers={"Content-Type": CONTENT_TYPE})


async def version(_request: web.Request) -> web.StreamResponse:
    return json_response({"version": __version__})


def _verdict(name: str, good: bool) -> web.Response:
    return json_response({name: good}, status=HTTPStatus.OK if good else HTTPStatus.SERVICE_UNAVAILABLE)


PROBE_ROUTES = [
    web.get("/live", live),
    web.get("/ready", ready),
    web.get("/load", load),
    web.get("/info", info),
    web.get("/metrics", metrics),
]
"""Of the metrics port."""
