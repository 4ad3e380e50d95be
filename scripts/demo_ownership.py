"""What the demo and the e2e tests may touch on a cluster that others use too (CLUSTER=existing): only what they made.

Their namespaces carry a mark. On a cluster of our own, local or kind, everything is theirs.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tests.support.kubectl import Kubectl

MARK: Final = "kvik.dev/made-by"
US: Final = "make-demo"

_THEIRS: Final = (
    "and the demo did not make it: an operator that is there is somebody else's, and a second one would take over its "
    "pools. Apply examples/smollm2.yaml to that one, or use CLUSTER=local"
)

Object = Mapping[str, Any]


class ClaimError(RuntimeError):
    """Something on the cluster is somebody else's; the text says what, for a person."""


def marked(namespace: Object) -> bool:
    return bool((namespace["metadata"].get("annotations") or {}).get(MARK) == US)


def why_not_install(namespace: Object | None, crd: Object | None) -> str | None:
    """Why an operator must not be installed into `namespace` of a cluster that others use; None: it may. Pure."""
    if namespace is not None:
        name = namespace["metadata"]["name"]
        return None if marked(namespace) else f"namespace {name} is there already, {_THEIRS}"
    if crd is not None:
        return f"{crd['metadata']['name']} is installed already, {_THEIRS}"
    return None


def why_keep_operator(namespace: Object | None, pools: Sequence[Object], *, borrowed: bool) -> str | None:
    """Why operator and API must stay; None: they are the demo's and nobody needs them. Pure.

    `pools` are those of all namespaces, once the demo's own are gone.
    """
    if borrowed and namespace is None:
        return "the demo's operator is not installed"
    if borrowed and namespace is not None and not marked(namespace):
        return f"namespace {namespace['metadata']['name']} was not made by the demo"
    if pools:
        names = ", ".join(f"{pool['metadata']['namespace']}/{pool['metadata']['name']}" for pool in pools[:5])
        return f"it serves pools that the demo did not make: {names}{', ...' if len(pools) > 5 else ''}"
    return None


def ensure_namespace(kubectl: Kubectl, *, borrowed: bool) -> None:
    """Makes a namespace that refuses every pod that is not `restricted`. Raises ClaimError."""
    _refuse_foreign(kubectl, borrowed=borrowed)
    metadata = {
        "name": kubectl.namespace,
        "labels": {"pod-security.kubernetes.io/enforce": "restricted"},
        "annotations": {MARK: US},
    }
    kubectl.apply(json.dumps({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}))


def remove_namespace(kubectl: Kubectl, *options: str, borrowed: bool) -> None:
    """Deletes a namespace of ours with all that is in it. Raises ClaimError."""
    _refuse_foreign(kubectl, borrowed=borrowed)
    kubectl.run("delete", "namespace", kubectl.namespace, "--ignore-not-found", *options, timeout=300)


def _refuse_foreign(kubectl: Kubectl, *, borrowed: bool) -> None:
    if not borrowed:
        return
    found = kubectl.get("namespace", kubectl.namespace)
    if found is not None and not marked(found):
        raise ClaimError(f"namespace {kubectl.namespace} of this cluster is somebody else's: nothing was done to it")
