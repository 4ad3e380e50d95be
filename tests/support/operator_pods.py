"""The operator's pods in a cluster: those of the last install alone, and which of them leads.

`helm upgrade --wait` and `kubectl rollout status` return while pods of before still end, and one of those may lead
until it has ended: it would serve pools by the settings of before.
"""

from collections.abc import Sequence

from tests.support.kubectl import Kubectl, Object, condition, wait_for

SELECTOR = "app.kubernetes.io/instance=kvik"


def wait_for_operators(system: Kubectl, seconds: float = 60) -> list[str]:
    """Names of the operator's pods, once those that its Deployment asks for are ready and there is no other.

    Raises:
        TimeoutError: with what there is instead.
    """

    def alone() -> list[str] | None:
        deployments = system.list("deployments", SELECTOR)  # before the pods: none of an older template comes after it
        return alone_and_ready(deployments, system.list("pods", SELECTOR))

    return wait_for("the operators to be ready and alone", alone, seconds, lambda: system.run("get", "pods"))


def wait_for_no_operator(system: Kubectl, seconds: float = 60) -> None:
    """Until the last pod of an operator that was uninstalled is gone. Raises TimeoutError."""
    wait_for("the operators to be gone", lambda: not system.list("pods", SELECTOR), seconds)


def alone_and_ready(deployments: Sequence[Object], pods: Sequence[Object]) -> list[str] | None:
    """Names of the pods, if they are those that the only Deployment asks for; None: not yet."""
    if len(deployments) != 1 or len(pods) != deployments[0]["spec"]["replicas"]:
        return None
    (deployment,) = deployments
    status = deployment["status"]
    all_of_this_template = (
        status.get("observedGeneration") == deployment["metadata"]["generation"]
        and status.get("updatedReplicas") == deployment["spec"]["replicas"]
    )
    return [pod["metadata"]["name"] for pod in pods] if all_of_this_template and all(map(_serves, pods)) else None


def leader(system: Kubectl) -> str | None:
    """The operator's pod that holds the Lease; None: nobody does, or one that is gone or on its way out."""
    (lease,) = system.list("leases", SELECTOR)
    holder = (lease.get("spec", {}).get("holderIdentity") or "").rpartition("_")[0]
    pods = system.list("pods", SELECTOR)
    return next((holder for pod in pods if pod["metadata"]["name"] == holder and not _ends(pod)), None)


def _serves(pod: Object) -> bool:
    return not _ends(pod) and (condition(pod, "Ready") or {}).get("status") == "True"


def _ends(pod: Object) -> bool:
    return "deletionTimestamp" in pod["metadata"]
