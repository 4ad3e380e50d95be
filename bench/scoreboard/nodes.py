"""Rows 7 and 22 on a cluster of two nodes: one is drained under traffic, or lost."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from bench.scoreboard import real_engine, under_traffic
from bench.scoreboard.installation import POOLS, Installation
from bench.scoreboard.row import Outcome, Row
from tests.support.kubectl import Kubectl, Object, condition, wait_for
from tests.support.two_nodes import GOES, STAYS, lose_second, on_node, only_on_second, two_nodes

POOL = "moves"
PODS = f"kvik.dev/pool={POOL}"
TOLD_WITHIN: Final = 30.0
HEALED_WITHIN: Final = 60.0
CLEARED_WITHIN: Final = 15.0
_NOTICED_WITHIN: Final = 120.0
"""Kubernetes gives a node 50 s to say that it is there."""
_WATCHED_SECONDS: Final = 240.0
_DRAIN_SECONDS: Final = 300


@contextmanager
def _pool_on_second(installation: Installation, replicas: int) -> Iterator[None]:
    """All pods of POOL are on the second node, whose end they survive by moving."""
    kubectl = installation.pools
    with two_nodes():
        try:
            with only_on_second(kubectl):
                installation.ensure_pool(kubectl, POOL, replicas)
            yield
        finally:
            kubectl.run("delete", POOLS, POOL, "--ignore-not-found", "--wait=false")
    wait_for("its pods to be gone", lambda: not kubectl.list("pods", PODS), 120)


def _drain(kubectl: Kubectl) -> None:
    """Returns once the last pod is gone from the node."""
    flags = ("--ignore-daemonsets", "--delete-emptydir-data", f"--timeout={_DRAIN_SECONDS}s")
    kubectl.run("drain", GOES, *flags, timeout=_DRAIN_SECONDS + 30)


def _drained(installation: Installation) -> Outcome:
    def change(running: Installation) -> None:
        _drain(running.pools)
        running.wait_settled(running.pools, POOL, 2)

    with _pool_on_second(installation, replicas=2):
        moving = len(on_node(installation.pools, GOES, PODS))
        installation.pools.run("cordon", GOES)  # the clients are to be where they can stay
        seen = under_traffic.seen_during(installation, change, POOL)
        arrived = len(on_node(installation.pools, STAYS, PODS))
    return under_traffic.outcome(seen, _wrong(moving, arrived), {"pods that moved": arrived})


def _drained_real(installation: Installation) -> Outcome:
    kubectl = installation.pools
    with two_nodes(), real_engine.served(installation, 2, placed=only_on_second(kubectl)) as name:
        pods = f"kvik.dev/pool={name}"
        moving = len(on_node(kubectl, GOES, pods))
        kubectl.run("cordon", GOES)

        def change() -> None:
            _drain(kubectl)
            installation.wait_settled(kubectl, name, 2, real_engine.START_SECONDS)

        seen = real_engine.seen_during(installation, name, change)
        arrived = len(on_node(kubectl, STAYS, pods))
    return real_engine.outcome(seen, _wrong(moving, arrived))


def _wrong(moving: int, arrived: int) -> str | None:
    """Both pods were on the node that was drained, and both are on the other one now."""
    return None if (moving, arrived) == (2, 2) else f"{moving} pods were on the drained node, {arrived} arrived"


@dataclass(frozen=True, slots=True)
class Loss:
    """What was seen of a lost node, in seconds since the node was not Ready; None: not within the time of watching."""

    told: float | None = None
    healed: float | None = None
    """A pod was ready elsewhere."""
    taken_back: float | None = None
    """NodeLost was told no more, after both."""

    def with_look(self, seconds: float, *, says_lost: bool, serves: bool) -> "Loss":
        """After one more look."""
        told = seconds if self.told is None and says_lost else self.told
        healed = seconds if self.healed is None and serves else self.healed
        over = told is not None and healed is not None and not says_lost
        return Loss(told, healed, seconds if self.taken_back is None and over else self.taken_back)


def judged(loss: Loss) -> Outcome:
    """Each time against its own bound."""
    clears = None if loss.taken_back is None or loss.healed is None else loss.taken_back - loss.healed
    times = (
        ("told", loss.told, TOLD_WITHIN),
        ("served", loss.healed, HEALED_WITHIN),
        ("taken back", clears, CLEARED_WITHIN),
    )
    reasons = [
        f"{what} after {seconds:.0f} s" if seconds is not None else f"not {what} while it was watched"
        for what, seconds, bound in times
        if seconds is None or seconds > bound
    ]
    names = {"told after, seconds": loss.told, "taken back after the pool served, seconds": clears}
    figures = {name: seconds for name, seconds in names.items() if seconds is not None}
    return Outcome(loss.healed, not reasons, "; ".join(reasons) or None, figures)


def _lost(installation: Installation) -> Outcome:
    kubectl = installation.pools
    with _pool_on_second(installation, replicas=1):
        lose_second()
        wait_for("the node to be missed", lambda: not _is_ready(kubectl.get("node", GOES)), _NOTICED_WITHIN, every=0.25)
        return judged(_watched(kubectl))


def _watched(kubectl: Kubectl) -> Loss:
    """For much longer than each bound, so that a time beyond it is seen and not only given up on."""
    loss, missed = Loss(), time.monotonic()
    while loss.taken_back is None and time.monotonic() < missed + _WATCHED_SECONDS:
        says_lost, serves = _says_lost(kubectl), _serves_elsewhere(kubectl)
        loss = loss.with_look(time.monotonic() - missed, says_lost=says_lost, serves=serves)
        time.sleep(0.25)
    return loss


def _is_ready(thing: Object | None) -> bool:
    return (condition(thing, "Ready") or {}).get("status") == "True"


def _says_lost(kubectl: Kubectl) -> bool:
    pool = kubectl.get(POOLS, POOL)
    conditions = [condition(pool, kind) or {} for kind in ("Ready", "Degraded", "RolloutComplete")]
    return any(one.get("reason") == "NodeLost" for one in conditions)


def _serves_elsewhere(kubectl: Kubectl) -> bool:
    return any(_is_ready(pod) and pod["spec"].get("nodeName") == STAYS for pod in kubectl.list("pods", PODS))


UNDER_TRAFFIC: tuple[Row, ...] = (
    Row(
        id="7f",
        what="`kubectl drain` of the node that has all pods of a pool fails no request",
        unit="failed requests",
        wanted="0 of 2,000 or more, at 200 a second or more; both pods are on the other node",
        how="two nodes, two pods on one of them, `kubectl drain NODE --ignore-daemonsets --delete-emptydir-data`",
        measure=_drained,
    ),
    Row(
        id="7g",
        what="So it does with the real engine",
        unit="failed requests",
        wanted=f"0 of {real_engine.LEAST_REQUESTS} or more; both pods are on the other node",
        how="the same with two pods of `examples/smollm2.yaml`; three clients, answers of 16 tokens",
        measure=_drained_real,
    ),
)
ROWS: tuple[Row, ...] = (
    *UNDER_TRAFFIC,
    Row(
        id="22b",
        what="A pool whose node is lost says so, and serves from another node",
        unit="seconds from the node's NotReady until a pod is ready elsewhere",
        wanted="at most 60, of which Kubernetes waits the pod's tolerationSeconds of 30; NodeLost is told within 30 s "
        "and taken back within 15 s",
        how="two nodes, one pod; the kubelet of its node killed and its connection cut",
        measure=_lost,
    ),
)
