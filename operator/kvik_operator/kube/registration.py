"""What an aggregated API asks of the API server: its certificate's Secret, its APIServices, and who may read.

Reads go past the fence: every replica serves. Writes pass it, as all others.
"""

import base64
from collections.abc import Mapping, Sequence
from typing import Any, Final

from kvik_operator.errors import NotFound
from kvik_operator.kube.client import ClusterClient
from kvik_operator.kube.paths import path
from kvik_operator.kube.secrets import SecretClient
from kvik_operator.kube.transport import MERGE, METADATA_LIST, Transport
from kvik_operator.metrics_api.callers import AUTHENTICATION_CONFIG_MAP, AUTHENTICATION_NAMESPACE
from kvik_operator.names import API_VERSION, FIELD_MANAGER, PLURAL

Object = Mapping[str, Any]

REGISTRATION_API: Final = "apiregistration.k8s.io/v1"


class RegistrationClient:
    """Belongs to the event loop of its transport. Every method raises ClusterError."""

    def __init__(self, transport: Transport, cluster: ClusterClient, namespace: str, secret: str) -> None:
        self._transport = transport
        self._cluster = cluster
        self._secret = SecretClient(transport, cluster, namespace, secret)

    async def read_secret(self) -> Object | None:
        return await self._secret.read()

    async def replace_secret(self, secret: Object, data: Mapping[str, str]) -> None:
        """As SecretClient.replace."""
        await self._secret.replace(secret, data)

    async def read_authentication(self) -> Object | None:
        name = f"{AUTHENTICATION_NAMESPACE}/{AUTHENTICATION_CONFIG_MAP}"
        where = path("v1", "configmaps", AUTHENTICATION_NAMESPACE, AUTHENTICATION_CONFIG_MAP)
        return await self._read(f"ConfigMap {name}", where)

    async def read_api_service(self, name: str) -> Object | None:
        return await self._read(f"APIService {name}", path(REGISTRATION_API, "apiservices", None, name))

    async def set_ca_bundle(self, api_service: Object, bundle: str) -> None:
        """Raises Conflict if it is not any more as it was read, so that nobody else's is ever written to."""
        metadata = api_service["metadata"]
        await self._cluster.write(
            f"patch APIService {metadata['name']}",
            "PATCH",
            path(REGISTRATION_API, "apiservices", None, metadata["name"]),
            query=(("fieldManager", FIELD_MANAGER),),
            body={
                "metadata": {"resourceVersion": metadata["resourceVersion"]},
                "spec": {"caBundle": base64.b64encode(bundle.encode()).decode()},
            },
            content_type=MERGE,
        )

    async def allowed(self, spec: Object) -> bool:
        """`spec` is a SubjectAccessReview's."""
        review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
        where = path("authorization.k8s.io/v1", "subjectaccessreviews", None)
        answer = await self._transport.request("review access", "POST", where, body=review)
        return (answer.get("status") or {}).get("allowed") is True

    async def pools_matching(self, namespace: str, selector: str) -> Sequence[str]:
        """Names of the pools whose own labels match: the store keeps none of them."""
        answer = await self._transport.request(
            f"list {PLURAL} in {namespace}",
            "GET",
            path(API_VERSION, PLURAL, namespace),
            query=(("labelSelector", selector),),
            accept=METADATA_LIST,
        )
        return [str(item["metadata"]["name"]) for item in answer.get("items") or ()]

    async def _read(self, what: str, where: str) -> Object | None:
        try:
            found: Object = await self._transport.request(f"read {what}", "GET", where)
        except NotFound:
            return None
        return found
