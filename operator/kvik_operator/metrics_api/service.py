"""The metrics APIs of one replica as a whole: what listens, what answers, and what keeps both reachable."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from kvik_operator.metrics_api.access import Access
from kvik_operator.metrics_api.documents import VERSIONS
from kvik_operator.metrics_api.keeper import Backend, Keeper, RegistrationApi, RegistrationMeter
from kvik_operator.metrics_api.listener import Listener
from kvik_operator.metrics_api.server import MetricsApi
from kvik_operator.metrics_api.source import Board, Source, Store


@dataclass(frozen=True, slots=True)
class MetricsApiOptions:
    """`groups`: API groups that are served. `service` and `secret` are in `namespace`, where the operator runs."""

    groups: tuple[str, ...]
    host: str
    port: int
    service: str
    secret: str
    namespace: str

    @property
    def backend(self) -> Backend:
        names = tuple(f"{version}.{group}" for group in self.groups for version in VERSIONS[group])
        return Backend(self.service, self.namespace, names)


class ApiClient(RegistrationApi, Protocol):
    async def allowed(self, spec: Mapping[str, Any]) -> bool: ...

    async def pools_matching(self, namespace: str, selector: str) -> Sequence[str]: ...


class MetricsApiService:
    """`clock` is that of the readings."""

    def __init__(
        self,
        options: MetricsApiOptions,
        *,
        store: Store,
        board: Board,
        meter: RegistrationMeter,
        may_write: Callable[[], bool],
        clock: Callable[[], float],
        utcnow: Callable[[], datetime],
    ) -> None:
        self._options = options
        self._store = store
        self._board = board
        self._meter = meter
        self._may_write = may_write
        self._clock = clock
        self._utcnow = utcnow
        self._keeper: Keeper | None = None

    def not_ready(self) -> tuple[str, ...]:
        """From any thread, in words: why nothing is served yet; empty: it is, or waits for a leader that serves it."""
        keeper = self._keeper
        problem = keeper.upkeep.problem() if keeper is not None else "the metrics API has not started"
        return () if problem is None else (problem,)

    async def run(self, client: ApiClient) -> None:
        """Until cancelled."""
        options = self._options
        source = Source(self._store, self._board, client.pools_matching, self._clock, self._utcnow)
        access = Access(client.allowed, self._clock)
        api = MetricsApi(source, access, options.groups, lambda: self._keeper.proxy() if self._keeper else None)
        async with Listener(api.application(), options.host, options.port) as listener:
            self._keeper = Keeper(client, listener, options.backend, self._meter, self._may_write, self._utcnow)
            await self._keeper.upkeep.run()
