"""The two HTTP applications: every route, and what each request goes through."""

from __future__ import annotations

from aiohttp import web

from kvik_engine.api import admin, middleware
from kvik_engine.api.auth import authenticate
from kvik_engine.api.chat import chat_completions
from kvik_engine.api.completions import completions
from kvik_engine.api.metrics_page import MetricsPage
from kvik_engine.api.models import get_model, list_models
from kvik_engine.api.service import SERVICE, Service
from kvik_engine.api.status import Status
from kvik_engine.api.tokenize import detokenize, tokenize


def api_app(service: Service, status: Status, page: MetricsPage) -> web.Application:
    """The API port."""
    app = web.Application(
        middlewares=[middleware.request_id, middleware.errors, authenticate, middleware.drain],
        client_max_size=1 << 30,
    )
    app[SERVICE] = service
    app[admin.STATUS] = status
    app[admin.METRICS_PAGE] = page
    app.on_response_prepare.append(middleware.finish_headers)
    app.add_routes(
        [
            web.post("/v1/chat/completions", chat_completions),
            web.post("/v1/completions", completions),
            web.get("/v1/models", list_models),
            web.get("/v1/models/{id:.+}", get_model),
            web.post("/tokenize", tokenize),
            web.post("/detokenize", detokenize),
            web.get("/version", admin.version),
            web.get("/health", admin.health),
            web.get("/metrics", admin.metrics),
        ]
    )
    return app


def probe_app(status: Status, page: MetricsPage) -> web.Application:
    """The metrics port."""
    app = web.Application(middlewares=[middleware.errors])
    app[admin.STATUS] = status
    app[admin.METRICS_PAGE] = page
    app.add_routes(admin.PROBE_ROUTES)
    return app
