"""The real engine core in this process: scheduler, KV manager and runner of the product over the embedded model.

Its clock is the CPU time of this process, which computes in one thread, plus waiting for requests that have not arrived
yet. So a busy machine makes a run longer, and its figures hardly worse.
"""

import dataclasses
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from kvik_engine.cli.sources import DEMO, default_cache_dir, local_model
from kvik_engine.config import EngineConfig
from kvik_engine.core.build import build_core, size
from kvik_engine.core.loop import EngineCore
from kvik_engine.core.strategy import PRODUCT, Strategy
from kvik_engine.ipc.core_channel import Gone
from kvik_engine.ipc.messages import CoreStats, Frame, Submit, ToCore
from kvik_engine.params import BeamParams, SamplingParams
from kvik_engine.runner.runner import ModelRunner
from kvik_engine.weights.model_files import find_model_files

BLOCK_TOKENS = 16
MAX_REQUESTS = 64


class CpuClock:
    """Seconds of CPU time of this process since it was made, and those that were skipped."""

    def __init__(self) -> None:
        self._origin = time.process_time()
        self._skipped = 0.0

    def __call__(self) -> float:
        return time.process_time() - self._origin + self._skipped

    def skip_to(self, moment: float) -> None:
        """Nothing happens until then."""
        self._skipped += max(0.0, moment - self())


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A request and when it comes, in seconds from the start of the run."""

    prompt: Sequence[int]
    output_tokens: int
    at: float = 0.0
    slo_class: int = 1
    tenant: str = ""
    choices: int = 1
    beam: BeamParams | None = None
    """Search with `choices` beams instead of sampling so many choices."""


@dataclass(slots=True)
class Served:
    """What became of a request: when it came, and when each of its tokens did."""

    arrival: Arrival
    token_times: list[float] = field(default_factory=list)
    cached_tokens: int = 0
    done: bool = False

    @property
    def ttft(self) -> float:
        return self.token_times[0] - self.arrival.at

    @property
    def latency(self) -> float:
        return self.token_times[-1] - self.arrival.at

    @property
    def gaps(self) -> list[float]:
        return [after - before for before, after in zip(self.token_times, self.token_times[1:], strict=False)]


class _Channel:
    """The core's end of a socket, in memory."""

    def __init__(self) -> None:
        self.inbox: list[ToCore | Gone] = []
        self.frames: list[Frame] = []

    def poll(self, timeout: float) -> list[ToCore | Gone]:
        received, self.inbox = self.inbox, []
        return received

    def send(self, stats: CoreStats, news: Mapping[int, Frame]) -> None:
        self.frames.extend(news.values())


class Engine:
    """One core with a cold cache. `serve` may be called again: then the cache is warm."""

    def __init__(self, runner: ModelRunner, config: EngineConfig, strategy: Strategy = PRODUCT) -> None:
        self.clock = CpuClock()
        self._channel = _Channel()
        ledger = size(config, runner.facts)
        runner.allocate(ledger.blocks)
        host = runner.allocate_host(ledger.swap_slots) if ledger.swap_slots else None
        self.core: EngineCore = build_core(
            config, runner, ledger, self._channel, self.clock, overlap=0, strategy=strategy, host=host
        )
        self._served: list[Served] = []

    def serve(
        self,
        arrivals: Sequence[Arrival],
        *,
        after_step: Callable[[EngineCore], None] = lambda _: None,
        until: Callable[[Sequence[Served]], bool] = lambda _: False,
    ) -> list[Served]:
        """All requests to their end, or until `until` holds. Times of arrivals count from now."""
        start, first = self.clock(), len(self._served)
        waiting = sorted(
            (dataclasses.replace(arrival, at=arrival.at + start) for arrival in arrivals), key=lambda a: a.at
        )
        while (waiting or self.core.busy) and not until(self._served[first:]):
            if waiting and not self.core.busy:
                self.clock.skip_to(waiting[0].at)
            while waiting and waiting[0].at <= self.clock():
                self._submit(waiting.pop(0))
            self.core.step()
            self._listen()
            after_step(self.core)
        return self._served[first:]

    def _submit(self, arrival: Arrival) -> None:
        params = SamplingParams(
            max_tokens=arrival.output_tokens,
            seed=0,
            temperature=0.0 if arrival.choices == 1 or arrival.beam else 1.0,
            n=arrival.choices,
            beam=arrival.beam,
        )
        number = len(self._served)
        self._served.append(Served(arrival))
        self._channel.inbox.append(
            Submit(1, number, list(arrival.prompt), params, arrival.slo_class, 0, b"", arrival.at, arrival.tenant)
        )

    def _listen(self) -> None:
        frames, self._channel.frames = self._channel.frames, []
        for frame in frames:
            if frame.refused:
                raise RuntimeError(f"the engine refused a request: {frame.refused[0].message}")
            for output in frame.outputs:
                served = self._served[output.request_id]
                served.token_times += [self.clock()] * len(output.tokens)
                served.cached_tokens = max(served.cached_tokens, output.cached_tokens)
                served.done = served.done or output.finish is not None


@cache
def demo_file() -> Path:
    """The embedded model, fetched once."""
    gguf = find_model_files(local_model(DEMO, default_cache_dir(os.environ)).path).gguf
    assert gguf is not None, "the embedded model is a GGUF"
    return gguf


def demo_config(*, blocks: int, **more: Any) -> EngineConfig:
    """A configuration of the embedded model with exactly so many usable blocks; nothing is written anywhere."""
    folder = tempfile.gettempdir()
    settings: dict[str, Any] = {
        "source": DEMO,
        "model_path": str(demo_file()),
        "cache_dir": folder,
        "run_dir": folder,
        "model_name": DEMO,
        "device": "cpu",
        "threads": 1,
        "max_requests": MAX_REQUESTS,
        "max_batch_tokens": 512,
        "chunked_prefill_tokens": 128,
        "max_queued_requests": 10_000,
        "block_tokens": BLOCK_TOKENS,
        **more,
    }
    (group, *others) = demo_runner().facts.groups
    assert not others
    return EngineConfig(kv_cache_size=(blocks + 1) * group.block_bytes, **settings)


@cache
def demo_runner() -> ModelRunner:
    """The embedded model, loaded once in the dtype that suits this CPU; its pool is allocated anew by each Engine."""
    from kvik_engine.runner.load import load_runner

    folder = tempfile.gettempdir()
    config = EngineConfig(
        source=DEMO,
        model_path=str(demo_file()),
        cache_dir=folder,
        run_dir=folder,
        model_name=DEMO,
        device="cpu",
        threads=1,
        max_requests=MAX_REQUESTS,
        max_batch_tokens=512,
        chunked_prefill_tokens=512,
        max_queued_requests=0,
        block_tokens=BLOCK_TOKENS,
    )
    return load_runner(config, lambda _: None)
