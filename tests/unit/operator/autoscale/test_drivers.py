"""Who writes a pool's replicas, by driver and by what else scales it."""

from typing import Any

import pytest

from kvik_operator.autoscale.drivers import Standing, standing
from kvik_operator.crd.inferencepool import ScalingDriver
from kvik_operator.names import Reason

NATIVE, HPA, EXTERNAL = ScalingDriver.NATIVE, ScalingDriver.HPA, ScalingDriver.EXTERNAL
WORKS = {"status": {"conditions": [{"type": "AbleToScale", "status": "True"}]}, "metadata": {"name": "chat"}}
GOING = {**WORKS, "metadata": {"name": "chat", "deletionTimestamp": "2026-05-01T12:00:00Z"}}
NEW = {"metadata": {"name": "chat"}}
FAILS = {
    "status": {"conditions": [{"type": "AbleToScale", "status": "False", "reason": "FailedGetScale", "message": "no"}]},
    "metadata": {"name": "chat"},
}


@pytest.mark.parametrize(
    ("driver", "autoscaler", "writes"), [(NATIVE, None, True), (HPA, WORKS, False), (EXTERNAL, None, False)]
)
def test_only_native_writes_and_each_driver_works_with_exactly_its_own_objects(
    driver: ScalingDriver, autoscaler: dict[str, Any] | None, writes: bool
) -> None:
    assert standing(driver, autoscaler, None, metrics_api=True, published_for=60.0) == Standing(writes)


@pytest.mark.parametrize(
    ("driver", "autoscaler", "rival", "metrics_api", "reason"),
    [
        (NATIVE, WORKS, None, True, Reason.SWITCHING_DRIVER),
        (NATIVE, GOING, None, True, Reason.SWITCHING_DRIVER),
        (EXTERNAL, WORKS, None, True, Reason.SWITCHING_DRIVER),
        (HPA, None, None, True, Reason.SWITCHING_DRIVER),
        (HPA, GOING, None, True, Reason.SWITCHING_DRIVER),
        (HPA, NEW, None, True, Reason.SWITCHING_DRIVER),
        (HPA, WORKS, None, False, Reason.METRICS_API_OFF),
        (HPA, FAILS, None, True, Reason.AUTOSCALER_FAILED),
        (NATIVE, None, "by-hand", True, Reason.CONTESTED),
        (HPA, WORKS, "by-hand", True, Reason.CONTESTED),
    ],
)
def test_what_is_in_the_way_is_said_and_nothing_is_written(
    driver: ScalingDriver, autoscaler: dict[str, Any] | None, rival: str | None, metrics_api: bool, reason: Reason
) -> None:
    found = standing(driver, autoscaler, rival, metrics_api=metrics_api, published_for=60.0)
    assert not found.writes
    assert found.trouble is not None
    assert found.trouble[0] is reason


def test_external_welcomes_an_autoscaler_of_ones_own() -> None:
    assert standing(EXTERNAL, None, "by-hand", metrics_api=False, published_for=0.0) == Standing(False)


def test_an_autoscaler_that_looked_before_there_was_a_decision_has_not_failed() -> None:
    found = standing(HPA, FAILS, None, metrics_api=True, published_for=44.0)
    assert found.trouble == (Reason.OBSERVING_LOAD, "the pool's HorizontalPodAutoscaler: FailedGetScale: no")
