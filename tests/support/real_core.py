"""The engine core over the real model in memory: the product's scheduler, KV manager and runner, without processes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kvik_engine.config import EngineConfig
from kvik_engine.core.build import build_core
from kvik_engine.ipc.messages import FinishReason, Submit
from kvik_engine.kv.check import check_books
from kvik_engine.kv.sizing import Ledger, size_cache
from kvik_engine.params import SamplingParams
from kvik_engine.runner.runner import ModelRunner
from kvik_engine.scheduler.swap_or_recompute import PreemptionMode
from kvik_engine.spelling import Spell, unspelled
from tests.support.engine_harness import Heard, MemoryChannel


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a run varies."""

    at_once: int
    """Requests submitted together; the next ones follow when these have ended, unless they join."""
    join_after: int | None = None
    """Steps after which the next request joins those that run, so many at most; None: only when all have ended."""
    chunk: int
    """chunked_prefill_tokens, and max_batch_tokens too, so that no prompt is ever computed in larger pieces."""
    prefix_cache: str = "radix"
    overlap: int = 0
    blocks: int = 1024
    swap_slots: int = 0
    preemption_mode: PreemptionMode = PreemptionMode.SWAP


def engine_config(model: Path, *, dtype: str, device: str = "cpu", max_requests: int = 16) -> EngineConfig:
    """For the runner and the core alone: nothing is written anywhere."""
    return EngineConfig(
        source=str(model),
        model_path=str(model),
        cache_dir=str(model.parent),
        model_name="demo",
        device=device,
        dtype=dtype,
        max_requests=max_requests,
        max_batch_tokens=512,
        chunked_prefill_tokens=512,
        max_queued_requests=256,
        run_dir=str(model.parent),
    )


class RealCore:
    """One core over a loaded runner whose pool is allocated anew."""

    def __init__(self, runner: ModelRunner, config: EngineConfig, settings: Settings, spell: Spell = unspelled) -> None:
        self.settings = settings
        config = EngineConfig(
            **{
                **{name: getattr(config, name) for name in config.__slots__},
                "chunked_prefill_tokens": settings.chunk,
                "max_batch_tokens": max(settings.chunk, config.max_requests),
                "prefix_cache": settings.prefix_cache,
                "preemption_mode": settings.preemption_mode.value,
            }
        )
        self.channel = MemoryChannel()
        ledger = replace(allocate(runner, settings.blocks), swap_slots=settings.swap_slots)
        host = runner.allocate_host(settings.swap_slots) if settings.swap_slots else None
        self.core = build_core(
            config, runner, ledger, self.channel, time.monotonic, overlap=settings.overlap, host=host, spell=spell
        )
        self._next_id = 0

    def generate(self, prompts: Sequence[Sequence[int]], params: SamplingParams) -> list[Heard]:
        """The first choice of each, in the order of the prompts."""
        return [choices[0] for choices in self.generate_choices(prompts, params)]

    def generate_choices(self, prompts: Sequence[Sequence[int]], params: SamplingParams) -> list[list[Heard]]:
        """All choices of each, in the order of the prompts."""
        heard: dict[tuple[int, int], Heard] = {}
        waiting = list(enumerate(prompts, start=self._next_id))
        first, self._next_id = self._next_id, self._next_id + len(prompts)
        steps = 0
        while waiting or self.core.busy:
            for request_id, prompt in waiting[: self._arriving(steps)]:
                self.channel.inbox.append(Submit(1, request_id, list(prompt), params, 1, 0, b"", float(request_id)))
                waiting = waiting[1:]
            self.core.step()
            steps += 1
            check_books(self.core.scheduler.kv)
            self.core.scheduler.offload.check(idle=False)
            self._listen(heard)
        self.core.check_idle()
        return [[heard[request_id, choice] for choice in range(params.n)] for request_id in range(first, self._next_id)]

    def _arriving(self, steps: int) -> int:
        """How many requests come now."""
        at_once, join_after = self.settings.at_once, self.settings.join_after
        if join_after is None:
            return 0 if self.core.busy else at_once
        return 1 if steps % join_after == 0 and self.core.scheduler.unfinished < at_once else 0

    def _listen(self, heard: dict[tuple[int, int], Heard]) -> None:
        frames, self.channel.frames = self.channel.frames, []
        for frame in frames:
            assert not frame.refused, frame.refused
            for output in frame.outputs:
                one = heard.setdefault((output.request_id, output.choice), Heard())
                one.tokens.extend(token.token for token in output.tokens)
                tops = [token.top for token in output.tokens if len(token.top) > 1]
                one.margins.extend(best.logprob - second.logprob for best, second, *_ in tops)
                one.finish = output.finish
                one.stop_tokens += output.stop_tokens
                one.logprob += sum(token.logprob or 0.0 for token in output.tokens) + (output.stop_logprob or 0.0)
                one.cached_tokens = output.cached_tokens
                assert output.finish in (None, FinishReason.LENGTH, FinishReason.STOP), output


def allocate(runner: ModelRunner, blocks: int) -> Ledger:
    """A pool of exactly so many blocks."""
    facts = runner.facts
    block_bytes = facts.groups[0].block_bytes
    ledger = size_cache(
        facts.groups,
        model_context=facts.context_length,
        context_limit=None,
        kv_cache_size=(blocks + 1) * block_bytes,
        memory_fraction=1.0,
        device_bytes_total=facts.device_bytes_total,
        device_bytes_used=0,
        step_tokens=512,
    )
    assert ledger.blocks == blocks
    runner.allocate(blocks)
    return ledger
