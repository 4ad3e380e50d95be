"""The scaling history that the pool's own status keeps, so that a new operator process goes on with it. Pure."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from kvik_operator.reconcile.types import ScaleStep

KEPT: Final = 5


def read_history(status: Mapping[str, Any]) -> tuple[ScaleStep, ...]:
    """Newest first; an entry that cannot be read ends it."""
    steps: list[ScaleStep] = []
    for entry in ((status.get("scaling") or {}).get("history") or ())[:KEPT]:
        try:
            steps.append(
                ScaleStep(
                    time=datetime.fromisoformat(entry["time"]),
                    from_replicas=int(entry["from"]),
                    to_replicas=int(entry["to"]),
                    reason=str(entry["reason"]),
                    winner=str(entry["winner"]),
                    load_percent=int(entry["loadPercent"]),
                    formula=str(entry["formula"]),
                )
            )
        except (KeyError, TypeError, ValueError):
            break
    return tuple(steps)
