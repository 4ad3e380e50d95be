"""A CRD that is older than the operator: only pools that were given what it lacks say so, and they keep it."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.control_plane import RunningControlPlane, control_plane
from tests.support.kubectl import condition, wait_for
from tests.support.operator_rig import Rig, eventually, holds, rig
from tests.support.running_operator import install

pytestmark = pytest.mark.timeout(600)

CRD = Path(__file__).resolve().parents[2] / "crds" / "inferencepools.kvik.dev.yaml"
LIMIT = {"maxRequests": 16, "maxQueuedRequests": 7}
KEYS = {"secretRef": {"name": "clients"}}
PLAIN, LIMITED = "plain", "limited"


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningControlPlane]:
    """Of its own: another CRD would be one for every test."""
    with control_plane(tmp_path_factory.mktemp("plane-of-two-crds")) as running:
        install(running)
        yield running


def older_crd() -> dict[str, Any]:
    """As it was before it had a limit, API keys and a part of the status."""
    crd: dict[str, Any] = yaml.safe_load(CRD.read_text())
    fields = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    del fields["spec"]["properties"]["batching"]["properties"]["maxQueuedRequests"]
    del fields["spec"]["properties"]["apiKeys"]
    del fields["status"]["properties"]["startup"]
    return crd


def put(plane: RunningControlPlane, crd: Mapping[str, Any]) -> None:
    """Returns once pools are served by it."""
    plane.run_kubectl("apply", "--server-side", "--force-conflicts", "--filename=-", stdin=json.dumps(crd))
    wanted = "maxQueuedRequests" in json.dumps(crd)
    schema = ("get", "--raw", "/openapi/v3/apis/kvik.dev/v1alpha1")
    wait_for("the CRD's schema", lambda: ("maxQueuedRequests" in plane.run_kubectl(*schema)) == wanted, 60)


def degraded(rig: Rig, name: str) -> str | None:
    return (condition(rig.pool(name), "Degraded") or {}).get("reason")


def settled(rig: Rig, name: str) -> bool:
    complete = condition(rig.pool(name), "RolloutComplete") or {}
    pool = rig.pool(name) or {}
    return rig.ready(name) and (complete["status"], pool["status"]["ready"]) == ("True", "2/2")


def running(rig: Rig, name: str) -> tuple[Any, ...]:
    """What must stay."""
    deployment = rig.deployment(name) or {"metadata": {}, "spec": {}}
    uids = sorted(pod["metadata"]["uid"] for pod in rig.pods(name))
    return uids, deployment["metadata"].get("generation"), deployment["spec"].get("template")


def arguments(rig: Rig, name: str) -> list[set[str]]:
    return [set(pod["spec"]["containers"][0]["args"]) for pod in rig.pods(name)]


def test_what_an_older_crd_drops_stays_in_effect_until_the_newer_one_has_it_again(
    plane: RunningControlPlane, tmp_path: Path
) -> None:
    """cloudflare-gw #748: the CRD was older than its controller, a limit was dropped, and everybody was let in."""
    with rig(plane, tmp_path) as ours:
        first = ours.operator()
        ours.create(PLAIN, replicas=2, batching={"maxRequests": 16})
        ours.create(LIMITED, replicas=2, batching=LIMIT, apiKeys=KEYS)
        both = (PLAIN, LIMITED)
        eventually(
            "both to be rolled out",
            lambda: all(settled(ours, name) for name in both),
            60,
            lambda: ours.explain(LIMITED),
        )
        before = {name: running(ours, name) for name in both}

        put(plane, older_crd())
        assert "apiKeys" not in (ours.pool(LIMITED) or {})["spec"], "the API server does not show it any more"
        with pytest.raises(RuntimeError, match=r'unknown field "spec.batching.maxQueuedRequests"'):
            ours.kubectl(
                "apply", "--filename=-", stdin=json.dumps({**(ours.pool(PLAIN) or {}), "spec": with_a_limit()})
            )
        eventually(
            "the pool to say so",
            lambda: degraded(ours, LIMITED) == "FieldsDropped",
            90,
            lambda: ours.explain(LIMITED),
        )
        message = (condition(ours.pool(LIMITED), "Degraded") or {})["message"]
        assert "spec.apiKeys, spec.batching.maxQueuedRequests" in message
        assert degraded(ours, PLAIN) == "AsExpected"
        assert first.terminate() == 0
        ours.operator()
        ours.kubectl("annotate", "inferencepools.kvik.dev", "--all", "kvik.test/look=again")
        holds("nothing that runs is touched", lambda: {n: running(ours, n) for n in before} == before, 5)

        ours.patch({"batching": {"maxRequests": 8}}, LIMITED)
        changed = {"--max-requests=8", "--max-queued-requests=7", "--api-keys-file=/var/run/secrets/kvik/api/keys"}
        eventually(
            "an edit to be carried out with what was dropped",
            lambda: settled(ours, LIMITED) and all(changed <= args for args in arguments(ours, LIMITED)),
            60,
            lambda: ours.explain(LIMITED),
        )
        assert degraded(ours, LIMITED) == "FieldsDropped"
        after = running(ours, LIMITED)

        put(plane, yaml.safe_load(CRD.read_text()))
        ours.patch({"batching": {**LIMIT, "maxRequests": 8}, "apiKeys": KEYS}, LIMITED)
        eventually("all to be well", lambda: degraded(ours, LIMITED) == "AsExpected", 60, lambda: ours.explain(LIMITED))
        assert running(ours, LIMITED) == after
        assert running(ours, PLAIN) == before[PLAIN]


def with_a_limit() -> dict[str, Any]:
    return {"model": {"source": "file:///models/x/model.gguf"}, "batching": LIMIT}
