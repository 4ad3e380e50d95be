"""The life of one request: submitted to the core, read choice by choice, released whatever happens."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import TracebackType

from kvik_engine.api.choice import ChoiceText, Delta
from kvik_engine.api.ranking import best
from kvik_engine.api.request_metrics import RequestMetrics
from kvik_engine.api.sampling_fields import Sampling
from kvik_engine.errors import KvikError
from kvik_engine.ipc.client import EngineClient
from kvik_engine.ipc.messages import FinishReason, Output
from kvik_engine.ipc.stream import RequestStream
from kvik_engine.params import SamplingParams
from kvik_engine.text.token_bytes import TokenBytes


class ChoiceFailed(KvikError):
    """The core could not compute a choice; the others of the request are given up too."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt of a request, with the parameters fitted to its length."""

    tokens: list[int]
    params: SamplingParams
    param: str
    """The request's field that it came from, for errors."""


@dataclass(slots=True)
class _Timing:
    """When tokens of a choice were seen."""

    first: float | None = None
    last: float = 0.0
    tokens: int = 0


class Generation:
    """`async with Generation(...)` submits all prompts and returns once the core queued them; then call `next`.

    Leaving the block, also by an error or because the client went away, aborts what still runs.
    """

    def __init__(
        self,
        client: EngineClient,
        table: TokenBytes,
        metrics: RequestMetrics,
        prompts: Sequence[Prompt],
        sampling: Sampling,
        *,
        arrived_at: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._metrics = metrics
        self._prompts = prompts
        self._sampling = sampling
        self._arrived_at = arrived_at
        self._clock = clock
        self._wake = asyncio.Event()
        self._streams: list[RequestStream] = []
        self._n = sampling.params.n
        count = len(prompts) * self._n
        self._choices = [ChoiceText(i, table, sampling.stop) for i in range(count)]
        self._timings = [_Timing() for _ in range(count)]
        self._unfinished = set(range(count))
        self._slowest_first_token = 0.0
        self._cached = [0] * len(prompts)
        """Prompt tokens that came from the prefix cache, by prompt."""

    async def __aenter__(self) -> Generation:
        submits = [
            asyncio.ensure_future(
                self._client.submit(
                    prompt=prompt.tokens,
                    params=prompt.params,
                    slo_class=self._sampling.slo_class,
                    priority=self._sampling.priority,
                    wake=self._wake,
                    salt=self._sampling.salt,
                    tenant=self._sampling.tenant,
                    param=prompt.param,
                )
            )
            for prompt in self._prompts
        ]
        try:
            self._streams = await asyncio.gather(*submits)
        except BaseException:
            await self._give_up(submits)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for stream in self._streams:
            self._client.release(stream)
        left = error is None or isinstance(error, (asyncio.CancelledError, ConnectionError))
        reason = FinishReason.ABORTED if left else FinishReason.ERROR
        for _ in self._unfinished:
            self._metrics.choice_ended(reason, None)
        if not self._unfinished:
            self._metrics.request_ended(
                self._clock() - self._arrived_at,
                slowest_first_token=self._slowest_first_token,
                slo_class=self._sampling.slo_class,
            )

    async def next(self, timeout: float | None = None) -> list[Delta] | None:
        """What became showable; [] when nothing did within `timeout` seconds; None when all choices have ended.

        Raises EngineDead when the core died, ChoiceFailed when it could not compute a choice.
        """
        while self._unfinished:
            self._wake.clear()
            deltas = [delta for number, stream in enumerate(self._streams) for delta in self._read(number, stream)]
            if deltas:
                return deltas
            try:
                async with asyncio.timeout(timeout):
                    await self._wake.wait()
            except TimeoutError:
                return []
        return None

    async def all(self) -> list[Delta]:
        """Every delta of the choices that the client gets, in order of arrival and with the client's numbers."""
        deltas: list[Delta] = []
        while (news := await self.next()) is not None:
            deltas += news
        numbers = {run: number for number, run in enumerate(self._returned())}
        return [replace(delta, index=numbers[delta.index]) for delta in deltas if delta.index in numbers]

    def _returned(self) -> list[int]:
        """The choices that the client gets, of each prompt the best ones first."""
        wanted, penalty = self._sampling.returned, self._sampling.length_penalty
        if penalty is None:
            return list(range(len(self._choices)))
        scored = [(choice.logprob, choice.completion_tokens) for choice in self._choices]
        return [
            first + place
            for first in range(0, len(scored), self._n)
            for place in best(scored[first : first + self._n], wanted, penalty)
        ]

    @property
    def prompt_tokens(self) -> int:
        return sum(len(p.tokens) for p in self._prompts)

    @property
    def cached_tokens(self) -> int:
        return sum(self._cached)

    @property
    def completion_tokens(self) -> int:
        """Of every choice that was computed, also of those that the client does not get."""
        return sum(c.completion_tokens for c in self._choices)

    def _read(self, number: int, stream: RequestStream) -> list[Delta]:
        deltas = []
        for output in stream.take():
            index = number * self._n + output.choice
            if index not in self._unfinished:
                continue
            if output.error is not None or output.finish in (FinishReason.ERROR, FinishReason.ABORTED):
                raise ChoiceFailed(output.error or "The engine gave up this request.")
            self._cached[number] = max(self._cached[number], output.cached_tokens)
            delta, stopped = self._choices[index].take(output)
            if stopped:
                stream.stop_choice(output.choice, self._choices[index].completion_tokens)
            self._measure(index, output, delta.finish)
            if delta.text or delta.finish is not None or (delta.tokens and self._sampling.logprobs is not None):
                deltas.append(delta)
        return deltas

    def _measure(self, index: int, output: Output, finish: FinishReason | None) -> None:
        timing, now = self._timings[index], self._clock()
        count = len(output.tokens) + output.stop_tokens
        if count and timing.first is None:
            timing.first = now
            if index % self._n == 0:  # the choices of a prompt begin together
                self._metrics.first_token(now - self._arrived_at)
                self._slowest_first_token = max(self._slowest_first_token, now - self._arrived_at)
        elif count:
            self._metrics.token_gap(now - timing.last, count)
        timing.last = now
        timing.tokens += count
        if finish is not None:
            self._unfinished.discard(index)
            spread = timing.tokens - 1
            per_token = (now - timing.first) / spread if spread > 0 and timing.first is not None else None
            self._metrics.choice_ended(finish, per_token)

    async def _give_up(self, submits: Sequence[asyncio.Future[RequestStream]]) -> None:
        for submit in submits:
            submit.cancel()
        for result in await asyncio.gather(*submits, return_exceptions=True):
            if isinstance(result, RequestStream):
                self._client.release(result)
