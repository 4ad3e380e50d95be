"""Who sends a request: with an API key the tenant that it belongs to, without keys one tenant for all."""

from __future__ import annotations

from http import HTTPStatus

from aiohttp import web
from aiohttp.typedefs import Handler

from kvik_engine.api.service import SERVICE
from kvik_engine.errors import UserError

OPEN_PATHS = frozenset({"/health", "/version", "/metrics"})
"""Everything else on the API port needs a key where there are keys."""
NO_TENANT = ""
_TENANT: web.RequestKey[str] = web.RequestKey("tenant", str)


class InvalidApiKey(UserError):
    """No key, or nobody's."""

    status = HTTPStatus.UNAUTHORIZED

    def __init__(self, message: str) -> None:
        super().__init__(message, code="invalid_api_key")


def tenant_of(request: web.Request) -> str:
    """The tenant that `authenticate` found."""
    tenant: str = request.get(_TENANT, NO_TENANT)
    return tenant


@web.middleware
async def authenticate(request: web.Request, handler: Handler) -> web.StreamResponse:
    """InvalidApiKey before anything of the request is read. What was sent is neither logged nor repeated."""
    keys = request.app[SERVICE].keys
    if keys is not None and request.path not in OPEN_PATHS:
        scheme, _, key = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            raise InvalidApiKey("You didn't provide an API key. Send it in the header Authorization: Bearer KEY.")
        tenant = keys.tenant_of(key.strip())
        if tenant is None:
            raise InvalidApiKey("Incorrect API key provided.")
        request[_TENANT] = tenant
    return await handler(request)
