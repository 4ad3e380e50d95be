"""A core in which all is real but the arithmetic: scheduler, KV manager, the runner's rows and inputs, encoded frames.

What a step of it takes is what the host does for a step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from unittest.mock import patch

import msgspec
import torch
from torch import Tensor

from kvik_engine.attention.backend import AttentionBatch, LayerAttention, StepAttention
from kvik_engine.attention.kv_cache import KVCache, LayerCache
from kvik_engine.config import EngineConfig
from kvik_engine.core.build import build_core, size
from kvik_engine.core.garbage import collect_between_steps
from kvik_engine.core.loop import EngineCore
from kvik_engine.ipc.core_channel import Gone
from kvik_engine.ipc.framing import pack
from kvik_engine.ipc.messages import CoreStats, Frame, Submit, ToCore
from kvik_engine.models.config import ModelConfig
from kvik_engine.params import SamplingParams
from kvik_engine.runner.runner import ModelRunner, RunnerLimits
from kvik_engine.sampling.batch import Samples, SamplingBatch
from kvik_engine.step import GroupKind, KVGroup, ModelFacts

VOCABULARY = 1000
TOKEN = 7
CONTEXT = 16384
BLOCK = 16
MODEL = ModelConfig(
    architecture="llama",
    vocab_size=VOCABULARY,
    hidden_size=1,
    intermediate_size=1,
    layers=1,
    heads=1,
    kv_heads=1,
    head_dim=1,
    context_length=CONTEXT,
    norm_eps=1e-5,
    rope_theta=10000.0,
    tie_embeddings=True,
)
OUTPUT = 512
"""Tokens of each answer: more than are ever waited for."""
PARAMS = SamplingParams(max_tokens=OUTPUT, seed=1, temperature=0.0)


class NoModel:
    """Hidden states and logits of no meaning."""

    config = MODEL
    parameters = 1

    def forward(self, token_ids: Tensor, positions: Tensor, attention: StepAttention) -> Tensor:
        return torch.zeros((len(token_ids), 1))

    def logits(self, hidden: Tensor) -> Tensor:
        return hidden


class NoAttention:
    """Plans nothing."""

    name = "none"
    attends_latents = False
    quantised: tuple[str, ...] = ()

    def plan(self, batch: AttentionBatch, cache: KVCache) -> LayerAttention:
        return self

    def write(self, key: Tensor, value: Tensor | None, cache: LayerCache) -> None:
        raise NotImplementedError

    def attend(self, query: Tensor, cache: LayerCache, *, scale: float) -> Tensor:
        raise NotImplementedError


def same_token(logits: Tensor, batch: SamplingBatch) -> Samples:
    rows = len(batch.rows)
    return Samples(torch.full((rows,), TOKEN), torch.ones(rows, dtype=torch.bool), None, None, None)


class EncodingChannel:
    """Requests from a list; frames are encoded as for the socket, and their bytes counted."""

    def __init__(self) -> None:
        self.inbox: list[ToCore | Gone] = []
        self.sent = 0
        self._encoder = msgspec.msgpack.Encoder()

    def poll(self, timeout: float) -> list[ToCore | Gone]:
        received, self.inbox = self.inbox, []
        return received

    def send(self, stats: CoreStats, news: Mapping[int, Frame]) -> None:
        self.sent += sum(len(pack(self._encoder, frame)) for frame in news.values())


class IdleCore:
    """An engine core whose model and sampler do nothing. Use within `with no_sampler():`."""

    def __init__(self, *, rows: int, blocks: int, queued: int = 1) -> None:
        block_bytes = 2 * BLOCK * 4
        config = EngineConfig(
            source="none",
            model_path="none",
            cache_dir="none",
            model_name="none",
            run_dir="none",
            max_requests=rows,
            max_batch_tokens=max(4096, rows),
            chunked_prefill_tokens=512,
            max_queued_requests=queued + rows,
            kv_cache_size=(blocks + 1) * block_bytes,
        )
        facts = ModelFacts(
            vocab_size=VOCABULARY,
            context_length=CONTEXT,
            parameters=1,
            dtype="fp32",
            quantization="none",
            kv_key_dtype="fp32",
            kv_value_dtype="fp32",
            device="cpu",
            attention="none",
            groups=(KVGroup(GroupKind.FULL, (0,), BLOCK, block_bytes),),
            device_bytes_total=1 << 40,
            device_bytes_used=0,
        )
        limits = RunnerLimits(max_requests=rows, max_tokens=CONTEXT, block_tokens=BLOCK)
        self.runner = ModelRunner(NoModel(), NoAttention(), limits, facts)
        self.channel = EncodingChannel()
        self._now = 0.0
        ledger = size(config, facts)
        self.runner.allocate(ledger.blocks)
        self.core: EngineCore = build_core(config, self.runner, ledger, self.channel, lambda: self._now, overlap=0)
        self._requests = 0
        collect_between_steps()

    def submit(self, count: int, prompt_tokens: int) -> None:
        """So many requests with prompts that have nothing in common."""
        for _ in range(count):
            self._requests += 1
            prompt = [(self._requests * 31 + n * 7) % VOCABULARY for n in range(prompt_tokens)]
            self.channel.inbox.append(Submit(1, self._requests, prompt, PARAMS, 1, 0, b"", float(self._requests)))

    def step(self) -> None:
        self._now += 0.01
        self.core.step()

    def until_all_decode(self, rows: int) -> None:
        """Steps until so many rows have computed their prompts."""
        scheduler = self.core.scheduler
        self.step()
        while sum(branch.decoding for request in scheduler.running for branch in request.branches) < rows:
            assert scheduler.unfinished >= rows, "requests were refused, or they ended"
            self.step()


@contextmanager
def no_sampler() -> Iterator[None]:
    """Within it the runner's sampler always says TOKEN."""
    with patch("kvik_engine.runner.runner.sample", same_token):
        yield
