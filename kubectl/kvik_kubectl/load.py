"""What the pods of a pool say of their load, and what the operator makes of it (docs/scaling.md). Pure.

The formula stands here a second time, since the plugin shares no code with the operator; tests/contract holds them
together. Two things the operator sees and one look does not: refusals since its last reading, and the reading before.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kvik_kubectl.text import duration_seconds

MOST_FULL: Final = 1000.0
DOWN_MARGIN: Final = 1 / 3
GROWTH_SECONDS: Final = 15
SHRINK_PERIODS: Final = 3


@dataclass(frozen=True, slots=True)
class PodLoad:
    """One pod, as its `GET /load` tells (docs/contract.md, section 4)."""

    pod: str
    state: str
    """`starting`, `ready`, `draining`, or why there are no figures."""
    figures: Mapping[str, Any] | None
    """None: the pod could not be read."""

    @property
    def warm(self) -> bool:
        return self.state == "ready" and self.figures is not None and self.figures.get("warm_since") is not None

    @property
    def kv(self) -> float | None:
        """Fraction 0-1 of the blocks that are owned; None: not said."""
        used, total = self._number("kv_blocks_used"), self._number("kv_blocks_total")
        return used / total if used is not None and total else None

    @property
    def running(self) -> float | None:
        return self._number("running")

    @property
    def waiting(self) -> float | None:
        return self._number("waiting")

    @property
    def prefill_rate(self) -> float | None:
        """Prompt tokens a second; None: not measured yet."""
        return self._number("prefill_tokens_per_second")

    @property
    def measured_ttft(self) -> float | None:
        """P90 of the last minute, in seconds; None: no answer began in it."""
        return self._number("ttft_p90_seconds")

    @property
    def predicted_ttft(self) -> float | None:
        """Seconds until a prompt that comes now would be computed; None: no prefill rate was measured yet."""
        waiting, rate = self._number("waiting_prompt_tokens"), self.prefill_rate
        if not waiting:
            return None if waiting is None else 0.0
        return waiting / rate if rate else None

    def _number(self, key: str) -> float | None:
        value = (self.figures or {}).get(key)
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


@dataclass(frozen=True, slots=True)
class Full:
    """When a pod counts as full, and how full pods should be: `status.effective.scaling`."""

    kv: float
    queue: int
    ttft: float | None
    target: float
    least: int
    most: int
    window: float
    """Seconds of `scaleDownStabilization`."""

    @classmethod
    def of(cls, pool: Mapping[str, Any]) -> "Full | None":
        """None: the pool does not scale, or its operator has not looked at it yet."""
        told = ((pool.get("status") or {}).get("effective") or {}).get("scaling")
        if not told:
            return None
        full = told["podFullAt"]
        return cls(
            kv=full["kvUtilizationPercent"] / 100,
            queue=full["queuedRequests"],
            ttft=None if full.get("ttft") is None else duration_seconds(full["ttft"]),
            target=told["targetLoadPercent"] / 100,
            least=told["minReplicas"],
            most=told["maxReplicas"],
            window=duration_seconds(told["scaleDownStabilization"]),
        )

    def least_load_for_more(self, replicas: int) -> float:
        """Above this load of all pods together there should be more of them."""
        return replicas * self.target

    def most_load_for_fewer(self, replicas: int) -> float:
        """Up to this load one pod fewer would do."""
        return (replicas - 1) * self.target * (1 - DOWN_MARGIN)

    def step(self, replicas: int) -> int:
        """How many pods may go in a third of the window."""
        return max(1, replicas // 10)


def terms(pod: PodLoad, full: Full) -> dict[str, float]:
    """By name (`kv`, `queue`, `ttft`), as fractions of a full pod; a term without data is left out."""
    found: dict[str, float] = {}
    if pod.kv is not None:
        found["kv"] = pod.kv / full.kv
    if pod.waiting is not None:
        found["queue"] = pod.waiting / full.queue
    if full.ttft is not None and pod.predicted_ttft is not None:
        found["ttft"] = pod.predicted_ttft / full.ttft
    return {name: min(load, MOST_FULL) for name, load in found.items()}


def winner(found: Mapping[str, float]) -> str | None:
    """The term that decides; None: there is none."""
    return max(found, key=lambda name: found[name], default=None)


def total(pods: Sequence[PodLoad], full: Full) -> float:
    """Of the pods that are warm and could be read, in full pods."""
    return sum(max(terms(pod, full).values(), default=0.0) for pod in pods if pod.warm)
