"""Puts scheduler, KV cache and loop together for a loaded runner. No processes, no sockets: tests do the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kvik_engine.config import SLO_CLASSES, EngineConfig
from kvik_engine.core.check import Bounds
from kvik_engine.core.gate import Gate, GoodputGate, QueueGate
from kvik_engine.core.loop import Channel, EngineCore, Serving
from kvik_engine.core.strategy import PRODUCT, Strategy
from kvik_engine.ipc.messages import ModelInfo
from kvik_engine.kv.content_names import ContentNames, NamingCache
from kvik_engine.kv.disk_tier import LowerTier
from kvik_engine.kv.host_pool import HostPool
from kvik_engine.kv.host_tier import HostTier
from kvik_engine.kv.prefix_cache import NoPrefixCache, PrefixCache
from kvik_engine.kv.prefix_hash import BlockHashCache
from kvik_engine.kv.radix import RadixCache
from kvik_engine.kv.sizing import Ledger, size_cache, swap_slots
from kvik_engine.scheduler.limits import Limits
from kvik_engine.scheduler.scheduler import Scheduler
from kvik_engine.scheduler.swap_or_recompute import PreemptionMode, SwapOrRecompute
from kvik_engine.spelling import Spell, unspelled
from kvik_engine.step import HostSpace, KVGroup, ModelFacts, Runner


def size(config: EngineConfig, facts: ModelFacts) -> Ledger:
    """The KV ledger of this model on this device; StartError when the cache or the swap space does not fit.

    Where the host's memory is the device's, the swap space is taken from it before the cache.
    """
    slots = swap_slots(
        swap_space=config.swap_space,
        block_bytes=facts.groups[0].block_bytes,
        host_bytes_total=facts.device_bytes_total if facts.host_bytes_total is None else facts.host_bytes_total,
        host_bytes_used=facts.device_bytes_used if facts.host_bytes_used is None else facts.host_bytes_used,
    )
    of_the_device = config.swap_space if facts.host_bytes_total is None else 0
    return size_cache(
        facts.groups,
        model_context=facts.context_length,
        context_limit=config.max_context_tokens,
        kv_cache_size=config.kv_cache_size,
        memory_fraction=config.memory_fraction,
        device_bytes_total=facts.device_bytes_total - of_the_device,
        device_bytes_used=facts.device_bytes_used,
        step_tokens=config.max_batch_tokens,
        swap_slots=slots,
    )


def build_core(
    config: EngineConfig,
    runner: Runner,
    ledger: Ledger,
    channel: Channel,
    clock: Callable[[], float],
    *,
    overlap: int,
    strategy: Strategy = PRODUCT,
    host: HostSpace | None = None,
    below: LowerTier | None = None,
    spell: Spell = unspelled,
) -> EngineCore:
    """An engine core over a runner whose pool, and swap space if there is any, are allocated as the ledger says."""
    facts = runner.facts
    step_limits = limits(config)
    names = ContentNames(ledger.block_tokens)
    cache = prefix_cache(config, facts.groups)
    if host is not None and config.prefix_cache != "disabled":
        cache = NamingCache(cache, names, ledger.block_tokens)
    kv = strategy.kv(facts, ledger, cache, step_limits.max_batch_tokens)
    offload = None
    if host is not None:
        choice = swap_choice(config, ledger, host)
        offload = HostTier(kv, HostPool(ledger.swap_slots), names, choice, below)
    scheduler = Scheduler(
        step_limits, kv, offload=offload, batching=strategy.batching(), room=strategy.room(), spell=spell
    )
    serving = Serving(
        bounds=Bounds(vocab_size=facts.vocab_size, context=ledger.context),
        overlap=overlap,
    )
    return EngineCore(serving, scheduler, gate(config, scheduler), runner, channel, clock)


def gate(config: EngineConfig, scheduler: Scheduler) -> Gate:
    """What decides whether a request may queue. Goodput has a target (cli.option_rules)."""
    queue = QueueGate(scheduler, config.max_queued_requests)
    match config.admission:
        case "queue":
            return queue
        case "goodput":
            assert config.slo_ttft is not None, "goodput without a target"
            slo_class = SLO_CLASSES.index(config.slo_class)
            return GoodputGate(queue, scheduler, ttft=config.slo_ttft, slo_class=slo_class)
        case name:
            raise AssertionError(f"admission {name!r} is not queue or goodput")


def swap_choice(config: EngineConfig, ledger: Ledger, host: HostSpace) -> SwapOrRecompute:
    """How preempted requests keep their KV."""
    return SwapOrRecompute(
        mode=PreemptionMode(config.preemption_mode),
        threshold_tokens=config.swap_threshold_tokens,
        bytes_per_token=ledger.bytes_per_token,
        copy_bytes_per_second=host.copy_bytes_per_second,
    )


def limits(config: EngineConfig) -> Limits:
    """The step's caps. A full house of decoding rows fits one step (cli.class_defaults)."""
    assert config.max_requests <= config.max_batch_tokens, "each running request needs one token a step"
    return Limits(
        max_requests=config.max_requests,
        max_batch_tokens=config.max_batch_tokens,
        chunked_prefill_tokens=min(config.chunked_prefill_tokens, config.max_batch_tokens),
    )


def prefix_cache(config: EngineConfig, groups: Sequence[KVGroup]) -> PrefixCache:
    """The index that the configuration names."""
    match config.prefix_cache:
        case "radix":
            return RadixCache(groups)
        case "block-hash":
            return BlockHashCache(groups)
        case "disabled":
            return NoPrefixCache(len(groups))
        case name:
            raise AssertionError(f"prefix-cache {name!r} is not radix, block-hash or disabled")


def describe(facts: ModelFacts, ledger: Ledger, *, warm_seconds: float, warm_at: float) -> ModelInfo:
    """What Hello and /info say of the model. `warm_seconds`: since the runner was loaded. `warm_at`: Unix time."""
    warm = facts.startup_seconds.get("warm", 0.0) + warm_seconds
    return ModelInfo(
        vocab_size=facts.vocab_size,
        max_tokens=ledger.context,
        context_length=facts.context_length,
        parameters=facts.parameters,
        dtype=facts.dtype,
        quantization=facts.quantization,
        kv_key_dtype=facts.kv_key_dtype,
        kv_value_dtype=facts.kv_value_dtype,
        device=facts.device,
        attention=facts.attention,
        block_tokens=ledger.block_tokens,
        blocks_total=ledger.blocks,
        bytes_per_token=ledger.bytes_per_token,
        kv_cache_bytes=ledger.allocated_bytes,
        startup_seconds={**facts.startup_seconds, "warm": warm},
        warm_at=warm_at,
    )
