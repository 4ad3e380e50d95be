from datetime import timedelta

import pytest

from kvik_operator.crd.conditions import MAX_MESSAGE, Condition, find, parse_timestamp, timestamp, to_api
from kvik_operator.names import ConditionType, Reason
from tests.support.pools import NOW

READY = Condition(ConditionType.READY, "True", Reason.PODS_READY, "1 of 1 pod ready")
NOT_READY = Condition(ConditionType.READY, "False", Reason.STARTING, "waiting for a node")
LATER = NOW + timedelta(minutes=5)


def test_a_condition_keeps_its_time_while_its_status_stays() -> None:
    first = to_api([READY], [], 1, NOW)
    again = to_api([READY], first, 2, LATER)
    assert again[0]["lastTransitionTime"] == timestamp(NOW)
    assert again[0]["observedGeneration"] == 2


def test_a_condition_gets_a_new_time_when_its_status_changes() -> None:
    assert to_api([NOT_READY], to_api([READY], [], 1, NOW), 1, LATER)[0]["lastTransitionTime"] == timestamp(LATER)


def test_conditions_of_other_writers_stay() -> None:
    """A cost controller, a policy engine: a merge patch replaces the whole list."""
    theirs = {"type": "example.com/Costly", "status": "True", "reason": "Gpu", "message": "", "lastTransitionTime": "t"}
    written = to_api([READY], [theirs, *to_api([NOT_READY], [], 1, NOW)], 1, LATER)
    assert [condition["type"] for condition in written] == ["example.com/Costly", "Ready"]
    assert written[0] == theirs
    assert to_api([READY], [theirs], 1, NOW)[1]["type"] == "Ready"


def test_a_long_message_is_cut() -> None:
    long = Condition(ConditionType.READY, "False", Reason.UNSCHEDULABLE, "x" * 5000)
    message = to_api([long], [], 1, NOW)[0]["message"]
    assert len(message) == MAX_MESSAGE
    assert message.endswith("…")


def test_a_condition_is_found_by_type() -> None:
    conditions = to_api([READY], [], 1, NOW)
    assert find(conditions, ConditionType.READY) == conditions[0]
    assert find(conditions, ConditionType.DEGRADED) is None


def test_times_survive_a_round_trip() -> None:
    assert parse_timestamp(timestamp(NOW)) == NOW


def test_a_time_without_a_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="no time zone"):
        parse_timestamp("2026-05-01T12:00:00")
