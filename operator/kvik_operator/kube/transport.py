"""One HTTP call to the API server: plain JSON in and out, always with a time limit, errors translated.

`connect()` finds the credentials as every Kubernetes client does: the pod's service account, else KUBECONFIG.
A Transport belongs to the event loop it was made in.
"""

import asyncio
import json
import re
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import aiohttp
from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.config import ConfigException, load_incluster_config, load_kube_config

from kvik_operator.kube import errors

JSON: Final = "application/json"
APPLY: Final = "application/apply-patch+yaml; charset=utf-8"
"""With a parameter, since the client library would write the body itself otherwise."""
MERGE: Final = "application/merge-patch+json"
METADATA_LIST: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

Query = Sequence[tuple[str, str]]

_NOT_IN_YAML: Final = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff\ud800-\udfff]")
"""What YAML wants escaped, beside what JSON does. The other way round it has no pairs of escapes for an emoji."""

_LOADING: Final = threading.Lock()
_LOADING_LOOK_SECONDS: Final = 0.01


async def connect(*, user_agent: str, timeout: float) -> "Transport":
    """`timeout`, in seconds, holds for calls that name no shorter one. Raises ConfigException without credentials."""
    configuration = Configuration(client_session_kwargs={"trust_env": False})
    async with _one_thread_at_a_time():
        try:
            load_incluster_config(client_configuration=configuration)
        except ConfigException:
            await load_kube_config(client_configuration=configuration)
        api = ApiClient(configuration)
    api.user_agent = user_agent
    return Transport(api, timeout)


@asynccontextmanager
async def _one_thread_at_a_time() -> AsyncIterator[None]:
    """The client library keeps a kubeconfig's certificates in files that its threads share, named before written.

    Asked for again and again, for a cancelled wait in a thread of its own would take the lock and keep it for ever.
    """
    while not _LOADING.acquire(blocking=False):  # noqa: ASYNC110  (the one who has it runs in another loop)
        await asyncio.sleep(_LOADING_LOOK_SECONDS)
    try:
        yield
    finally:
        _LOADING.release()


class Transport:
    def __init__(self, api: ApiClient, timeout: float) -> None:
        self._api = api
        self._timeout = timeout

    async def request(
        self,
        what: str,
        method: str,
        path: str,
        *,
        query: Query = (),
        body: Mapping[str, Any] | None = None,
        content_type: str = JSON,
        accept: str = JSON,
        timeout: float | None = None,
    ) -> Any:
        """The parsed answer. `what` names the call in errors; `timeout` may only shorten ours. Raises ClusterError."""
        seconds = min(self._timeout, timeout) if timeout is not None else self._timeout
        try:
            _, url, headers, payload, _ = await self._api.param_serialize(
                method,
                path,
                query_params=list(query),
                header_params={"Accept": accept, "Content-Type": content_type},
                body=_yaml(body) if content_type == APPLY and body is not None else body,
                auth_settings=["BearerToken"],
            )
            response = await self._api.call_api(
                method, url, headers, payload, _request_timeout=aiohttp.ClientTimeout(total=seconds)
            )
            data: bytes = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise errors.from_exception(what, error) from error
        if response.status >= 300:
            raise errors.from_response(what, response.status, data, response.headers)
        try:
            return json.loads(data) if data else {}
        except ValueError as error:
            raise errors.from_exception(what, error) from error

    async def close(self) -> None:
        await self._api.close()


def _yaml(body: Mapping[str, Any]) -> str:
    """JSON that a YAML parser reads alike: the API server has only that for an apply."""
    return _NOT_IN_YAML.sub(lambda one: f"\\u{ord(one[0]):04x}", json.dumps(body, ensure_ascii=False))
