"""Row 23: pools, namespaces, releases and the API are deleted while streams are open: what ends, what is left, when."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from bench.scoreboard.installation import (
    CHILDREN,
    POOLS,
    TOKENS_PER_SECOND,
    Installation,
)
from bench.scoreboard.row import Outcome, Row
from scripts.demo_ownership import ensure_namespace
from tests.support.in_cluster_traffic import Traffic
from tests.support.kubectl import Kubectl, wait_for
from tests.support.upgrades import identity

POOL = "doomed"
STREAMS: Final = 8
STREAM_TOKENS: Final = 20 * TOKENS_PER_SECOND
WITHIN: Final = 30.0
"""Seconds after the last stream's end."""
_STUCK_AFTER: Final = 150.0
_SHORTEST: Final = 5.0
"""Seconds that a stream lasts longer than the deletion takes to begin."""

Delete = Callable[[Installation, Kubectl], None]


@dataclass(frozen=True, slots=True)
class Ended:
    streams: Traffic
    begun_before_end: float
    """Seconds from the deletion to the end of the last stream."""


def _streamed_through(installation: Installation, kubectl: Kubectl, delete: Delete) -> Ended:
    """One stream of twenty seconds a client is open when the deletion comes, and none is begun after it."""
    with installation.traffic(kubectl, POOL, "streams", clients=STREAMS, max_tokens=STREAM_TOKENS) as running:
        time.sleep(2)
        running.last_answers()
        deleted = time.monotonic()
        delete(installation, kubectl)
    return Ended(running.result, time.monotonic() - deleted)


def _deleted(
    delete: Delete, *, namespace: bool = False, after: Delete | None = None
) -> Callable[[Installation], Outcome]:
    """`after` is done once the streams have ended, and mends what the next row needs."""

    def measure(installation: Installation) -> Outcome:
        kubectl = installation.others if namespace else installation.pools
        ensure_namespace(kubectl, borrowed=False)
        installation.ensure_pool(kubectl, POOL)
        ended = _streamed_through(installation, kubectl, delete)
        finished = time.monotonic()
        try:
            wait_for("nothing to be left", lambda: not _left(kubectl, namespace=namespace), _STUCK_AFTER)
        except TimeoutError:
            left = _left(kubectl, namespace=namespace)
            return Outcome(None, ok=False, reason=f"stuck: {', '.join(left)}", figures=_figures(ended))
        finally:
            if after is not None:
                after(installation, kubectl)
        return _outcome(time.monotonic() - finished, ended)

    return measure


def _left(kubectl: Kubectl, *, namespace: bool) -> list[str]:
    if namespace and kubectl.get("namespace", kubectl.namespace) is not None:
        return [f"namespace {kubectl.namespace}"]
    found = kubectl.list(CHILDREN, f"kvik.dev/pool={POOL}")
    return [f"{item['kind']} {item['metadata']['name']}" for item in found]


def _outcome(seconds: float, ended: Ended, more: str | None = None) -> Outcome:
    streams = ended.streams
    reasons = [f"{len(streams.failures)} streams failed: {streams.failures[0]}"] if streams.failures else []
    if streams.succeeded < STREAMS:
        reasons.append(f"{streams.succeeded} of {STREAMS} streams ended with [DONE]")
    if ended.begun_before_end < _SHORTEST:
        reasons.append("the streams were over before the deletion")
    reasons += [more] if more else []
    slow = [f"it took {seconds:.0f} s"] if seconds > WITHIN else []
    return Outcome(
        seconds,
        ok=not reasons + slow,
        reason="; ".join(reasons + slow) or None,
        figures=_figures(ended),
        only_slow=bool(slow) and not reasons,
    )


def _figures(ended: Ended) -> dict[str, float]:
    return {
        "streams open at the deletion that ended with [DONE]": ended.streams.succeeded,
        "of": STREAMS,
        "seconds from the deletion to the last stream's end": ended.begun_before_end,
    }


def _delete_pool(*flags: str) -> Delete:
    def delete(_: Installation, kubectl: Kubectl) -> None:
        kubectl.run("delete", POOLS, POOL, "--wait=false", *flags)

    return delete


def _delete_namespace(_: Installation, kubectl: Kubectl) -> None:
    kubectl.run("delete", "namespace", kubectl.namespace, "--wait=false")


def _delete_api(_: Installation, kubectl: Kubectl) -> None:
    kubectl.run("delete", "crd", POOLS, "--wait=false")


