"""All clients of a simulation: the core's channel on one side, a trace and a notebook on the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kvik_engine.config import SLO_CLASSES
from kvik_engine.ipc.core_channel import Gone
from kvik_engine.ipc.messages import CoreStats, Frame, Submit, ToCore
from kvik_engine.params import SamplingParams
from kvik_engine.simulation.runner import END_TOKEN, VirtualClock
from kvik_engine.simulation.trace import TraceRequest, prompt_of

_API = 1


@dataclass(slots=True)
class Record:
    """What a client would know of its request. Times are those of the virtual clock."""

    request: TraceRequest
    first: float | None = None
    last: float | None = None
    tokens: int = 0
    cached_tokens: int = 0
    refused: str | None = None
    finished: bool = False

    @property
    def ttft(self) -> float | None:
        return None if self.first is None else self.first - self.request.arrival

    @property
    def tpot(self) -> float | None:
        """Mean seconds per token after the first; None with less than two tokens."""
        if self.first is None or self.last is None or self.tokens < 2:
            return None
        return (self.last - self.first) / (self.tokens - 1)

    @property
    def e2e(self) -> float | None:
        return self.last - self.request.arrival if self.finished and self.last is not None else None


@dataclass(slots=True)
class Pool:
    """The KV pool over the steps: sums, of which the report takes means."""

    steps: int = 0
    utilization: float = 0.0
    filled_steps: int = 0
    fill: float = 0.0
    running: int = 0
    most_running: int = 0
    last: CoreStats | None = field(default=None)


class SimulatedClients:
    """Implements the loop's Channel. While the core is idle, the clock jumps to the next arrival."""

    def __init__(self, trace: Sequence[TraceRequest], block_tokens: int, clock: VirtualClock) -> None:
        self.records = [Record(request) for request in trace]
        self.pool = Pool()
        self._block_tokens = block_tokens
        self._clock = clock
        self._next = 0

    @property
    def all_sent(self) -> bool:
        return self._next == len(self.records)

    def poll(self, timeout: float) -> list[ToCore | Gone]:
        """Requests that have arrived."""
        if timeout and not self.all_sent:
            self._clock.advance_to(self.records[self._next].request.arrival)
        arrived: list[ToCore | Gone] = []
        while not self.all_sent and self.records[self._next].request.arrival <= self._clock.now:
            arrived.append(_submit(self._next, self.records[self._next].request))
            self._next += 1
        return arrived

    def send(self, stats: CoreStats, news: Mapping[int, Frame]) -> None:
        self._note_pool(stats)
        for frame in news.values():
            for refusal in frame.refused:
                self.records[refusal.request_id].refused = refusal.code
            for output in frame.outputs:
                record = self.records[output.request_id]
                if record.first is None:
                    record.first = self._clock.now
                    record.cached_tokens = output.cached_tokens
                record.last = self._clock.now
                record.tokens += len(output.tokens) + output.stop_tokens
                record.finished = output.finish is not None

    def _note_pool(self, stats: CoreStats) -> None:
        pool = self.pool
        pool.last = stats
        pool.steps += 1
        pool.running += stats.running
        pool.most_running = max(pool.most_running, stats.running)
        pool.utilization += stats.kv_blocks_owned / stats.kv_blocks_total
        if stats.kv_blocks_owned:
            pool.filled_steps += 1
            pool.fill += stats.kv_tokens / (stats.kv_blocks_owned * self._block_tokens)


def _submit(number: int, request: TraceRequest) -> Submit:
    stop = (END_TOKEN,)
    return Submit(
        api_id=_API,
        request_id=number,
        prompt=prompt_of(number, request),
        params=SamplingParams(max_tokens=request.allowed_tokens, seed=number, temperature=0.0, stop_token_ids=stop),
        slo_class=SLO_CLASSES.index(request.slo_class),
        priority=request.priority,
        salt=request.tenant.encode(),
        arrival=request.arrival,
        tenant=request.tenant,
    )
