"""Lists objects as `kubectl get -ojson` does, in this process: a test that asks ten times a second starts no programs.

Each kubectl takes a tenth of a second of a CPU, which the operator and the control plane under test need.
"""

import json
from collections.abc import Mapping
from typing import Any

from kubernetes import client
from kubernetes.client.exceptions import ApiException

Object = Mapping[str, Any]
_VERSIONS = {
    "": "api/v1",
    "apps": "apis/apps/v1",
    "autoscaling": "apis/autoscaling/v2",
    "networking.k8s.io": "apis/networking.k8s.io/v1",
    "policy": "apis/policy/v1",
}
"""By API group."""


def list_objects(api: client.ApiClient, kind: str, namespace: str, selector: str = "") -> list[Object]:
    """Those of a kind as kubectl names it (`deployments.apps`), with `kind` and `apiVersion`. Raises ApiException."""
    plural, _, group = kind.partition(".")
    answer = api.call_api(
        *api.param_serialize(
            "GET",
            f"/{_VERSIONS[group]}/namespaces/{namespace}/{plural}",
            query_params=[("labelSelector", selector)],
            header_params={"Accept": "application/json"},
        )
    )
    body = answer.read()
    if answer.status != 200:
        raise ApiException(http_resp=answer)
    found = json.loads(body)
    names = {"apiVersion": found["apiVersion"], "kind": found["kind"].removesuffix("List")}
    return [names | item for item in found["items"]]
