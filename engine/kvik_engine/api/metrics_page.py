"""GET /metrics: the last frame's counters and the API process's own histograms, rendered at most every 250 ms."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kvik_engine import __version__
from kvik_engine.api.drain import Drain
from kvik_engine.api.keys import ApiKeys
from kvik_engine.api.request_metrics import RequestMetrics
from kvik_engine.config import EngineConfig
from kvik_engine.ipc.client import EngineClient
from kvik_engine.ipc.messages import CoreStats

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
RENDER_SECONDS = 0.25


class MetricsPage:
    """Renders for any thread; many scrapes within 250 ms share one rendering."""

    def __init__(
        self,
        config: EngineConfig,
        client: EngineClient,
        metrics: RequestMetrics,
        keys: ApiKeys | None = None,
        clock: Callable[[], float] = time.monotonic,
        *,
        drain: Drain,
    ) -> None:
        self._core = CollectorRegistry()
        self._core.register(_CoreCollector(config, client, keys, drain))
        self._requests = metrics.registry
        self._clock = clock
        self._lock = threading.Lock()
        self._page = b""
        self._rendered_at = float("-inf")

    def render(self) -> bytes:
        with self._lock:
            if self._clock() - self._rendered_at >= RENDER_SECONDS:
                self._page = generate_latest(self._core) + generate_latest(self._requests)
                self._rendered_at = self._clock()
            return self._page


class _CoreCollector(Collector):
    """The core's numbers under our names and under the five of vLLM that routers read; and what keys are in force."""

    def __init__(self, config: EngineConfig, client: EngineClient, keys: ApiKeys | None, drain: Drain) -> None:
        self._config = config
        self._client = client
        self._keys = keys
        self._drain = drain

    def collect(self) -> Iterator[Metric]:
        yield self._value("kvik_core_restarts", "Cores that replaced a dead one.", self._client.core_restarts, True)
        yield self._value("kvik_core_ready", "1 while a warm core is connected.", int(self._client.ready))
        yield self._value("kvik_draining", "1 once the engine is on its way out.", int(self._drain.draining))
        yield from self._model()
        if self._keys is not None:
            yield self._value("kvik_api_keys", "API keys in force.", self._keys.count)
            yield self._value(
                "kvik_api_keys_outdated",
                "1 while the file's present content cannot be used and the keys before it stay in force.",
                int(self._keys.outdated),
            )
        stats = self._client.stats
        if stats is not None:
            yield from self._kv(stats)
            yield from self._work(stats)
            yield from self._for_routers(stats)

    def _model(self) -> Iterator[Metric]:
        model = self._client.model
        if model is None:
            return
        yield self._labelled(
            "kvik_engine_info",
            "Version and what was chosen at start; always 1.",
            {"version": __version__, "dtype": model.dtype, "device": model.device, "attention": model.attention},
        )
        yield self._value("kvik_kv_bytes_per_token", "Bytes of keys and values a token.", model.bytes_per_token)
        yield self._value("kvik_kv_cache_bytes", "Memory allocated for the KV cache.", model.kv_cache_bytes)
        yield self._value("kvik_served_context_tokens", "Longest prompt and answer of a request.", model.max_tokens)
        yield self._labelled(
            "vllm:cache_config_info",
            "The KV cache as routers read it; always 1.",
            {"block_size": str(model.block_tokens), "num_gpu_blocks": str(model.blocks_total)},
        )

    def _kv(self, stats: CoreStats) -> Iterator[Metric]:
        total, owned, cached = stats.kv_blocks_total, stats.kv_blocks_owned, stats.kv_blocks_cached
        yield self._value("kvik_kv_cache_utilization", "Owned blocks of all blocks, 0 to 1.", owned / max(1, total))
        blocks = GaugeMetricFamily("kvik_kv_blocks", "Blocks by state.", labels=["model_name", "state"])
        for state, count in (("owned", owned), ("cached", cached), ("free", total - owned - cached)):
            blocks.add_metric([self._config.model_name, state], count)
        yield blocks
        slots = owned * self._config.block_tokens
        yield self._value(
            "kvik_kv_cache_fill", "Tokens in owned blocks of their room, 0 to 1.", stats.kv_tokens / max(1, slots)
        )
        yield self._value(
            "kvik_prefix_cache_queries_tokens", "Prompt tokens looked up.", stats.prefix_query_tokens_total, True
        )
        yield self._value("kvik_prefix_cache_hits_tokens", "Prompt tokens found.", stats.prefix_hit_tokens_total, True)
        preemptions = CounterMetricFamily(
            "kvik_preemptions", "Preempted requests by mode.", labels=["model_name", "mode"]
        )
        preemptions.add_metric([self._config.model_name, "recompute"], stats.preemptions_recompute_total)
        preemptions.add_metric([self._config.model_name, "swap"], stats.preemptions_swap_total)
        yield preemptions
        if stats.swap_blocks_total:
            yield from self._swap(stats)

    def _swap(self, stats: CoreStats) -> Iterator[Metric]:
        total, owned, cached = stats.swap_blocks_total, stats.swap_blocks_owned, stats.swap_blocks_cached
        blocks = GaugeMetricFamily("kvik_swap_blocks", "Blocks of the swap space.", labels=["model_name", "state"])
        for state, count in (("owned", owned), ("cached", cached), ("free", total - owned - cached)):
            blocks.add_metric([self._config.model_name, state], count)
        yield blocks
        moved = CounterMetricFamily(
            "kvik_swapped_blocks", "Blocks copied to and from the swap space.", labels=["model_name", "direction"]
        )
        moved.add_metric([self._config.model_name, "out"], stats.swapped_out_blocks_total)
        moved.add_metric([self._config.model_name, "in"], stats.swapped_in_blocks_total)
        yield moved
        if self._config.disk_cache is not None:
            yield from self._disk(stats)

    def _disk(self, stats: CoreStats) -> Iterator[Metric]:
        yield self._value("kvik_disk_cache_blocks", "Blocks in the disk cache.", stats.disk_cache_blocks)
        jobs = CounterMetricFamily(
            "kvik_disk_cache_jobs",
            "Blocks written to and read from the disk cache.",
            labels=["model_name", "operation", "outcome"],
        )
        for operation, outcome, count in (
            ("write", "ok", stats.disk_cache_written_total),
            ("write", "error", stats.disk_cache_failed_writes_total),
            ("read", "ok", stats.disk_cache_read_total),
            ("read", "error", stats.disk_cache_failed_reads_total),
        ):
            jobs.add_metric([self._config.model_name, operation, outcome], count)
        yield jobs

    def _work(self, stats: CoreStats) -> Iterator[Metric]:
        yield self._value("kvik_num_requests_running", "Requests that hold a row.", stats.running)
        yield self._value("kvik_num_requests_waiting", "Requests in the queue.", stats.waiting)
        yield self._value(
            "kvik_requests_refused", "Requests refused: no place in the queue, or too late.", stats.refused_total, True
        )
        yield self._value("kvik_waiting_prompt_tokens", "Prompt tokens not computed yet.", stats.waiting_prompt_tokens)
        if stats.prefill_tokens_per_second is not None:
            yield self._value(
                "kvik_prefill_tokens_per_second", "Smoothed rate of prefill.", stats.prefill_tokens_per_second
            )
        yield self._value("kvik_prompt_tokens", "Prompt tokens of admitted requests.", stats.prompt_tokens_total, True)
        yield self._value("kvik_generation_tokens", "Generated tokens.", stats.generation_tokens_total, True)
        yield self._value("kvik_engine_steps", "Steps.", stats.step, True)
        yield self._value("kvik_engine_step_seconds", "Seconds inside steps.", stats.step_seconds_total, True)

    def _for_routers(self, stats: CoreStats) -> Iterator[Metric]:
        utilization = stats.kv_blocks_owned / max(1, stats.kv_blocks_total)
        yield self._value("vllm:num_requests_running", "As kvik_num_requests_running.", stats.running)
        yield self._value("vllm:num_requests_waiting", "As kvik_num_requests_waiting.", stats.waiting)
        yield self._value("vllm:kv_cache_usage_perc", "As kvik_kv_cache_utilization: 0 to 1.", utilization)
        yield self._labelled(
            "vllm:lora_requests_info",
            "No adapters are served; always 0.",
            {"max_lora": "0", "running_lora_adapters": "", "waiting_lora_adapters": ""},
            value=0,
        )

    def _value(self, name: str, text: str, value: float, counter: bool = False) -> Metric:
        kind = CounterMetricFamily if counter else GaugeMetricFamily
        family = kind(name, text, labels=["model_name"])
        family.add_metric([self._config.model_name], value)
        return family

    def _labelled(self, name: str, text: str, labels: dict[str, str], value: float = 1) -> Metric:
        family = GaugeMetricFamily(name, text, labels=["model_name", *labels])
        family.add_metric([self._config.model_name, *labels.values()], value)
        return family
