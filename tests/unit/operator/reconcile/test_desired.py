from typing import Any

import pytest

from kvik_operator.metrics_api.figures import DESIRED_REPLICAS
from kvik_operator.names import ChildKind
from kvik_operator.objects.scaled_object import KedaTrigger
from kvik_operator.reconcile.desired import configured_engine, desired, needs_fresh_look, wanted_replicas
from kvik_operator.reconcile.observe import observe
from kvik_operator.reconcile.revisions import plan_revisions
from kvik_operator.reconcile.types import (
    Desired,
    EngineImages,
    NetworkPolicyOptions,
    Observed,
    ReconcileOptions,
    RevisionPlan,
)
from tests.support.fake_cluster import FakeCluster
from tests.support.pools import KEY, NOW, TRIGGER, UID, make_deployment, make_pod, make_pool, spec_of

OPTIONS = ReconcileOptions(images=EngineImages(gpu="kvik/engine:1", cpu="kvik/engine:1-cpu"))
BOUNDS = {"minReplicas": 2, "maxReplicas": 5}


def observed_of(deployed: int | None = None, pods: tuple[dict[str, Any], ...] = (), **groups: Any) -> Observed:
    cluster = FakeCluster(make_pool(**groups))
    if deployed is not None:
        cluster.children[ChildKind.DEPLOYMENT] = make_deployment(deployed)
    cluster.engine_pods = list(pods)
    assert cluster.stored_pool is not None
    return observe(KEY, cluster.stored_pool, cluster, NOW)


def desired_of(observed: Observed, options: ReconcileOptions = OPTIONS, **in_flight: int) -> Desired:
    return desired(
        observed, plan_of(observed, options).use, options, lambda uid: in_flight.get(uid.removeprefix("uid-"))
    )


def plan_of(observed: Observed, options: ReconcileOptions = OPTIONS) -> RevisionPlan:
    """As of a pool that has no revision yet."""
    return plan_revisions((), None, observed, configured_engine(observed.pool.spec.resources.device, options))


def manifest(wanted: Desired, kind: ChildKind) -> Any:
    return next(item for item in wanted.manifests if item["kind"] == kind)


@pytest.mark.parametrize(
    ("replicas", "scaling", "want"),
    [
        (3, None, 3),
        (0, None, 0),
        (1, BOUNDS, 2),
        (3, BOUNDS, 3),
        (9, BOUNDS, 5),
        (0, BOUNDS, 0),  # stopped by hand: nobody scales
    ],
)
def test_replicas_are_what_was_written_within_the_bounds(replicas: int, scaling: Any, want: int) -> None:
    assert wanted_replicas(spec_of(replicas=replicas, scaling=scaling)) == want


def test_the_deployment_comes_last_so_that_pods_find_what_they_need() -> None:
    options = ReconcileOptions(images=OPTIONS.images, metrics_api=True)
    scaled = observed_of(scaling={"driver": "HPA", "maxReplicas": 4})
    kinds = [item["kind"] for item in desired_of(scaled, options).manifests]
    assert set(kinds) == set(ChildKind) - {ChildKind.SCALED_OBJECT}
    assert kinds[-1] == "Deployment"
    assert kinds.index("ServiceAccount") < kinds.index("Deployment")


@pytest.mark.parametrize(
    ("scaling", "metrics_api"),
    [
        (None, True),
        ({"maxReplicas": 4}, True),
        ({"maxReplicas": 4, "driver": "External"}, True),
        ({"maxReplicas": 4, "driver": "HPA"}, False),
    ],
)
def test_only_driver_hpa_has_an_autoscaler_and_another_drivers_is_unwanted(scaling: Any, metrics_api: bool) -> None:
    options = ReconcileOptions(images=OPTIONS.images, metrics_api=metrics_api)
    cluster = FakeCluster(make_pool(**({} if scaling is None else {"scaling": scaling})))
    cluster.children[ChildKind.AUTOSCALER] = {"metadata": {"name": "chat", "uid": "1"}}
    assert cluster.stored_pool is not None
    wanted = desired_of(observe(KEY, cluster.stored_pool, cluster, NOW), options)
    assert ChildKind.AUTOSCALER not in {item["kind"] for item in wanted.manifests}
    assert wanted.unwanted == (ChildKind.AUTOSCALER,)


def test_the_autoscaler_follows_the_decision_within_the_pools_bounds() -> None:
    """llm-d-autoscaling #1352, #1316, #777: two stabilisers in series, each with its whole window."""
    options = ReconcileOptions(images=OPTIONS.images, metrics_api=True)
    scaled = observed_of(scaling={"driver": "HPA", "minReplicas": 2, "maxReplicas": 4})
    spec = manifest(desired_of(scaled, options), ChildKind.AUTOSCALER)["spec"]
    assert (spec["minReplicas"], spec["maxReplicas"]) == (2, 4)
    (metric,) = spec["metrics"]
    assert metric["object"]["metric"]["name"] == DESIRED_REPLICAS.name
    assert metric["object"]["target"] == {"type": "AverageValue", "averageValue": "1"}
    assert spec["scaleTargetRef"] == metric["object"]["describedObject"]
    assert spec["behavior"]["scaleDown"]["stabilizationWindowSeconds"] == 60


KEDA = {"scaling": {"driver": "KEDA", "minReplicas": 2, "maxReplicas": 4}}


