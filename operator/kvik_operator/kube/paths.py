"""Where an object lives in the API server's URL space."""

from urllib.parse import quote

from kvik_operator.names import API_VERSION, PLURAL, PoolKey


def path(
    api_version: str, plural: str, namespace: str | None, name: str | None = None, subresource: str | None = None
) -> str:
    """`apps/v1`, `deployments`, `demo`, `chat` -> `/apis/apps/v1/namespaces/demo/deployments/chat`."""
    parts = ["api" if "/" not in api_version else "apis", api_version]
    if namespace is not None:
        parts += ["namespaces", quote(namespace, safe="")]
    parts.append(plural)
    if name is not None:
        parts.append(quote(name, safe=""))
    if subresource is not None:
        parts.append(subresource)
    return "/" + "/".join(parts)


def pool_path(key: PoolKey, subresource: str | None = None) -> str:
    return path(API_VERSION, PLURAL, key.namespace, key.name, subresource)
