"""One simulated engine pod: continuous batching with chunked prefill over a bounded KV cache, without its tokens.

What happens between two events (a prompt is computed, an answer ends, a request comes) goes at constant rates, so a pod
jumps from event to event, and an hour of it takes a fraction of a second. Pure.
"""

import heapq
import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

TTFT_WINDOW_SECONDS = 60.0
WATERMARK = 0.01
"""Fraction of the KV cache that admission leaves free, as the engine's scheduler does."""


@dataclass(frozen=True, slots=True)
class PodModel:
    """What one pod can do: `yardstick.demo_pod` makes one of what was measured."""

    prefill_tokens_per_second: float
    step_seconds: float
    """Of a step that decodes, without its rows."""
    row_seconds: float
    """What each decoding row adds to a step."""
    chunk_tokens: int
    """Prompt tokens that a step takes in while rows decode."""
    kv_tokens: int
    max_requests: int
    max_queued: int
    startup_seconds: float

    def slowed(self, factor: float) -> "PodModel":
        """The same pod on a device that is slower by `factor`."""
        return replace(
            self,
            prefill_tokens_per_second=self.prefill_tokens_per_second / factor,
            step_seconds=self.step_seconds * factor,
            row_seconds=self.row_seconds * factor,
        )


@dataclass(slots=True, eq=False)
class Request:
    """What a client asks for, and what became of it. Times are seconds of the simulation."""

    at: float
    prompt_tokens: int
    output_tokens: int
    patience: float = math.inf
    """Seconds after which the client leaves, if its prompt still waits in the queue and no token has come."""
    first_token_at: float | None = None
    ended_at: float | None = None
    refused: bool = False

    def has_left(self, now: float) -> bool:
        return self.first_token_at is None and now >= self.at + self.patience

    @property
    def ttft(self) -> float | None:
        """None: it never got a token."""
        return None if self.first_token_at is None else self.first_token_at - self.at


@dataclass(frozen=True, slots=True)
class PodReport:
    """What a pod says of itself: the figures of `GET /load`, and the mean TTFT that its metrics page would give."""

    kv_tokens_used: int
    kv_tokens_total: int
    running: int
    waiting: int
    refused_total: int
    waiting_prompt_tokens: int
    prefill_tokens_per_second: float | None
    mean_ttft: float | None
    """Over the last minute; None: no answer began in it."""

    @property
    def kv(self) -> float:
        return self.kv_tokens_used / self.kv_tokens_total


@dataclass(slots=True, eq=False)
class _Row:
    """A request that was admitted. `due` counts in decode steps of the pod."""

    request: Request
    prompt_tokens: int
    """To compute: also the tokens that a preempted request had already got."""
    output_tokens: int
    begun: float = 0.0
    due: float = 0.0

    def __lt__(self, other: "_Row") -> bool:
        return self.due < other.due


