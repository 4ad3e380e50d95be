"""Conditions in the API's shape: written, carried over and found. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal

from kvik_operator.names import ConditionType, Reason

Status = Literal["True", "False", "Unknown"]

MAX_MESSAGE: Final = 1024
"""Characters; longer messages of others (a scheduler's, a registry's) are cut."""


@dataclass(frozen=True, slots=True)
class Condition:
    type: ConditionType
    status: Status
    reason: Reason
    message: str


def to_api(
    conditions: Sequence[Condition], previous: Sequence[Mapping[str, Any]], generation: int, now: datetime
) -> list[dict[str, Any]]:
    """lastTransitionTime moves only when the status does. Conditions of other writers' types stay as they are."""
    ours = [_to_api(condition, find(previous, condition.type), generation, now) for condition in conditions]
    theirs = [dict(condition) for condition in previous if condition.get("type") not in set(ConditionType)]
    order = [condition.get("type") for condition in previous]
    # A new order alone is nothing to write, and somebody else may have another one.
    return sorted([*ours, *theirs], key=lambda one: order.index(one["type"]) if one["type"] in order else len(order))


def find(conditions: Sequence[Mapping[str, Any]], type_: ConditionType) -> Mapping[str, Any] | None:
    return next((condition for condition in conditions if condition.get("type") == type_), None)


def timestamp(time: datetime) -> str:
    """RFC 3339 in UTC to the second, as Kubernetes writes it. `time` must be aware."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_timestamp(text: str) -> datetime:
    """Raises ValueError for anything but an aware RFC 3339 time."""
    time = datetime.fromisoformat(text)
    if time.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone")
    return time


def _to_api(condition: Condition, previous: Mapping[str, Any] | None, generation: int, now: datetime) -> dict[str, Any]:
    same = previous is not None and previous.get("status") == condition.status
    since = previous.get("lastTransitionTime") if previous is not None and same else None
    message = condition.message
    return {
        "type": str(condition.type),
        "status": condition.status,
        "observedGeneration": generation,
        "lastTransitionTime": since or timestamp(now),
        "reason": str(condition.reason),
        "message": message if len(message) <= MAX_MESSAGE else message[: MAX_MESSAGE - 1] + "…",
    }
