"""Waiting until the operator has gone through a whole pool, also where there is nothing for it to do."""

from tests.support.kubectl import Kubectl, wait_for

POOLS = "inferencepools.kvik.dev"


def wait_for_a_look(kubectl: Kubectl, pool: str, seconds: float = 90) -> None:
    """Until it has put the status right, which is the last thing it does. Raises TimeoutError.

    That takes up to a minute: what it has written and still is not there it writes no sooner, for an older CRD may have
    no such field.
    """
    kubectl.run("patch", POOLS, pool, "--subresource=status", "--type=merge", '--patch={"status":{"endpoint":null}}')

    def endpoint() -> str | None:
        told: str | None = (kubectl.get(POOLS, pool) or {})["status"].get("endpoint")
        return told

    wait_for("the operator to look at the pool", endpoint, seconds, lambda: kubectl.run("describe", POOLS, pool))
