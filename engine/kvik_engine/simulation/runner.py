"""The runner of a simulation: takes plans, lets their cost pass on the virtual clock, and ends answers on time.

A request's `seed` is its number in the trace, and so tells how long its answer is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from kvik_engine.simulation.device import Device
from kvik_engine.step import GroupKind, HostSpace, KVGroup, ModelFacts, Row, RowWork, Sample, StepPlan, StepResult

VOCABULARY = 1 << 31
END_TOKEN = 0
"""Ends an answer that is shorter than its max_tokens."""


@dataclass(slots=True)
class VirtualClock:
    """Seconds since the simulation began. It moves only when somebody moves it."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now

    def advance_to(self, time: float) -> None:
        self.now = max(self.now, time)


class SimulatedRunner:
    """Implements step.Runner. Steps run one after the other; `collect` waits for the end of the oldest."""

    def __init__(self, device: Device, block_tokens: int, output_tokens: Sequence[int], clock: VirtualClock) -> None:
        """`output_tokens` is how long the answer to each request of the trace is."""
        self._device = device
        self._block_tokens = block_tokens
        self._output_tokens = output_tokens
        self._clock = clock
        self._launched: deque[tuple[StepPlan, float, float]] = deque()
        self._free_at = 0.0
        self._rows: dict[Row, tuple[int, int]] = {}
        """Number in the trace and prompt length of the request in each row."""

    @property
    def facts(self) -> ModelFacts:
        return ModelFacts(
            vocab_size=VOCABULARY,
            context_length=self._device.context,
            parameters=0,
            dtype="simulated",
            quantization="none",
            kv_key_dtype="simulated",
            kv_value_dtype="simulated",
            device=self._device.name,
            attention="simulated",
            groups=(KVGroup(GroupKind.FULL, (0,), self._block_tokens, self._block_bytes),),
            device_bytes_total=self._device.memory_bytes,
            device_bytes_used=self._device.used_bytes,
            host_bytes_total=self._device.host_bytes,
            host_bytes_used=None if self._device.host_bytes is None else 0,
        )

    @property
    def _block_bytes(self) -> int:
        return self._block_tokens * self._device.kv_bytes_per_token

    def allocate(self, blocks: int) -> int:
        return (blocks + 1) * self._block_bytes

    def allocate_host(self, slots: int) -> HostSpace:
        """Without memory: a simulation moves no KV."""
        return HostSpace(slots * self._block_bytes, self._device.copy_bytes_per_second, memoryview(b""))

    def launch(self, plan: StepPlan) -> None:
        started = max(self._clock.now, self._free_at)
        seconds = self._device.seconds(plan, self._block_bytes)
        self._free_at = started + seconds
        self._launched.append((plan, seconds, self._free_at))

    def collect(self) -> StepResult:
        plan, seconds, done_at = self._launched.popleft()
        for row in plan.ended:
            del self._rows[row]
        for start in plan.started:
            self._rows[start.row] = (start.params.seed, start.prompt_length)
        for fork in plan.forks:
            self._rows[fork.row] = self._rows[fork.source]
        samples = [self._sample(row, work) for work in plan.work for row in work.sampled_rows]
        self._clock.advance_to(done_at)
        return StepResult(plan.step, tuple(samples), seconds)

    def _sample(self, row: Row, work: RowWork) -> Sample:
        number, prompt_length = self._rows[row]
        position = work.start + work.length - prompt_length
        if position + 1 >= self._output_tokens[number]:
            return Sample(row, END_TOKEN)
        return Sample(row, (number * 8191 + position) % (VOCABULARY - 1) + 1)
