"""What should be in the cluster for one pool. Pure: observed state and options in, manifests out."""

from collections.abc import Callable
from datetime import timedelta

from kvik_operator.crd.inferencepool import Device, PoolSpec, ScalingDriver
from kvik_operator.names import ChildKind
from kvik_operator.objects.autoscaler import autoscaler
from kvik_operator.objects.deployment import deployment
from kvik_operator.objects.disruption_budget import disruption_budget
from kvik_operator.objects.engine_image import EngineImage
from kvik_operator.objects.network_policy import network_policy
from kvik_operator.objects.pod_template import termination_grace_seconds
from kvik_operator.objects.scaled_object import scaled_object
from kvik_operator.objects.service import service
from kvik_operator.objects.service_account import service_account
from kvik_operator.reconcile.adoption import Claim, claim, is_unowned
from kvik_operator.reconcile.pod_state import hash_label
from kvik_operator.reconcile.rollout import pace
from kvik_operator.reconcile.try_again import try_again
from kvik_operator.reconcile.types import Desired, Object, Observed, ReconcileOptions, Revision, RevisionPlan
from kvik_operator.reconcile.victims import deletion_costs


def desired(
    observed: Observed, revision: Revision, options: ReconcileOptions, work: Callable[[str], int | None]
) -> Desired:
    """`work` gives a pod's requests in flight by its uid."""
    key, uid, spec = observed.key, observed.pool.uid, observed.pool.spec
    replicas = wanted_replicas(spec)
    manifests: list[Object] = [
        service_account(key, uid, spec.template.service_account_annotations),
        service(key, uid),
        disruption_budget(key, uid),
        _deployment(observed, revision, replicas),
    ]
    policy = options.network_policy
    if policy.enabled:
        peers = (policy.api_from, policy.metrics_from, policy.operator_peer)
        manifests.insert(1, network_policy(key, uid, *peers, may_leave=policy.egress == "Open"))
    driving = _driving_object(observed, options)
    if driving is not None:
        manifests.insert(-1, driving)
    present = {ChildKind(manifest["kind"]) for manifest in manifests}
    return Desired(
        manifests=tuple(manifests),
        unwanted=tuple(kind for kind in observed.children if kind not in present),
        replicas=replicas,
        deletion_costs=deletion_costs(observed.pods, deployed_replicas(observed), replicas, work),
    )


def _driving_object(observed: Observed, options: ReconcileOptions) -> Object | None:
    """What carries the scaling out where the operator does not; not beside that of the driver before.

    Without what it reads it would do nothing but complain. KEDA would start a pool that was stopped by hand.
    """
    key, uid, scaling = observed.key, observed.pool.uid, observed.effective.scaling
    if scaling is None:
        return None
    least, most = scaling.min_replicas, scaling.max_replicas
    if scaling.driver is ScalingDriver.HPA and options.metrics_api and not _has(observed, ChildKind.SCALED_OBJECT):
        return autoscaler(key, uid, least, most)
    possible = ChildKind.SCALED_OBJECT in observed.served and observed.pool.spec.replicas > 0
    possible = possible and not _has(observed, ChildKind.AUTOSCALER)
    if scaling.driver is ScalingDriver.KEDA and options.keda is not None and possible:
        return scaled_object(key, uid, least, most, options.keda)
    return None


def _has(observed: Observed, kind: ChildKind) -> bool:
    """Whether one of the pool's own is there, be it on its way out."""
    child = observed.children.get(kind)
    return child is not None and claim(child, observed.key, observed.pool.uid) is not Claim.FOREIGN


def _deployment(observed: Observed, revision: Revision, replicas: int) -> Object:
    """Without room for one pod more, a new one can start only when an old one has drained."""
    effective = observed.effective
    how = pace(observed.pool.spec.rollout.strategy, hash_label(revision.template), observed)
    drain = timedelta(seconds=termination_grace_seconds(effective.drain_timeout))
    deadline = effective.startup_timeout + (timedelta() if how.max_surge else drain)
    again = try_again(observed)
    return deployment(observed.key, observed.pool.uid, revision.template, replicas, how, deadline, again)


def wanted_replicas(spec: PoolSpec) -> int:
    """0 is a hand on the switch and stays 0; else `scaling` bounds what anybody wrote."""
    if spec.scaling is None or spec.replicas == 0:
        return spec.replicas
    return min(max(spec.replicas, spec.scaling.min_replicas), spec.scaling.max_replicas)


def deployed_replicas(observed: Observed) -> int:
    """Replicas that the Deployment has now; 0 without one."""
    deployed = observed.children.get(ChildKind.DEPLOYMENT)
    return 0 if deployed is None else int((deployed.get("spec") or {}).get("replicas", 1))


def needs_fresh_look(observed: Observed, plan: RevisionPlan, wanted: Desired) -> bool:
    """Whether the pool should be read anew before this is carried out, since the watch may have missed something.

    Something would be scaled down or deleted; or a child would be made that was there before: then either somebody
    deleted it, or the pool is gone and the garbage collector is taking its children; or a child would get an owner:
    if the pool was deleted and its children orphaned, the garbage collector would take what names it as owner again.
    """
    lost = any(ChildKind(manifest["kind"]) not in observed.children for manifest in wanted.manifests)
    remade = (lost or bool(plan.write)) and bool(observed.pool.status.get("observedGeneration"))
    less = bool(wanted.unwanted or plan.delete) or wanted.replicas < deployed_replicas(observed)
    unowned = any(is_unowned(child, observed.key, observed.pool.uid) for child in observed.children.values())
    return remade or less or unowned


def configured_engine(device: Device, options: ReconcileOptions) -> EngineImage:
    """The engine that the operator brings, at its own version."""
    reference = options.images.gpu if device is Device.GPU else options.images.cpu
    return EngineImage(reference, options.image_pull_policy, options.hf_endpoint)
