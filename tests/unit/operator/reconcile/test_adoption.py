from typing import Any

import pytest

from kvik_operator.names import LABEL_POOL
from kvik_operator.reconcile.adoption import Claim, claim
from tests.support.pools import KEY, UID, at

LABELS = {LABEL_POOL: "chat"}


def owner(uid: str, kind: str = "InferencePool", name: str = "chat") -> list[dict[str, Any]]:
    return [{"kind": kind, "name": name, "uid": uid, "controller": True}]


@pytest.mark.parametrize(
    ("metadata", "want"),
    [
        pytest.param({"labels": LABELS, "ownerReferences": owner(UID)}, Claim.OURS, id="owned"),
        pytest.param({"ownerReferences": owner(UID)}, Claim.OURS, id="owned_and_the_label_was_removed"),
        pytest.param({"labels": LABELS}, Claim.OURS, id="labelled_and_nobodys"),
        pytest.param({}, Claim.FOREIGN, id="not_labelled"),
        pytest.param({"labels": {LABEL_POOL: "other"}}, Claim.FOREIGN, id="another_pools_label"),
        pytest.param({"labels": LABELS, "ownerReferences": owner("2", "Rollout")}, Claim.FOREIGN, id="controlled"),
        pytest.param({"labels": LABELS, "ownerReferences": owner("2")}, Claim.GOING, id="an_earlier_pools"),
        pytest.param(
            {"labels": LABELS, "ownerReferences": owner(UID), "deletionTimestamp": at(0)}, Claim.GOING, id="deleted"
        ),
    ],
)
def test_an_object_of_a_childs_name_is(metadata: dict[str, Any], want: Claim) -> None:
    assert claim({"metadata": {"name": "chat", **metadata}}, KEY, UID) is want
