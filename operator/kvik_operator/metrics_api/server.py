"""The metrics APIs over HTTP: discovery, metrics of pools and pods, and external metrics.

Every answer but a value is a `metav1.Status`. Who is no front proxy gets 401 or 403, and so does a caller of its that
may not read; what there is no data for is 404, never 0.
"""

import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final

from aiohttp import web

from kvik_operator.errors import ClusterError, Refused
from kvik_operator.metrics_api import documents
from kvik_operator.metrics_api.access import Access
from kvik_operator.metrics_api.callers import Caller, FrontProxy, Stranger, identify
from kvik_operator.metrics_api.documents import CUSTOM, EXTERNAL, PODS, POOLS, VERSIONS, Json
from kvik_operator.metrics_api.figures import METRICS, Metric
from kvik_operator.metrics_api.selector import Selector, parse_selector
from kvik_operator.metrics_api.source import Source

log = logging.getLogger(__name__)

ANY: Final = "*"
Answer = Callable[[web.Request], Awaitable[Json]]
Check = Callable[[web.Request], Awaitable[None]]
"""Raises Stranger or Refusal for who may not have the answer."""


class Refusal(Exception):
    """An answer other than a value."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason


class MetricsApi:
    """`groups`: those of documents.VERSIONS that are served. `proxy`: whom to believe now; None: nobody yet."""

    def __init__(
        self, source: Source, access: Access, groups: Collection[str], proxy: Callable[[], FrontProxy | None]
    ) -> None:
        self._source = source
        self._access = access
        self._groups = [group for group in VERSIONS if group in groups]
        self._proxy = proxy

    def application(self) -> web.Application:
        app = web.Application()

        def get(path: str, answer: Answer, check: Check) -> None:
            app.router.add_get(path, self._guarded(answer, check))

        for group in self._groups:
            for version in VERSIONS[group]:
                get(f"/apis/{group}/{version}", self._resources, self._any_caller)
                prefix = f"/apis/{group}/{version}/namespaces/{{namespace}}"
                if group == CUSTOM:
                    get(f"{prefix}/{{resource}}/{{name}}/{{metric}}", self._custom, self._reader)
                else:
                    get(f"{prefix}/{{metric}}", self._external, self._reader)
        app.router.add_route("*", "/{rest:.*}", self._guarded(self._unknown, self._any_caller))
        return app

    def _guarded(self, answer: Answer, check: Check) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def handle(request: web.Request) -> web.StreamResponse:
            try:
                await check(request)
                return web.json_response(await answer(request))
            except Stranger as stranger:
                response = _status(stranger.code, stranger.reason, str(stranger))
                response.force_close()  # so that strangers keep no connection from the front proxy
                return response
            except Refusal as refusal:
                return _status(refusal.code, refusal.reason, str(refusal))
            except ClusterError as error:
                return _cluster_failed(error)

        return handle

    async def _any_caller(self, request: web.Request) -> None:
        """Discovery tells the names of metrics only, and API servers ask for it as a user that RBAC grants nothing."""
        self._caller(request)

    async def _reader(self, request: web.Request) -> None:
        """Raises Stranger, Refusal for who may not read, ClusterError if nobody says."""
        caller = self._caller(request)
        if not await self._access.allows(caller, _attributes(request)):
            raise Refusal(403, "Forbidden", f"{caller.user} may not get {request.path}")

    def _caller(self, request: web.Request) -> Caller:
        """Raises Stranger, Refusal."""
        proxy = self._proxy()
        if proxy is None:
            raise Refusal(503, "ServiceUnavailable", "the API server's front proxy is not known yet")
        certificate = request.transport.get_extra_info("peercert") if request.transport is not None else None
        return identify(proxy, certificate, request.headers.items())

    # --- discovery ---

    async def _resources(self, request: web.Request) -> Json:
        _, _, group, version = request.path.split("/")
        return documents.resources(group, version)

    async def _unknown(self, request: web.Request) -> Json:
        raise Refusal(404, "NotFound", f"{request.path} is not served here")

    # --- values ---

    async def _custom(self, request: web.Request) -> Json:
        version, at = request.path.split("/")[3], request.match_info
        resource, metric = at["resource"], _metric(at["metric"])
        name = None if at["name"] == ANY else at["name"]
        selector, series = _selector(request, "labelSelector"), _selector(request, "metricLabelSelector")
        if resource == POOLS:
            text = request.query.get("labelSelector", "")
            samples = await self._source.pools(at["namespace"], name, text, metric, series)
        elif resource == PODS and metric.of_pod is not None:
            samples = self._source.pods(at["namespace"], name, selector, metric, series)
        else:
            raise Refusal(404, "NotFound", f"there is no metric {metric.name} of {resource}")
        if not samples and name is not None:
            raise _no_value(metric, f"{resource} {at['namespace']}/{name}")
        return documents.custom_values(version, samples)

    async def _external(self, request: web.Request) -> Json:
        version, at = request.path.split("/")[3], request.match_info
        metric, series = _metric(at["metric"]), _selector(request, "labelSelector")
        samples = await self._source.pools(at["namespace"], None, "", metric, series)
        if not samples:
            raise _no_value(metric, f"any pool in {at['namespace']} that the selector matches")
        return documents.external_values(version, samples)


def _attributes(request: web.Request) -> Mapping[str, str]:
    """The request as the API server's own authorization sees it."""
    at, parts = request.match_info, request.path.split("/")
    attributes = {"group": parts[2], "version": parts[3], "namespace": at["namespace"]}
    if parts[2] == EXTERNAL:
        return attributes | {"resource": at["metric"], "verb": "list"}
    return attributes | {"resource": at["resource"], "name": at["name"], "subresource": at["metric"], "verb": "get"}


def _metric(name: str) -> Metric:
    metric = METRICS.get(name)
    if metric is None:
        raise Refusal(404, "NotFound", f"there is no metric {name}; there are {', '.join(METRICS)}")
    return metric


def _selector(request: web.Request, parameter: str) -> Selector:
    try:
        return parse_selector(request.query.get(parameter, ""))
    except ValueError as error:
        raise Refusal(400, "BadRequest", f"{parameter}: {error}") from error


def _no_value(metric: Metric, what: str) -> Refusal:
    return Refusal(404, "NotFound", f"there is no fresh value of {metric.name} for {what}")


def _cluster_failed(error: ClusterError) -> web.Response:
    """The API server is asked with the caller's own words: a request that it cannot read is the caller's."""
    if isinstance(error, Refused) and error.status == 400:
        return _status(400, "BadRequest", error.message)
    log.warning("a metric could not be answered", extra={"error": str(error)})
    return _status(503, "ServiceUnavailable", str(error))


def _status(code: int, reason: str, message: str) -> web.Response:
    return web.json_response(documents.failure(code, reason, message), status=code)
