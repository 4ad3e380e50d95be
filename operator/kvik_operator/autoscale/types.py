"""What the scale flow passes from step to step. All times are monotonic seconds unless they are datetimes."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Final

from kvik_operator.crd.effective import EffectiveScaling

PERIOD_SECONDS: Final = 5.0
"""Between two decisions about a pool."""


class EngineState(StrEnum):
    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"


class Term(StrEnum):
    """The terms of a pod's load; BOUNDS where minReplicas, maxReplicas or the growth limit decided instead."""

    KV = "kv"
    QUEUE = "queue"
    TTFT = "ttft"
    BOUNDS = "bounds"


@dataclass(frozen=True, slots=True)
class LoadReading:
    """One `GET /load` (docs/contract.md). None: the engine did not say."""

    at: float
    state: EngineState
    kv_blocks_used: int
    kv_blocks_total: int
    running: int
    waiting: int
    refused_total: int
    waiting_prompt_tokens: int
    prefill_tokens_per_second: float | None
    warm_since: str | None
    ttft_p90_seconds: float | None = None
    """Of the last 60 s, as measured. It lags, so it is shown and served, and never decides."""
    api_keys_outdated: bool | None = None
    """Whether the engine goes on with earlier API keys, because it cannot use those of the Secret."""

    @property
    def warm(self) -> bool:
        """Serving: it takes requests, and its figures mean something."""
        return self.state is EngineState.READY and self.warm_since is not None


@dataclass(frozen=True, slots=True)
class ScalePolicy:
    """The pool's own numbers. `kv_full` and `target` are fractions 0-1, `ttft_full` and `stabilization` seconds."""

    min_replicas: int
    max_replicas: int
    target: float
    kv_full: float
    queue_full: int
    ttft_full: float | None
    stabilization: float

    @classmethod
    def of(cls, scaling: EffectiveScaling) -> "ScalePolicy":
        full = scaling.pod_full_at
        return cls(
            min_replicas=scaling.min_replicas,
            max_replicas=scaling.max_replicas,
            target=scaling.target_load,
            kv_full=full.kv_utilization,
            queue_full=full.queued_requests,
            ttft_full=None if full.ttft is None else full.ttft / timedelta(seconds=1),
            stabilization=scaling.scale_down_stabilization / timedelta(seconds=1),
        )


@dataclass(frozen=True, slots=True)
class PodSample:
    """One pod of the pool that is not being deleted, with its last three readings at most, newest first.

    `expected`: it is, or once was, warm or Ready, so that silence means missing data and not an idle new pod.
    """

    uid: str
    expected: bool
    readings: tuple[LoadReading, ...] = ()


@dataclass(frozen=True, slots=True)
class PodLoad:
    """Load of one pod as a fraction of a full one, by term; a term without data is left out."""

    terms: Mapping[Term, float]

    @property
    def value(self) -> float:
        return max(self.terms.values(), default=0.0)

    @property
    def winner(self) -> Term:
        return max(self.terms, key=lambda term: self.terms[term], default=Term.KV)


@dataclass(frozen=True, slots=True)
class PoolLoad:
    """The pods' loads added up, twice: `up` on the lower of the last two readings with silence as 0, `down` on the
    higher with silence as the target. `fresh` pods were heard, `silent` ones should have been."""

    up: float
    down: float
    fresh: int
    silent: int
    winner: Term


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do about one pool now. `desired` None: hold. `formula` says in words how it came about."""

    current: int
    desired: int | None
    winner: Term
    load: float
    formula: str
    window_whole: bool
    """Whether a whole stabilisation window has been seen, without which nothing scales down."""
    blind: bool = False
    """There was no data: only the bounds may have moved `desired`."""
