from copy import deepcopy
from typing import Any

import pytest

from kvik_operator.objects.service import service
from kvik_operator.reconcile.drift import is_current
from tests.support.pools import KEY, UID

WANTED = service(KEY, UID)


def stored(**spec: Any) -> dict[str, Any]:
    """The Service as the API server shows it: with what it filled in."""
    obj = deepcopy(WANTED)
    obj["metadata"] |= {"uid": "1", "resourceVersion": "5", "creationTimestamp": "x"}
    obj["metadata"]["labels"]["added-by"] = "somebody"
    obj["spec"] |= {"clusterIP": "10.0.0.1", "sessionAffinity": "None", **spec}
    for port in obj["spec"]["ports"]:
        port["nodePort"] = 0
    return obj


def test_what_the_api_server_fills_in_is_no_drift() -> None:
    assert is_current(stored(), WANTED)


def test_a_changed_field_is_drift() -> None:
    assert not is_current(stored(selector={"kvik.dev/pool": "other"}), WANTED)


def test_a_removed_field_is_drift() -> None:
    obj = stored()
    del obj["spec"]["ports"]
    assert not is_current(obj, WANTED)


def test_an_added_list_item_is_drift() -> None:
    obj = stored()
    obj["spec"]["ports"].append({"port": 22})
    assert not is_current(obj, WANTED)


def test_another_manifest_was_applied_last() -> None:
    """A field that we no longer set is still there and still ours: only the hash tells."""
    obj = stored()
    obj["metadata"]["annotations"] = {"kvik.dev/manifest-hash": "older"}
    assert not is_current(obj, WANTED)


@pytest.mark.parametrize(
    ("shown", "wanted", "same"),
    [("1", "1000m", True), ("500m", "0.5", True), ("2Gi", "2048Mi", True), ("1", "2", False), ("a", "b", False)],
)
def test_a_quantity_written_otherwise_is_no_drift(shown: str, wanted: str, same: bool) -> None:
    def pod(cpu: str) -> dict[str, Any]:
        return {"metadata": {}, "spec": {"resources": {"requests": {"cpu": cpu}}}}

    assert is_current(pod(shown), pod(wanted)) is same


def test_an_empty_value_that_the_api_server_drops_is_no_drift() -> None:
    assert is_current({"metadata": {}, "spec": {}}, {"metadata": {}, "spec": {"constraints": [], "labels": {}}})
