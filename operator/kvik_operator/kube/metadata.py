"""What there is, by metadata only: one cheap LIST per kind, to check the watches against."""

from kvik_operator.kube.kinds import WatchedKind
from kvik_operator.kube.paths import path
from kvik_operator.kube.store import ObjectId, identify, owner_key
from kvik_operator.kube.transport import METADATA_LIST, Transport


async def list_versions(transport: Transport, watched: WatchedKind, namespace: str | None) -> dict[ObjectId, str]:
    """resourceVersion by object, in one namespace or (None) in all, in pages of 500. Raises ClusterError.

    Exactly the objects that the store would keep: one whose label is there and empty belongs to no pool.
    """
    found: dict[ObjectId, str] = {}
    where = path(watched.api_version, watched.plural, namespace)
    query = [("limit", "500")] + ([("labelSelector", watched.selector)] if watched.selector else [])
    token: str | None = None
    while token is None or token:
        answer = await transport.request(
            f"list {watched.plural} in {namespace or 'all namespaces'}",
            "GET",
            where,
            query=[*query, ("continue", token)] if token else query,
            accept=METADATA_LIST,
        )
        for item in answer.get("items") or ():
            if owner_key(watched.kind, item) is not None:
                found[identify(watched.kind, item)] = str(item["metadata"].get("resourceVersion", ""))
        token = answer["metadata"].get("continue") or ""
    return found
