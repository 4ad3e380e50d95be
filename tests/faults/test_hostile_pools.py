"""Hostile pools on a real API server: each is refused by it or held by the operator, and no other pool suffers."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client
from kubernetes.client.exceptions import ApiException

from tests.support.hostile_pools import HOSTILE, NASTY, SOURCE, TYPICAL, Hostile
from tests.support.kubectl import condition
from tests.support.operator_rig import POOL, Rig, eventually

pytestmark = pytest.mark.timeout(600)

ROOT = Path(__file__).resolve().parents[2]
SPEC = yaml.safe_load((ROOT / "crds" / "inferencepools.kvik.dev.yaml").read_text())["spec"]["versions"][0]["schema"][
    "openAPIV3Schema"
]["properties"]["spec"]
MEMORY_LIMIT = 150 * 1024 * 1024
"""Of the 256 MiB that the operator's pod asks for."""
Object = Mapping[str, Any]


def _texts(schema: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The way to every text of the spec; `[]` is an item, `*` a value under any key."""
    if schema.get("type") == "string" or schema.get("x-kubernetes-int-or-string"):
        yield path
    for name, field in (schema.get("properties") or {}).items():
        yield from _texts(field, (*path, name))
    if isinstance(schema.get("items"), Mapping):
        yield from _texts(schema["items"], (*path, "[]"))
    if isinstance(schema.get("additionalProperties"), Mapping):
        yield from _texts(schema["additionalProperties"], (*path, "*"))


TEXTS = list(_texts(SPEC))


def _with_text(path: tuple[str, ...], text: str) -> Any:
    if not path:
        return text
    inner = _with_text(path[1:], text)
    return [inner] if path[0] == "[]" else {("a" if path[0] == "*" else path[0]): inner}


FREE = {
    ("template", "annotations", "*"),
    ("template", "serviceAccountAnnotations", "*"),
    ("template", "env", "[]", "value"),
}
"""What may hold any text."""
BY_KUBERNETES = ("affinity", "tolerations", "topologySpreadConstraints", "priorityClassName", "runtimeClassName")
"""Checked with the pods' template, by the API server too."""


def pool(name: str, hostile: Hostile) -> dict[str, Any]:
    return {
        "apiVersion": "kvik.dev/v1alpha1",
        "kind": "InferencePool",
        "metadata": {"name": name, **hostile.metadata},
        "spec": {"model": {"source": SOURCE}, "resources": {"device": "CPU"}, **hostile.spec},
    }


def refusal(rig: Rig, body: Object, *, dry_run: bool) -> str | None:
    """The API server's message; None: it took the pool."""
    kept = {"dry_run": "All"} if dry_run else {}
    try:
        client.CustomObjectsApi(rig.api).create_namespaced_custom_object(
            namespace=rig.namespace, body=body, field_validation="Strict", **POOL, **kept
        )
    except ApiException as error:
        if error.status not in (400, 422):
            raise
        message: str = json.loads(error.body)["message"]
        return message
    return None


@pytest.mark.parametrize(
    "harmless", [TYPICAL, pytest.param(frozenset(HOSTILE), marks=pytest.mark.long)], ids=["few", "all"]
)
def test_a_hostile_pool_is_refused_or_held_and_its_neighbours_go_on(operated: Rig, harmless: frozenset[str]) -> None:
    """All at once on one operator: it says of each what is wrong, serves the others, and has no more to do then."""
    rig, proxy = operated, operated.proxy()
    operator = rig.operator(proxy=proxy)
    rig.kubectl("create", "service", "clusterip", "kubernetes", "--tcp=1:1")
    rig.create("before")
    kept = _create(rig, harmless)
    rig.create("after")
    pools: dict[str, Object] = {}

    def told() -> bool:
        pools.update({item["metadata"]["name"]: item for item in _pools(rig)})
        return not _pending(pools, kept)

    eventually("all pools to be what they should be", told, 120, lambda: _explain(rig, pools, kept))
    for good in ("before", "after"):
        rig.wait_ready(good, 60)
    _arrived_as_text(rig, kept)

    eventually("an empty queue", lambda: operator.metric("kvik_operator_queue_depth") == 0, 60)
    writes = len(proxy.writes())
    looked = 'kvik_operator_reconcile_seconds_count{outcome="ok"}'
    looks = operator.metric(looked) or 0
    rig.kubectl("annotate", "inferencepools.kvik.dev", "--all", "kvik.dev/look=again")
    eventually("a look at all of them", lambda: (operator.metric(looked) or 0) >= looks + len(kept), 60)
    served = tuple(f"/{name}" for name, hostile in kept.items() if hostile.held is None)
    assert [one for one in proxy.writes()[writes:] if one.path.endswith(served)] == []

    assert [line for line in operator.log_lines() if "this is a bug" in line["message"]] == []
    assert operator.metric('kvik_operator_reconcile_seconds_count{outcome="bug"}') is None
    assert (operator.metric("process_resident_memory_bytes") or 0) < MEMORY_LIMIT
    assert operator.probe("/live")[0] == 200


@pytest.mark.parametrize("nasty", NASTY)
def test_no_text_of_a_pool_takes_what_its_field_is_not_made_for(operated: Rig, nasty: str) -> None:
    """The schema says so itself, but for what is free text and for what Kubernetes checks in the template."""
    for path in TEXTS:
        if path in FREE or (path[0] == "template" and path[1] in BY_KUBERNETES):
            continue
        spec = _with_text(path, NASTY[nasty])
        spec["model"] = {"source": SOURCE, **spec.get("model", {})}
        message = refusal(operated, pool("a", Hostile(spec)), dry_run=True)
        assert message is not None, path
        assert [name for name in path if name not in ("*", "[]")][-1] in message, path


def _create(rig: Rig, harmless: frozenset[str]) -> dict[str, Hostile]:
    """Creates all but what is harmless and not in `harmless`; returns by name what the API server took."""
    kept: dict[str, Hostile] = {}
    for what, hostile in HOSTILE.items():
        if hostile.refused is None and hostile.held is None and what not in harmless:
            continue
        body = pool(what.replace("_", "-"), hostile)
        message = refusal(rig, body, dry_run=False)
        if hostile.refused is None:
            assert message is None, what
            kept[body["metadata"]["name"]] = hostile
        else:
            assert message is not None, what
            assert hostile.refused in message, what
    return kept


def _arrived_as_text(rig: Rig, kept: Mapping[str, Hostile]) -> None:
    """Free text is in the pods' template as it was written; the kubelet expands `$(NAME)`, but not `$$(NAME)`."""
    deployments = json.loads(rig.kubectl("get", "deployments", "-ojson"))["items"]
    templates = {item["metadata"]["name"]: item["spec"]["template"] for item in deployments}
    for name, hostile in kept.items():
        wanted = hostile.spec.get("template", {})
        if hostile.held is None and "env" in wanted:
            env = {one["name"]: one.get("value") for one in templates[name]["spec"]["containers"][0]["env"]}
            assert [env[one["name"]] for one in wanted["env"]] == [
                one["value"].replace("$(", "$$(") for one in wanted["env"]
            ]
        if hostile.held is None and "annotations" in wanted:
            assert wanted["annotations"].items() <= templates[name]["metadata"]["annotations"].items()


def _pools(rig: Rig) -> list[Object]:
    found = client.CustomObjectsApi(rig.api).list_namespaced_custom_object(namespace=rig.namespace, **POOL)
    items: list[Object] = found["items"]
    return items


def _pending(pools: Mapping[str, Object], kept: Mapping[str, Hostile]) -> list[str]:
    """Those that are not yet what they should be: Degraded for the reason, or, where they are harmless, ready."""
    return [name for name, hostile in kept.items() if not _is_as_it_should(pools.get(name), hostile)]


def _is_as_it_should(pool: Object | None, hostile: Hostile) -> bool:
    if hostile.held is None:
        return (condition(pool, "Ready") or {}).get("status") == "True"
    degraded = condition(pool, "Degraded") or {}
    return (degraded.get("status"), degraded.get("reason")) == ("True", hostile.held) and hostile.told in degraded[
        "message"
    ]


def _explain(rig: Rig, pools: Mapping[str, Object], kept: Mapping[str, Hostile]) -> str:
    pending = _pending(pools, kept)
    told = {name: (pools.get(name) or {}).get("status", {}).get("conditions") for name in pending}
    return f"{json.dumps(told, indent=1)}\n{rig.explain('before')}"
