"""One Secret that the operator keeps: read past the fence, since every replica serves, and replaced through it."""

from collections.abc import Mapping
from typing import Any

from kvik_operator.errors import NotFound
from kvik_operator.kube.client import ClusterClient
from kvik_operator.kube.paths import path
from kvik_operator.kube.transport import Transport
from kvik_operator.names import FIELD_MANAGER

Object = Mapping[str, Any]


class SecretClient:
    """Belongs to the event loop of its transport. Every method raises ClusterError."""

    def __init__(self, transport: Transport, cluster: ClusterClient, namespace: str, name: str) -> None:
        self._transport = transport
        self._cluster = cluster
        self._what = f"Secret {namespace}/{name}"
        self._path = path("v1", "secrets", namespace, name)

    async def read(self) -> Object | None:
        """None: it is not there."""
        try:
            found: Object = await self._transport.request(f"read {self._what}", "GET", self._path)
        except NotFound:
            return None
        return found

    async def replace(self, secret: Object, data: Mapping[str, str]) -> None:
        """Put `data`, base64, into the Secret as it was read; raises Conflict if it changed since."""
        query = (("fieldManager", FIELD_MANAGER),)
        body = {**secret, "data": dict(data)}
        await self._cluster.write(f"replace {self._what}", "PUT", self._path, query=query, body=body)