@dataclass(slots=True, eq=False)
class SimulatedPod:
    """Takes requests and advances in time. `now` never goes back."""

    uid: str
    model: PodModel
    now: float
    _queue: deque[_Row] = field(default_factory=deque)
    _prefilling: deque[_Row] = field(default_factory=deque)
    _left_of_head: float = 0.0
    """Prompt tokens of the first of `_prefilling` that are not computed."""
    _decoding: list[_Row] = field(default_factory=list)
    """A heap by `due`."""
    _steps: float = 0.0
    """Decode steps so far."""
    _held: float = 0.0
    """Sum over decoding rows of prompt tokens less the step at which they began: their KV, but for steps x rows."""
    _reserved: int = 0
    """KV tokens of prompts that are being computed."""
    _refused: int = 0
    _first_tokens: deque[tuple[float, float]] = field(default_factory=deque)
    """(when, TTFT) of the last minute."""
    _prefill_rate: float | None = None
    _impatient: bool = False

    @property
    def idle(self) -> bool:
        return not (self._queue or self._prefilling or self._decoding)

    @property
    def in_flight(self) -> int:
        return len(self._queue) + len(self._prefilling) + len(self._decoding)

    def submit(self, request: Request) -> None:
        """Takes a request at its own time, or refuses it (429)."""
        self.advance(request.at)
        if len(self._queue) >= self.model.max_queued:
            self._refused += 1
            request.refused = True
            return
        self._impatient |= request.patience < math.inf
        self._queue.append(_Row(request, request.prompt_tokens, request.output_tokens))
        self._admit()

    def advance(self, now: float) -> None:
        """Lives until `now`."""
        while self.now < now:
            if self._impatient:
                self._drop_departed()
            self._admit()
            prefill, decode = self._rates()
            if prefill == decode == 0.0:
                self.now = now
                return
            self._live(min(now - self.now, self._until_event(prefill, decode)), prefill, decode)
            self._settle()

    def report(self) -> PodReport:
        while self._first_tokens and self._first_tokens[0][0] < self.now - TTFT_WINDOW_SECONDS:
            self._first_tokens.popleft()
        ttfts = [ttft for _, ttft in self._first_tokens]
        return PodReport(
            kv_tokens_used=min(round(self._kv_used()), self.model.kv_tokens),
            kv_tokens_total=self.model.kv_tokens,
            running=len(self._prefilling) + len(self._decoding),
            waiting=len(self._queue),
            refused_total=self._refused,
            waiting_prompt_tokens=round(self._prompt_tokens_left()),
            prefill_tokens_per_second=self._prefill_rate,
            mean_ttft=sum(ttfts) / len(ttfts) if ttfts else None,
        )

    def _rates(self) -> tuple[float, float]:
        """Prompt tokens and decode steps a second, now."""
        rows, model = len(self._decoding), self.model
        step = model.step_seconds + rows * model.row_seconds
        if not self._prefilling:
            return 0.0, 1 / step if rows else 0.0
        if not rows:
            return model.prefill_tokens_per_second, 0.0
        step += model.chunk_tokens / model.prefill_tokens_per_second
        return model.chunk_tokens / step, 1 / step

    def _until_event(self, prefill: float, decode: float) -> float:
        times = [self._left_of_head / prefill] if self._prefilling else []
        if self._decoding and decode:
            times.append((self._decoding[0].due - self._steps) / decode)
            if len(self._decoding) > 1:
                room = self.model.kv_tokens - self._kv_used()
                times.append(max(0.0, room) / (decode * len(self._decoding)) + 1e-6)
        return max(0.0, min(times))

    def _live(self, seconds: float, prefill: float, decode: float) -> None:
        self.now += seconds
        self._steps += seconds * decode
        if self._prefilling:
            self._left_of_head -= seconds * prefill
            self._prefill_rate = prefill

    def _settle(self) -> None:
        """What ended, began or found no room by now."""
        if self._prefilling and self._left_of_head <= 1e-6:
            self._begin(self._prefilling.popleft())
            self._left_of_head = self._prefilling[0].prompt_tokens if self._prefilling else 0.0
        while self._decoding and self._decoding[0].due <= self._steps + 1e-9:
            row = heapq.heappop(self._decoding)
            self._held -= row.prompt_tokens - row.begun
            row.request.ended_at = self.now
        while self._kv_used() > self.model.kv_tokens and len(self._decoding) > 1:
            self._preempt_newest()

    def _begin(self, row: _Row) -> None:
        request = row.request
        if request.first_token_at is None:
            request.first_token_at = self.now
            self._first_tokens.append((self.now, self.now - request.at))
        row.begun, row.due = self._steps, self._steps + row.output_tokens - 1
        self._reserved -= row.prompt_tokens
        self._held += row.prompt_tokens - row.begun
        heapq.heappush(self._decoding, row)

    def _preempt_newest(self) -> None:
        """By recompute: its prompt and what it has got come back as one prompt, first in the queue."""
        newest = max(self._decoding, key=lambda row: row.begun)
        self._decoding.remove(newest)
        heapq.heapify(self._decoding)
        self._held -= newest.prompt_tokens - newest.begun
        done = int(self._steps - newest.begun) + 1
        self._queue.appendleft(_Row(newest.request, newest.prompt_tokens + done, max(1, newest.output_tokens - done)))

    def _admit(self) -> None:
        room = self.model.kv_tokens * (1 - WATERMARK) - self._kv_used()
        while self._queue and len(self._prefilling) + len(self._decoding) < self.model.max_requests:
            if self._queue[0].prompt_tokens > room and (self._prefilling or self._decoding):
                return
            row = self._queue.popleft()
            room -= row.prompt_tokens
            self._reserved += row.prompt_tokens
            if not self._prefilling:
                self._left_of_head = row.prompt_tokens
            self._prefilling.append(row)

    def _drop_departed(self) -> None:
        gone = [row for row in self._queue if row.request.has_left(self.now)]
        for row in gone:
            self._queue.remove(row)
            row.request.ended_at = self.now

    def _kv_used(self) -> float:
        """Tokens: prompts are reserved whole, answers grow by a token a step."""
        return self._held + self._steps * len(self._decoding) + self._reserved

    def _prompt_tokens_left(self) -> float:
        waiting = sum(row.prompt_tokens for row in self._queue)
        return waiting + self._left_of_head + sum(row.prompt_tokens for row in _but_first(self._prefilling))


def _but_first(rows: deque[_Row]) -> Iterator[_Row]:
    return (row for n, row in enumerate(rows) if n)
