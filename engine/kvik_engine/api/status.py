"""What the process tells of itself: /live, /ready, /load, /info. Reads only what any thread may read."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvik_engine import __version__
from kvik_engine.api.drain import Drain
from kvik_engine.api.keys import ApiKeys
from kvik_engine.api.request_metrics import RequestMetrics
from kvik_engine.config import EngineConfig
from kvik_engine.ipc.client import EngineClient
from kvik_engine.ipc.heartbeat import HEARTBEAT_FILE, HeartbeatReader

LOOP_STALL_SECONDS = 30.0
"""An event loop that did not tick for so long is stuck."""


@dataclass
class Status:
    """Built once; `warm` and `tick` are called by the event loop, all else by any thread."""

    config: EngineConfig
    client: EngineClient
    drain: Drain
    metrics: RequestMetrics
    keys: ApiKeys | None = None
    model_fetched: str | None = None
    clock: Callable[[], float] = time.monotonic
    wall_clock: Callable[[], float] = time.time
    warm_at: float | None = None
    """Unix time when the first core was ready."""
    ticked_at: float | None = None
    heartbeat: HeartbeatReader = field(init=False)

    def __post_init__(self) -> None:
        self.heartbeat = HeartbeatReader(Path(self.config.run_dir) / HEARTBEAT_FILE)

    def tick(self) -> None:
        """The event loop moves."""
        self.ticked_at = self.clock()

    def warm(self) -> None:
        """A core said Hello; the first time counts."""
        if self.warm_at is None:
            self.warm_at = self.wall_clock()

    @property
    def ready(self) -> bool:
        """Whether new requests should come here. A SIGTERM alone does not change it: see api/drain."""
        return self.client.ready and self.drain.ready and not self._stalled

    @property
    def live(self) -> bool:
        """Whether this container moves: neither core nor event loop is stuck. A dead core is launch's to restart."""
        stuck = self.ticked_at is not None and self.clock() - self.ticked_at > LOOP_STALL_SECONDS
        return not stuck and not self._stalled

    @property
    def _stalled(self) -> bool:
        beat = self.heartbeat.read()
        return beat is not None and beat.stalled(self.clock())

    def load(self) -> dict[str, Any]:
        """GET /load of docs/contract.md."""
        stats = self.client.stats
        return {
            "schema": 1,
            "state": self._state,
            "step": 0 if stats is None else stats.step,
            "kv_blocks_used": 0 if stats is None else stats.kv_blocks_owned,
            "kv_blocks_total": 0 if stats is None else stats.kv_blocks_total,
            "running": 0 if stats is None else stats.running,
            "waiting": 0 if stats is None else stats.waiting,
            "refused_total": 0 if stats is None else stats.refused_total,
            "waiting_prompt_tokens": 0 if stats is None else stats.waiting_prompt_tokens,
            "prefill_tokens_per_second": None if stats is None else stats.prefill_tokens_per_second,
            "ttft_p90_seconds": self.metrics.ttft_p90(),
            "warm_since": _rfc3339(self.warm_at),
            "api_keys_outdated": None if self.keys is None else self.keys.outdated,
        }

    @property
    def _state(self) -> str:
        if self.drain.draining:
            return "draining"
        return "ready" if self.client.ready else "starting"

    def info(self) -> dict[str, Any] | None:
        """GET /info of docs/contract.md; None until a core was warm."""
        model, config = self.client.model, self.config
        if model is None:
            return None
        return {
            "schema": 1,
            "version": __version__,
            "model": {
                "name": config.model_name,
                "revision": config.model_revision,
                "digest": config.model_digest,
                "parameters": model.parameters,
                "context": model.max_tokens,
            },
            "dtype": model.dtype,
            "quantization": model.quantization,
            "device": model.device,
            "attention": model.attention,
            "kv": {
                "key_dtype": model.kv_key_dtype,
                "value_dtype": model.kv_value_dtype,
                "bytes_per_token": model.bytes_per_token,
                "block_tokens": model.block_tokens,
                "blocks_total": model.blocks_total,
                "max_tokens": model.blocks_total * model.block_tokens,
            },
            "startup": {"model_fetched": self.model_fetched, **_startup(model.startup_seconds, model.warm_at)},
            "effective": {
                "max_requests": config.max_requests,
                "max_batch_tokens": config.max_batch_tokens,
                "chunked_prefill_tokens": config.chunked_prefill_tokens,
                "max_queued_requests": config.max_queued_requests,
                "admission": config.admission,
                "swap_space": config.swap_space,
                "disk_cache_size": config.disk_cache_size,
                "api_keys": config.api_keys_file is not None,
            },
        }


def _startup(seconds: dict[str, float], warm_at: float) -> dict[str, str | None]:
    """When each phase of the present core ended, counted back from the moment it was warm."""
    ended: dict[str, str | None] = dict.fromkeys(("weights_loaded", "compiled", "warm"))
    at = warm_at
    for phase in ("warm", "compiled", "weights_loaded"):
        if phase in seconds:
            ended[phase] = _rfc3339(at)
            at -= seconds[phase]
    return ended


def _rfc3339(unix: float | None) -> str | None:
    return None if unix is None else dt.datetime.fromtimestamp(unix, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
