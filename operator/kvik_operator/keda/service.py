"""The external scaler of one replica as a whole: what listens, what answers, and what keeps its certificates."""

import asyncio
from collections.abc import Callable
from datetime import datetime

from kvik_operator.keda.answers import Answers, Board, Store
from kvik_operator.keda.keeper import CertificateMeter, Keeper, SecretApi
from kvik_operator.keda.listener import Listener
from kvik_operator.keda.options import KedaOptions
from kvik_operator.keda.scaler import ExternalScaler


class ScalerService:
    """`utcnow` is that of the decisions."""

    def __init__(
        self,
        options: KedaOptions,
        *,
        store: Store,
        board: Board,
        meter: CertificateMeter,
        may_write: Callable[[], bool],
        utcnow: Callable[[], datetime],
    ) -> None:
        self._options = options
        self._answers = Answers(store, board, utcnow)
        self._meter = meter
        self._may_write = may_write
        self._utcnow = utcnow
        self._keeper: Keeper | None = None

    def not_ready(self) -> tuple[str, ...]:
        """From any thread, in words: why nothing is served yet; empty: it is, or waits for a leader that serves it."""
        keeper = self._keeper
        problem = keeper.upkeep.problem() if keeper is not None else "the scaler for KEDA has not started"
        return () if problem is None else (problem,)

    async def run(self, ours: SecretApi, theirs: SecretApi) -> None:
        """Until cancelled. `ours` and `theirs`: the operator's Secret and KEDA's."""
        options = self._options
        async with Listener(ExternalScaler(self._answers, asyncio.sleep), options.host, options.port) as listener:
            self._keeper = Keeper(
                ours, theirs, listener, options.service_host, self._meter, self._may_write, self._utcnow
            )
            await self._keeper.upkeep.run()
