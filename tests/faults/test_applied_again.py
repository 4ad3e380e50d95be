"""A manifest that was applied stays what it is: kubectl sees no difference, and applying it again changes nothing."""

import json
from typing import Any

import pytest

from tests.support.operator_rig import Rig, eventually
from tests.support.refused_pools import SOURCE
from tests.support.whole_spec import WHOLE_SPEC

pytestmark = pytest.mark.timeout(600)

SPECS: dict[str, dict[str, Any]] = {
    "smallest": {"model": {"source": SOURCE}},
    "whole": WHOLE_SPEC,
}


def manifests() -> str:
    pools = [
        {"apiVersion": "kvik.dev/v1alpha1", "kind": "InferencePool", "metadata": {"name": name}, "spec": spec}
        for name, spec in SPECS.items()
    ]
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": pools})


def wait_told(rig: Rig, wanted: int) -> None:
    """The operator has carried both pools out and written their status.

    Pods are not waited for: the whole one names classes of nodes and of priority that this cluster does not have.
    """

    def told() -> bool:
        pools = [rig.pool(name) or {} for name in SPECS]
        statuses = [(pool["metadata"]["generation"], pool.get("status") or {}) for pool in pools]
        return all(
            status.get("observedGeneration") == generation and status["ready"].endswith(f"/{wanted}")
            for generation, status in statuses
        )

    eventually(f"status to speak of {wanted} pods", told, 30, lambda: rig.explain("whole"))


def asked_for(rig: Rig) -> dict[str, Any]:
    """The specs of the pools and of what belongs to them, with the generations that count their changes."""
    objects = [*((rig.pool(name) or {}) for name in SPECS), *(child for name in SPECS for child in rig.children(name))]
    return {
        f"{one['kind']}/{one['metadata']['name']}": (one["metadata"].get("generation"), one.get("spec"))
        for one in objects
    }


def wait_same(rig: Rig, when: str, *flags: str) -> None:
    """`kubectl diff` finds nothing. It reads twice: a status that is written in between is a difference, but once."""

    def same() -> bool:
        try:
            return rig.kubectl("diff", *flags, "--filename=-", stdin=manifests()) == ""
        except RuntimeError:  # exit code 1: a difference
            return False

    eventually(f"no difference {when}", same, 15, lambda: rig.explain("whole"))


@pytest.mark.parametrize("flags", [(), ("--server-side",)], ids=["client side", "server side"])
def test_an_applied_manifest_differs_in_nothing_and_again_changes_nothing(
    operated: Rig, flags: tuple[str, ...]
) -> None:
    """crossplane-kubernetes #277: two that write one object take back, each time, what the other has written."""
    rig = operated
    rig.operator()
    apply = ("apply", *flags, "--filename=-")
    rig.kubectl(*apply, stdin=manifests())
    wait_told(rig, 1)
    wait_same(rig, "once the operator has written the status", *flags)

    rig.kubectl("scale", "--replicas=3", *(f"inferencepools.kvik.dev/{name}" for name in SPECS))
    wait_told(rig, 3)
    before = asked_for(rig)
    assert before["Deployment/whole"][1]["replicas"] == 3
    wait_same(rig, "once it was scaled", *flags)
    rig.kubectl(*apply, stdin=manifests())
    assert asked_for(rig) == before
    wait_same(rig, "once it was applied again", *flags)
