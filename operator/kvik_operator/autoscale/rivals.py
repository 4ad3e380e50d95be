"""HorizontalPodAutoscalers on pools that are not the operator's own: two that scale one pool would fight.

They carry no label of ours, so no watch brings them; the leader lists them once a minute: in all namespaces at once
where all are watched, else in each that has scaled pools.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kvik_operator.errors import ClusterError
from kvik_operator.names import GROUP, KIND, PoolKey

log = logging.getLogger(__name__)

Object = Mapping[str, Any]

LOOK_EVERY_SECONDS: Final = 60.0

Lister = Callable[[str | None], Awaitable[Sequence[Object]]]
"""The HorizontalPodAutoscalers of a namespace or (None) of all; raises ClusterError."""


def target(autoscaler: Object) -> PoolKey | None:
    """The pool that it scales; None: something else."""
    reference = (autoscaler.get("spec") or {}).get("scaleTargetRef") or {}
    group = str(reference.get("apiVersion", "")).rpartition("/")[0]
    if (group, reference.get("kind")) != (GROUP, KIND):
        return None
    return PoolKey(autoscaler["metadata"]["namespace"], str(reference.get("name")))


@dataclass(frozen=True, slots=True)
class Rival:
    """`maker`: the uid of what made it, such as KEDA's ScaledObject; None: a person or a tool did."""

    name: str
    maker: str | None = None


def is_the_operators(scaler: Object) -> bool:
    """A pool's own: owned by it, or by an earlier one of its name."""
    maker = _maker(scaler) or {}
    return (str(maker.get("apiVersion", "")).rpartition("/")[0], maker.get("kind")) == (GROUP, KIND)


def _maker(scaler: Object) -> Object | None:
    owners: Sequence[Object] = scaler["metadata"].get("ownerReferences") or ()
    return next((owner for owner in owners if owner.get("controller")), None)


class Rivals:
    """`everywhere`: the operator may list all namespaces. `clock` gives monotonic seconds."""

    def __init__(self, lister: Lister, clock: Callable[[], float], *, everywhere: bool) -> None:
        self._lister = lister
        self._clock = clock
        self._everywhere = everywhere
        self._found: dict[PoolKey, tuple[Rival, ...]] = {}
        self._looked_at: dict[str | None, float] = {}
        """By namespace; None: all of them."""

    def of(self, key: PoolKey) -> Sequence[Rival]:
        """Those that are known to scale this pool."""
        return self._found.get(key, ())

    async def look(self, namespaces: Iterable[str]) -> None:
        """List where the last look is a minute ago. What cannot be listed now stays as it was last seen."""
        wanted: set[str | None] = set(namespaces)
        if self._everywhere:
            wanted = {None} if wanted else set()
        self._looked_at = {scope: at for scope, at in self._looked_at.items() if scope in wanted}
        self._found = {key: rivals for key, rivals in self._found.items() if wanted & {None, key.namespace}}
        for scope in wanted:
            now = self._clock()
            if now - self._looked_at.get(scope, -LOOK_EVERY_SECONDS) < LOOK_EVERY_SECONDS:
                continue
            self._looked_at[scope] = now
            try:
                listed = await self._lister(scope)
            except ClusterError as error:
                log.warning("autoscalers could not be listed", extra={"error": str(error)})
                continue
            elsewhere = {key: rivals for key, rivals in self._found.items() if scope not in (None, key.namespace)}
            self._found = elsewhere | _by_pool(listed)


def _by_pool(listed: Iterable[Object]) -> dict[PoolKey, tuple[Rival, ...]]:
    found: dict[PoolKey, tuple[Rival, ...]] = {}
    for one in listed:
        key = target(one)
        if key is not None and not is_the_operators(one):
            rival = Rival(str(one["metadata"]["name"]), (_maker(one) or {}).get("uid"))
            found[key] = (*found.get(key, ()), rival)
    return found
