"""Writes what differs, and says what could not be written. Decides nothing about what should be there."""

from kvik_operator.errors import ClusterError, Conflict, NotFound, Refused, Unavailable
from kvik_operator.names import ANNOTATION_POD_DELETION_COST, ChildKind, Reason
from kvik_operator.reconcile.adoption import Claim, claim
from kvik_operator.reconcile.drift import is_current
from kvik_operator.reconcile.rewritten import Rewritten
from kvik_operator.reconcile.types import Applied, ApplyProblem, Cluster, Desired, Object, Observed


async def apply(cluster: Cluster, observed: Observed, wanted: Desired, rewritten: Rewritten) -> Applied:
    """Apply every manifest that is not there yet; one that fails does not keep the others from being tried.

    Raises for the queue to retry: at once without an answer, else what will pass by itself, after all were tried.
    """
    children = dict(observed.children)
    found: list[ApplyProblem | ClusterError] = []
    await _mark_victims(cluster, observed, wanted)
    for manifest in wanted.manifests:
        try:
            stored = await _ensure(cluster, observed, manifest, rewritten)
        except ClusterError as error:
            if _namespace_goes(error):
                return Applied(children, gone=True)
            found.append(_answered(error))
        else:
            if isinstance(stored, ApplyProblem):
                found.append(stored)
            else:
                children[ChildKind(manifest["kind"])] = stored
    for kind in wanted.unwanted:
        try:
            await _remove(cluster, observed, kind)
        except ClusterError as error:
            if _namespace_goes(error):
                return Applied(children, gone=True)
            found.append(_answered(error))
        else:
            children.pop(kind, None)
    return Applied(children, tuple(map(_problem, found)))


async def _ensure(
    cluster: Cluster, observed: Observed, manifest: Object, rewritten: Rewritten
) -> Object | ApplyProblem:
    """The child as it is in the cluster once it is what the manifest says."""
    key, kind = observed.key, ChildKind(manifest["kind"])
    stored = observed.children.get(kind) or await cluster.read_child(kind, key)
    if stored is not None:
        match claim(stored, key, observed.pool.uid):
            case Claim.FOREIGN:
                return _foreign(kind, manifest["metadata"]["name"])
            case Claim.GOING:
                name = manifest["metadata"]["name"]
                return ApplyProblem(Reason.STARTING, f"waiting until the old {kind} {name} is gone")
            case Claim.OURS:
                pass
        if is_current(stored, manifest) or rewritten.is_known(key, kind, manifest, stored):
            return stored
    answer = await cluster.apply(manifest)
    if not is_current(answer, manifest):
        rewritten.remember(key, kind, manifest, answer)
    return answer


async def _mark_victims(cluster: Cluster, observed: Observed, wanted: Desired) -> None:
    """Before the Deployment shrinks. Best effort: without the mark the wrong pod drains, and nothing breaks."""
    for name, cost in wanted.deletion_costs.items():
        try:
            await cluster.annotate_pod(observed.key.namespace, name, {ANNOTATION_POD_DELETION_COST: cost})
        except (NotFound, Conflict, Refused):
            continue
        except Unavailable as error:
            if _passes(error):
                raise


async def _remove(cluster: Cluster, observed: Observed, kind: ChildKind) -> None:
    """Delete a child of ours that is not wanted any more; somebody else's stays."""
    stored = observed.children[kind]
    if claim(stored, observed.key, observed.pool.uid) is Claim.OURS:
        await cluster.delete(kind, observed.key, stored["metadata"]["uid"])


def _namespace_goes(error: ClusterError) -> bool:
    return isinstance(error, Refused) and error.namespace_terminating


def _answered(error: ClusterError) -> ClusterError:
    """The error, if the API server answered at all; else raises it: whatever comes next would fare the same."""
    if error.status is None:
        raise error
    return error


def _passes(found: ApplyProblem | ClusterError) -> bool:
    """409, 429 and 503 pass by themselves; behind a 500 mostly stands a webhook that fails until it is mended."""
    return isinstance(found, Conflict) or (isinstance(found, Unavailable) and found.status != 500)


def _problem(found: ApplyProblem | ClusterError) -> ApplyProblem:
    """What a person should read about it. Raises what the queue should retry instead."""
    if isinstance(found, ApplyProblem):
        return found
    if _passes(found):
        raise found
    if isinstance(found, Refused) and found.access_denied:
        return ApplyProblem(Reason.ACCESS_DENIED, f"the operator lacks a permission: {found}")
    if "exceeded quota" in found.message:
        return ApplyProblem(Reason.QUOTA_EXCEEDED, str(found))
    return ApplyProblem(Reason.APPLY_REFUSED, str(found))


def _foreign(kind: ChildKind, name: str) -> ApplyProblem:
    text = f"{kind} {name} exists and is not this pool's: rename the pool, or delete the {kind}"
    return ApplyProblem(Reason.FOREIGN_OBJECT, text)
