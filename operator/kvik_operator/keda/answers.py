"""What KEDA is told of a pool: the decided number of replicas, or why there is none. Missing is an error, never 0."""

from collections.abc import Callable, Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol

from kvik_operator.autoscale.published import published
from kvik_operator.names import PoolKey
from kvik_operator.reconcile.types import ScalingReport

Object = Mapping[str, Any]


class Why(StrEnum):
    """Why there is no answer, as gRPC names it."""

    NOT_FOUND = "NOT_FOUND"
    FAILED_PRECONDITION = "FAILED_PRECONDITION"
    UNAVAILABLE = "UNAVAILABLE"


class Refusal(Exception):
    """KEDA holds the replicas as they are, and says so on its ScaledObject."""

    def __init__(self, why: Why, message: str) -> None:
        super().__init__(message)
        self.why = why


class Store(Protocol):
    def pool(self, key: PoolKey) -> Object | None: ...


class Board(Protocol):
    def scaling(self, key: PoolKey, pool_uid: str) -> ScalingReport | None: ...


class Answers:
    """`utcnow` is that of the decisions."""

    def __init__(self, store: Store, board: Board, utcnow: Callable[[], datetime]) -> None:
        self._store = store
        self._board = board
        self._utcnow = utcnow

    def desired_replicas(self, key: PoolKey) -> int:
        """Raises Refusal."""
        pool = self._store.pool(key)
        if pool is None or "deletionTimestamp" in pool["metadata"]:
            raise Refusal(Why.NOT_FOUND, f"there is no InferencePool {key}")
        if pool["spec"].get("replicas") == 0:
            raise Refusal(Why.FAILED_PRECONDITION, f"the InferencePool {key} was stopped: its replicas are 0")
        found = published(self._board.scaling(key, str(pool["metadata"]["uid"])), self._utcnow())
        if found is None:
            raise Refusal(Why.UNAVAILABLE, f"there is no fresh decision on the InferencePool {key}")
        return found.replicas