def _uninstall_then_delete(installation: Installation, kubectl: Kubectl) -> None:
    installation.uninstall()
    _delete_pool()(installation, kubectl)


def _delete_then_uninstall(installation: Installation, kubectl: Kubectl) -> None:
    _delete_pool()(installation, kubectl)
    installation.uninstall()


def _install(installation: Installation, kubectl: Kubectl) -> None:
    wait_for("the API to be gone or there", lambda: not _is_going(kubectl), 60)
    installation.install()


def _is_going(kubectl: Kubectl) -> bool:
    found = kubectl.get("crd", POOLS)
    return found is not None and "deletionTimestamp" in found["metadata"]


def _orphaned_and_adopted(installation: Installation) -> Outcome:
    kubectl = installation.pools
    installation.ensure_pool(kubectl, POOL)
    before = _uids(kubectl)
    ended = _streamed_through(installation, kubectl, _delete_pool("--cascade=orphan"))
    wait_for("the pool to be gone", lambda: kubectl.get(POOLS, POOL) is None, 60)
    time.sleep(5)
    kept = _uids(kubectl)
    installation.ensure_pool(kubectl, POOL)
    owner = (kubectl.get(POOLS, POOL) or {})["metadata"]["uid"]
    wait_for("the objects to be the new pool's", lambda: _owners(kubectl) == {owner}, 30)
    after = _uids(kubectl)
    kubectl.run("delete", POOLS, POOL)
    changed = len((before ^ kept) | (before ^ after))
    told = _outcome(0.0, ended, f"{changed} pods or Deployments were replaced" if changed else None)
    return Outcome(float(changed), told.ok, told.reason, told.figures)


def _uids(kubectl: Kubectl) -> set[tuple[str, str]]:
    """Of pods and Deployment, with their names."""
    return {(name, uid) for name, (uid, _) in identity(kubectl, POOL).items()}


def _owners(kubectl: Kubectl) -> set[str]:
    found = kubectl.list("deployments,services,poddisruptionbudgets", f"kvik.dev/pool={POOL}")
    return {one["uid"] for item in found for one in item["metadata"].get("ownerReferences", [])}


_UNIT = "seconds from the last stream's end until nothing is left"
_WANTED = "at most 30; all streams end with [DONE]"

ROWS: tuple[Row, ...] = (
    Row(
        id="23a",
        what="A deleted pool goes with all it owns, and its open streams end first",
        unit=_UNIT,
        wanted=_WANTED,
        how="`kubectl delete inferencepools.kvik.dev`",
        measure=_deleted(_delete_pool()),
    ),
    Row(
        id="23b",
        what="So does one that is deleted in the foreground",
        unit=_UNIT,
        wanted=_WANTED,
        how="`kubectl delete inferencepools.kvik.dev --cascade=foreground`",
        measure=_deleted(_delete_pool("--cascade=foreground")),
    ),
    Row(
        id="23c",
        what="The pods of an orphaned pool serve on, and the next pool of the name takes them over",
        unit="pods or Deployments that were replaced",
        wanted="0; all streams end with [DONE]",
        how="`kubectl delete inferencepools.kvik.dev --cascade=orphan`, then the same pool applied again",
        measure=_orphaned_and_adopted,
    ),
    Row(
        id="23d",
        what="A namespace goes with its pool, and the open streams end first",
        unit=_UNIT,
        wanted=_WANTED,
        how="`kubectl delete namespace`",
        measure=_deleted(_delete_namespace, namespace=True),
    ),
    Row(
        id="23e",
        what="A pool goes as well when its operator was uninstalled before",
        unit=_UNIT,
        wanted=_WANTED,
        how="`helm uninstall kvik`, then `kubectl delete inferencepools.kvik.dev`",
        measure=_deleted(_uninstall_then_delete, after=_install),
    ),
    Row(
        id="23f",
        what="So it does when the operator is uninstalled right after",
        unit=_UNIT,
        wanted=_WANTED,
        how="`kubectl delete inferencepools.kvik.dev`, at once `helm uninstall kvik`",
        measure=_deleted(_delete_then_uninstall, after=_install),
    ),
    Row(
        id="23g",
        what="So it does when the API itself is deleted",
        unit=_UNIT,
        wanted=_WANTED,
        how="`kubectl delete crd inferencepools.kvik.dev`",
        measure=_deleted(_delete_api, after=_install),
    ),
)
