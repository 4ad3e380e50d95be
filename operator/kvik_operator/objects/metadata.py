"""Labels, ownership and hashes that every child shares."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from kvik_operator.names import (
    ANNOTATION_MANIFEST_HASH,
    API_VERSION,
    APP_NAME,
    FIELD_MANAGER,
    KIND,
    LABEL_APP_COMPONENT,
    LABEL_APP_INSTANCE,
    LABEL_APP_NAME,
    LABEL_MANAGED_BY,
    LABEL_POOL,
    ChildKind,
    PoolKey,
    child_name,
)

Json = dict[str, Any]


def labels(pool_name: str) -> dict[str, str]:
    return {
        LABEL_POOL: pool_name,
        LABEL_APP_NAME: APP_NAME,
        LABEL_APP_INSTANCE: pool_name,
        LABEL_APP_COMPONENT: "engine",
        LABEL_MANAGED_BY: FIELD_MANAGER,
    }


def selector(pool_name: str) -> Json:
    """Selects the pool's pods of every revision; a Deployment's selector can never change."""
    return {"matchLabels": {LABEL_POOL: pool_name}}


def child(kind: ChildKind, key: PoolKey, uid: str, body: Mapping[str, Any]) -> Json:
    """A child's whole manifest."""
    return owned({"apiVersion": kind.api_version, "kind": str(kind)}, child_name(kind, key), key, uid, body)


def owned(type_: Mapping[str, str], name: str, key: PoolKey, uid: str, body: Mapping[str, Any]) -> Json:
    """A whole manifest of what the pool owns: it carries a hash of itself and never blocks the pool's deletion.

    `type_` holds apiVersion and kind.
    """
    metadata: Json = {
        "name": name,
        "namespace": key.namespace,
        "labels": labels(key.name),
        "ownerReferences": [
            {
                "apiVersion": API_VERSION,
                "kind": KIND,
                "name": key.name,
                "uid": uid,
                "controller": True,
                "blockOwnerDeletion": False,
            }
        ],
    }
    body = dict(body)
    extra = body.pop("metadata", {})
    manifest: Json = {**type_, "metadata": {**metadata, **extra}, **body}
    annotations = {**manifest["metadata"].get("annotations", {}), ANNOTATION_MANIFEST_HASH: digest(manifest)}
    manifest["metadata"]["annotations"] = annotations
    return manifest


def digest(value: Mapping[str, Any]) -> str:
    """16 hexadecimal digits that change when the value does."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
