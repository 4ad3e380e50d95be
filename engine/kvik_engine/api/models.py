"""GET /v1/models and /v1/models/{id}; ids may hold slashes."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from kvik_engine.api.error_body import json_response
from kvik_engine.api.service import SERVICE, Service


async def list_models(request: web.Request) -> web.StreamResponse:
    return json_response({"object": "list", "data": [_describe(request.app[SERVICE])]})


async def get_model(request: web.Request) -> web.StreamResponse:
    service = request.app[SERVICE]
    service.check_model(request.match_info["id"])
    return json_response(_describe(service))


def _describe(service: Service) -> dict[str, Any]:
    model = service.client.model
    return {
        "id": service.config.model_name,
        "object": "model",
        "created": service.created,
        "owned_by": "kvik",
        "root": service.config.source,
        "parent": None,
        "max_model_len": None if model is None else model.max_tokens,
    }
