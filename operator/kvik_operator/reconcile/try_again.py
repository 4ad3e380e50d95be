"""When Kubernetes should try again to create pods that the API server has refused. Pure.

A ReplicaSet's controller waits twice as long after each refusal, up to a quarter of an hour, and a quota that is raised
wakes it not (64 s late, measured, after 100 s without room). It looks at once at a ReplicaSet that changes, and what
annotations a Deployment has are copied to its ReplicaSet.
"""

from datetime import timedelta
from typing import Final

from kvik_operator.crd.conditions import timestamp
from kvik_operator.names import ChildKind
from kvik_operator.reconcile.findings import deployment_condition
from kvik_operator.reconcile.types import Observed

TRY_EVERY: Final = timedelta(seconds=10)


def try_again(observed: Observed) -> str | None:
    """A mark for the Deployment, another one every ten seconds; None: nothing is refused."""
    refused = deployment_condition(observed.children.get(ChildKind.DEPLOYMENT), "ReplicaFailure") or {}
    if refused.get("status") != "True":
        return None
    since = observed.now.timestamp() % TRY_EVERY.total_seconds()
    return timestamp(observed.now - timedelta(seconds=since))