def scaled_by_keda(cluster: FakeCluster, trigger: KedaTrigger | None = TRIGGER) -> Desired:
    assert cluster.stored_pool is not None
    options = ReconcileOptions(images=OPTIONS.images, metrics_api=True, keda=trigger)
    return desired_of(observe(KEY, cluster.stored_pool, cluster, NOW), options)


def test_the_scaled_object_asks_the_operators_scaler_within_the_pools_bounds() -> None:
    spec = manifest(scaled_by_keda(FakeCluster(make_pool(**KEDA))), ChildKind.SCALED_OBJECT)["spec"]
    assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == (2, 4)
    assert spec["scaleTargetRef"] == {"apiVersion": "kvik.dev/v1alpha1", "kind": "InferencePool", "name": "chat"}
    (trigger,) = spec["triggers"]
    assert trigger["metadata"]["scalerAddress"] == "kvik-operator.kvik-system.svc:9443"
    assert trigger["authenticationRef"] == {"name": "kvik-operator", "kind": "ClusterTriggerAuthentication"}
    config = spec["advanced"]["horizontalPodAutoscalerConfig"]
    assert config["behavior"]["scaleDown"]["stabilizationWindowSeconds"] == 60


def test_there_is_no_scaled_object_without_a_scaler_or_without_kedas_api() -> None:
    assert ChildKind.SCALED_OBJECT not in kinds_of(scaled_by_keda(FakeCluster(make_pool(**KEDA)), None))
    without = FakeCluster(make_pool(**KEDA))
    without.optional_kinds = frozenset()
    assert ChildKind.SCALED_OBJECT not in kinds_of(scaled_by_keda(without))


def test_a_stopped_pool_has_no_scaled_object_since_keda_would_start_it() -> None:
    cluster = FakeCluster(make_pool(**KEDA, replicas=0))
    cluster.children[ChildKind.SCALED_OBJECT] = owned_by_the_pool()
    wanted = scaled_by_keda(cluster)
    assert ChildKind.SCALED_OBJECT not in kinds_of(wanted)
    assert wanted.unwanted == (ChildKind.SCALED_OBJECT,)


@pytest.mark.parametrize(
    ("driver", "before", "after"),
    [
        ("KEDA", ChildKind.AUTOSCALER, ChildKind.SCALED_OBJECT),
        ("HPA", ChildKind.SCALED_OBJECT, ChildKind.AUTOSCALER),
    ],
)
def test_a_drivers_object_is_made_once_that_of_the_driver_before_is_gone(
    driver: str, before: ChildKind, after: ChildKind
) -> None:
    cluster = FakeCluster(make_pool(scaling={"driver": driver, "maxReplicas": 4}))
    cluster.children[before] = owned_by_the_pool()
    wanted = scaled_by_keda(cluster)
    assert (wanted.unwanted, after in kinds_of(wanted)) == ((before,), False)
    cluster.children[before] = owned_by_the_pool(deletionTimestamp="2026-05-01T12:00:00Z")
    assert after not in kinds_of(scaled_by_keda(cluster))
    del cluster.children[before]
    assert after in kinds_of(scaled_by_keda(cluster))


def kinds_of(wanted: Desired) -> set[str]:
    return {item["kind"] for item in wanted.manifests}


def owned_by_the_pool(**metadata: Any) -> dict[str, Any]:
    owner = {"kind": "InferencePool", "name": "chat", "uid": UID, "controller": True}
    return {"metadata": {"name": "chat", "uid": "1", "labels": {}, "ownerReferences": [owner], **metadata}}


@pytest.mark.parametrize(("device", "image"), [("GPU", "kvik/engine:1"), ("CPU", "kvik/engine:1-cpu")])
def test_the_device_chooses_the_image(device: str, image: str) -> None:
    deployed = manifest(desired_of(observed_of(resources={"device": device})), ChildKind.DEPLOYMENT)
    assert deployed["spec"]["template"]["spec"]["containers"][0]["image"] == image


def test_a_network_policy_that_was_switched_off_is_unwanted() -> None:
    options = ReconcileOptions(images=OPTIONS.images, network_policy=NetworkPolicyOptions(enabled=False))
    observed = observed_of()
    assert ChildKind.NETWORK_POLICY not in {item["kind"] for item in desired_of(observed, options).manifests}
    cluster = FakeCluster(make_pool())
    cluster.children[ChildKind.NETWORK_POLICY] = {"metadata": {"name": "chat", "uid": "1"}}
    assert cluster.stored_pool is not None
    with_policy = observe(KEY, cluster.stored_pool, cluster, NOW)
    assert desired_of(with_policy, options).unwanted == (ChildKind.NETWORK_POLICY,)
    assert needs_fresh_look(with_policy, plan_of(with_policy), desired_of(with_policy, options))


def test_a_shrinking_deployment_marks_the_idle_pod() -> None:
    pods = (make_pod("a", ready=True), make_pod("b", ready=True))
    wanted = desired_of(observed_of(2, pods, replicas=1), a=4, b=0)
    assert wanted.replicas == 1
    assert wanted.deletion_costs == {"b": "-100"}


def test_only_less_is_taking_away() -> None:
    for deployed, replicas, want in ((None, 1, False), (1, 1, False), (1, 2, False), (2, 1, True), (1, 0, True)):
        observed = observed_of(deployed, replicas=replicas)
        assert needs_fresh_look(observed, plan_of(observed), desired_of(observed)) is want
