"""Writes what differs, and says what could not be written. Decides nothing about what should be there."""

from kvik_operator.errors import ClusterError
from kvik_operator.names import ANNOTATION_POD_DELETION_COST, ChildKind
from kvik_operator.reconcile.adoption import Claim, claim
from kvik_operator.reconcile.drift import is_current
from kvik_operator.reconcile.refusals import answered, foreign, going, namespace_goes, overlook, problem
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
            if namespace_goes(error):
                return Applied(children, gone=True)
            found.append(answered(error))
        else:
            if isinstance(stored, ApplyProblem):
                found.append(stored)
            else:
                children[ChildKind(manifest["kind"])] = stored
    for kind in wanted.unwanted:
        try:
            await _remove(cluster, observed, kind)
        except ClusterError as error:
            if namespace_goes(error):
                return Applied(children, gone=True)
            found.append(answered(error))
        else:
            children.pop(kind, None)
    return Applied(children, tuple(map(problem, found)))


async def _ensure(
    cluster: Cluster, observed: Observed, manifest: Object, rewritten: Rewritten
) -> Object | ApplyProblem:
    """The child as it is in the cluster once it is what the manifest says."""
    key, kind = observed.key, ChildKind(manifest["kind"])
    stored = observed.children.get(kind) or await cluster.read_child(kind, key)
    if stored is not None:
        match claim(stored, key, observed.pool.uid):
            case Claim.FOREIGN:
                return foreign(kind, manifest["metadata"]["name"])
            case Claim.GOING:
                return going(kind, manifest["metadata"]["name"])
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
        except ClusterError as error:
            overlook(error)


async def _remove(cluster: Cluster, observed: Observed, kind: ChildKind) -> None:
    """Delete a child of ours that is not wanted any more; somebody else's stays."""
    stored = observed.children[kind]
    if claim(stored, observed.key, observed.pool.uid) is Claim.OURS:
        await cluster.delete(kind, observed.key, stored["metadata"]["uid"])
