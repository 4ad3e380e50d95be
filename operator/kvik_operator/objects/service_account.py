"""The ServiceAccount of the engine pods: an identity without any right and without a token."""

from collections.abc import Mapping

from kvik_operator.names import ChildKind, PoolKey
from kvik_operator.objects.metadata import Json, child


def service_account(key: PoolKey, uid: str, annotations: Mapping[str, str]) -> Json:
    """`annotations` are the user's, for clouds that bind identities to ServiceAccounts by them."""
    metadata = {"metadata": {"annotations": dict(annotations)}} if annotations else {}
    return child(ChildKind.SERVICE_ACCOUNT, key, uid, {**metadata, "automountServiceAccountToken": False})
