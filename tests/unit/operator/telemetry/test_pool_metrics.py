"""What the operator's metrics page says of pools, from the store."""

from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from kvik_operator.kube.store import Store
from kvik_operator.names import KIND
from kvik_operator.telemetry.metrics import OperatorMetrics
from tests.support.pools import make_pool

CONDITIONS = [
    {"type": "Ready", "status": "True", "reason": "PodsReady"},
    {"type": "RolloutComplete", "status": "False", "reason": "RollingOut"},
]
STATUS = {"conditions": CONDITIONS, "readyReplicas": 2, "startup": {"scheduled": "0s", "warm": "90s"}}
SCALING = {"minReplicas": 2, "maxReplicas": 7, "podFullAt": {"kvUtilizationPercent": 50, "queuedRequests": 4}}


def series(*pools: dict[str, Any]) -> set[str]:
    """What stands on the page of these pools, without the labels that name the pool."""
    store = Store()
    for pool in pools:
        store.upsert(KIND, pool)
    metrics = OperatorMetrics("1", store)
    told = set()
    for family in text_string_to_metric_families(metrics.page().decode()):
        for name, labels, value, *_ in family.samples:
            if (labels.pop("namespace", None), labels.pop("pool", None)) == ("demo", "chat"):
                inside = ",".join(f'{label}="{text}"' for label, text in sorted(labels.items()))
                told.add(f"{name.removeprefix('kvik_operator_pool_')}{f'{{{inside}}}' if inside else ''} {value}")
    return told


def test_conditions_sizes_and_targets_of_a_pool_stand_on_the_page() -> None:
    found = series(make_pool(status=STATUS, replicas=3, slo={"class": "Interactive"}))
    assert found == {
        'info{model_name="chat",slo_class="Interactive"} 1.0',
        'condition{reason="PodsReady",status="True",type="Ready"} 1.0',
        'condition{reason="RollingOut",status="False",type="RolloutComplete"} 1.0',
        'replicas{state="asked"} 3.0',
        'replicas{state="ready"} 2.0',
        "slo_ttft_seconds 0.5",
        "startup_timeout_seconds 1800.0",
        'startup_seconds{phase="scheduled"} 0.0',
        'startup_seconds{phase="warm"} 90.0',
    }


def test_a_scaled_pool_tells_the_numbers_of_its_formula() -> None:
    found = series(make_pool(status=STATUS, replicas=3, slo={"class": "Balanced"}, scaling=SCALING))
    assert found >= {
        "min_replicas 2.0",
        "max_replicas 7.0",
        "target_load_ratio 0.75",
        "full_kv_cache_ratio 0.5",
        "full_queued_requests 4.0",
        "full_ttft_seconds 2.0",
    }


def test_a_class_without_a_target_has_no_target_of_zero() -> None:
    found = series(make_pool(slo={"class": "Batch"}, scaling=SCALING))
    assert not [line for line in found if "ttft" in line]
    assert "full_queued_requests 4.0" in found


def test_a_pool_that_nobody_scales_now_has_no_numbers_of_the_formula() -> None:
    """Otherwise a recording rule would make replicas of a pool that somebody has stopped."""
    stopped = make_pool(replicas=0, scaling=SCALING)
    paused = make_pool(replicas=3, scaling=SCALING)
    paused["metadata"]["annotations"] = {"kvik.dev/paused": "true"}
    for pool in (stopped, paused, make_pool(replicas=3)):
        assert not [line for line in series(pool) if line.startswith(("min_", "max_", "target_", "full_"))]


def test_a_spec_that_cannot_be_read_leaves_the_conditions_that_say_so() -> None:
    degraded = {"type": "Degraded", "status": "True", "reason": "InvalidSpec"}
    pool = make_pool(status={"conditions": [degraded]}, startup={"timeout": "soon"})
    assert series(pool) == {
        'condition{reason="InvalidSpec",status="True",type="Degraded"} 1.0',
        'replicas{state="ready"} 0.0',
    }


def test_a_pool_that_is_being_deleted_and_conditions_of_others_are_not_told() -> None:
    foreign = {"type": "example.com/Audited", "status": "True", "reason": "Yes"}
    assert not [line for line in series(make_pool(status={"conditions": [foreign]})) if line.startswith("condition")]
    ending = make_pool(status=STATUS)
    ending["metadata"]["deletionTimestamp"] = "2026-05-01T12:00:00Z"
    assert series(ending) == set()
