"""Who writes a pool's replicas, by driver and by what else scales it."""

from typing import Any

import pytest

from kvik_operator.autoscale.drivers import Means, Scalers, Standing, standing
from kvik_operator.crd.inferencepool import ScalingDriver
from kvik_operator.names import ChildKind, Reason

NATIVE, HPA, KEDA, EXTERNAL = ScalingDriver
AUTOSCALER, SCALED_OBJECT = ChildKind.AUTOSCALER, ChildKind.SCALED_OBJECT
EVERYTHING = Means(metrics_api=True, keda=True, keda_served=True)
NEW: dict[str, Any] = {"metadata": {"name": "chat"}}
GOING = {"metadata": {"name": "chat", "deletionTimestamp": "2026-05-01T12:00:00Z"}}


def says(type_: str, status: str) -> dict[str, Any]:
    return {**NEW, "status": {"conditions": [{"type": type_, "status": status, "reason": "Why", "message": "no"}]}}


SCALES = {AUTOSCALER: says("AbleToScale", "True")}
KEDA_SCALES = {SCALED_OBJECT: says("Ready", "True")}


@pytest.mark.parametrize(
    ("driver", "own", "writes"),
    [(NATIVE, {}, True), (HPA, SCALES, False), (KEDA, KEDA_SCALES, False), (EXTERNAL, {}, False)],
)
def test_only_native_writes_and_each_driver_works_with_exactly_its_own_objects(
    driver: ScalingDriver, own: dict[ChildKind, Any], writes: bool
) -> None:
    assert standing(driver, Scalers(own), EVERYTHING, 60.0) == Standing(writes)


@pytest.mark.parametrize(
    ("driver", "own", "reason"),
    [
        (NATIVE, SCALES, Reason.SWITCHING_DRIVER),
        (NATIVE, {AUTOSCALER: GOING}, Reason.SWITCHING_DRIVER),
        (NATIVE, KEDA_SCALES, Reason.SWITCHING_DRIVER),
        (EXTERNAL, SCALES, Reason.SWITCHING_DRIVER),
        (HPA, {}, Reason.SWITCHING_DRIVER),
        (HPA, {AUTOSCALER: GOING}, Reason.SWITCHING_DRIVER),
        (HPA, {AUTOSCALER: NEW}, Reason.SWITCHING_DRIVER),
        (HPA, KEDA_SCALES, Reason.SWITCHING_DRIVER),
        (KEDA, {SCALED_OBJECT: NEW}, Reason.SWITCHING_DRIVER),
        (KEDA, SCALES, Reason.SWITCHING_DRIVER),
        (HPA, {AUTOSCALER: says("AbleToScale", "False")}, Reason.AUTOSCALER_FAILED),
        (KEDA, {SCALED_OBJECT: says("Ready", "False")}, Reason.AUTOSCALER_FAILED),
        (KEDA, {SCALED_OBJECT: says("Paused", "True")}, Reason.AUTOSCALER_FAILED),
    ],
)
def test_what_is_in_the_way_is_said_and_nothing_is_written(
    driver: ScalingDriver, own: dict[ChildKind, Any], reason: Reason
) -> None:
    """kserve #5530: what had kept a scaler from scaling did not show on the object that it scaled."""
    found = standing(driver, Scalers(own), EVERYTHING, 60.0)
    assert not found.writes
    assert found.trouble is not None
    assert found.trouble[0] is reason


@pytest.mark.parametrize(
    ("driver", "means", "reason", "word"),
    [
        (HPA, Means(keda=True, keda_served=True), Reason.METRICS_API_OFF, "metricsAPI.enabled"),
        (KEDA, Means(metrics_api=True, keda_served=True), Reason.KEDA_OFF, "keda.enabled"),
        (KEDA, Means(metrics_api=True, keda=True), Reason.KEDA_NOT_SERVED, "keda.sh/v1alpha1"),
    ],
)
def test_a_driver_without_its_means_says_what_to_do(
    driver: ScalingDriver, means: Means, reason: Reason, word: str
) -> None:
    found = standing(driver, Scalers({}), means, 60.0)
    assert not found.writes
    assert found.trouble is not None
    assert (found.trouble[0], word in found.trouble[1]) == (reason, True)


@pytest.mark.parametrize("driver", [NATIVE, HPA, KEDA])
def test_nobody_scales_beside_an_autoscaler_of_somebody_elses(driver: ScalingDriver) -> None:
    own = {HPA: SCALES, KEDA: KEDA_SCALES}.get(driver, {})
    found = standing(driver, Scalers(own, ["by-hand"]), EVERYTHING, 60.0)
    assert not found.writes
    assert found.trouble is not None
    assert (found.trouble[0], "by-hand" in found.trouble[1]) == (Reason.CONTESTED, True)


def test_external_welcomes_an_autoscaler_of_ones_own() -> None:
    assert standing(EXTERNAL, Scalers({}, ["by-hand"]), Means(), 0.0) == Standing(False)


def test_an_autoscaler_that_looked_before_there_was_a_decision_has_not_failed() -> None:
    found = standing(HPA, Scalers({AUTOSCALER: says("ScalingActive", "False")}), EVERYTHING, 44.0)
    assert found.trouble == (Reason.OBSERVING_LOAD, "the pool's HorizontalPodAutoscaler: Why: no")


@pytest.mark.parametrize(
    ("driver", "own"),
    [
        (HPA, {AUTOSCALER: says("AbleToScale", "False")}),
        (KEDA, {SCALED_OBJECT: says("Paused", "True")}),
    ],
)
def test_what_no_decision_puts_right_has_failed_from_the_first_look_on(
    driver: ScalingDriver, own: dict[ChildKind, Any]
) -> None:
    found = standing(driver, Scalers(own), EVERYTHING, 0.0)
    assert found.trouble is not None
    assert found.trouble[0] is Reason.AUTOSCALER_FAILED


def test_a_scaled_object_that_is_paused_and_not_ready_is_paused() -> None:
    conditions = [
        {"type": "Ready", "status": "False", "reason": "NoValue"},
        {"type": "Paused", "status": "True", "reason": "ScaledObjectPaused", "message": "by hand"},
    ]
    found = standing(KEDA, Scalers({SCALED_OBJECT: {**NEW, "status": {"conditions": conditions}}}), EVERYTHING, 0.0)
    assert found.trouble == (Reason.AUTOSCALER_FAILED, "the pool's ScaledObject: ScaledObjectPaused: by hand")
