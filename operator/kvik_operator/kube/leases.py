"""The Lease object as the elector sees it: read, create, replace."""

from collections.abc import Mapping
from typing import Any, Final

from kvik_operator.errors import NotFound
from kvik_operator.kube.paths import path
from kvik_operator.kube.transport import Transport

_API: Final = "coordination.k8s.io/v1"

Object = Mapping[str, Any]


class LeaseClient:
    """One Lease by name. Each call ends within `timeout` seconds, since a hanging server must not hold the elector."""

    def __init__(self, transport: Transport, namespace: str, name: str, timeout: float) -> None:
        self._transport = transport
        self._namespace = namespace
        self._name = name
        self._timeout = timeout

    async def read(self) -> Object | None:
        """None: there is none yet. Raises ClusterError."""
        try:
            lease: Object = await self._request("read", "GET", self._name)
        except NotFound:
            return None
        return lease

    async def create(self, spec: Object) -> Object:
        """Raises Conflict if somebody else was faster."""
        body = {
            "apiVersion": _API,
            "kind": "Lease",
            "metadata": {"name": self._name, "namespace": self._namespace},
            "spec": spec,
        }
        lease: Object = await self._request("create", "POST", None, body)
        return lease

    async def replace(self, lease: Object, spec: Object) -> Object:
        """Put `spec` into the lease as it was read; raises Conflict if it changed since."""
        replaced: Object = await self._request("renew", "PUT", self._name, {**lease, "spec": spec})
        return replaced

    async def _request(self, verb: str, method: str, name: str | None, body: Object | None = None) -> Any:
        what = f"{verb} Lease {self._namespace}/{self._name}"
        where = path(_API, "leases", self._namespace, name)
        return await self._transport.request(what, method, where, body=body, timeout=self._timeout)
