"""What a quantised KV cache costs the model at hand: how much the perplexity of a text rises over it.

Measured at the start, on some text and for some seconds at most, in the same chunks over a full cache and over the
quantised one. The rise is of the differences, token by token, so that it is known far better than either perplexity;
how well, their spread says.
"""

from __future__ import annotations

import logging
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kvik_engine.attention.backend import AttentionBackend, AttentionBatch, StepAttention
from kvik_engine.attention.kv_cache import KVCache
from kvik_engine.attention.kv_layout import KVFormats
from kvik_engine.errors import StartError, StartReason
from kvik_engine.models.kv_groups import kv_layout
from kvik_engine.models.registry import Model
from kvik_engine.runner.dtypes import DTYPES

log = logging.getLogger(__name__)

CHUNK_TOKENS = 128
MOST_TOKENS = 1024
"""Of the text that are read."""
MOST_SECONDS = 20.0
"""No chunk is begun later than that."""
_BLOCK_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Rise:
    """Of perplexity, in percent."""

    percent: float
    uncertainty: float
    """Two standard errors of `percent`."""
    tokens: int
    """Over so many tokens."""

    @classmethod
    def of(cls, differences: Sequence[float]) -> Rise:
        """`differences` of the tokens' losses, in nats; at least two. One that is no number is the worst there is."""
        if not all(map(math.isfinite, differences)):
            return cls(math.inf, 0.0, len(differences))
        mean = statistics.fmean(differences)
        error = statistics.stdev(differences, mean) / math.sqrt(len(differences))
        return cls((math.exp(mean) - 1) * 100, math.exp(mean) * 2 * error * 100, len(differences))

    def surely_above(self, percent: float) -> bool:
        return self.percent - self.uncertainty > percent


def largest_rise(formats: KVFormats) -> float:
    """Percent that perplexity may rise over a cache of these formats: what the coarser half of it is meant to keep."""
    if formats.key.element_bits < 8:
        return 5.0
    return 1.5 if formats.value.element_bits < 8 else 0.5


def check_rise(rise: Rise, formats: KVFormats, *, refuse: bool) -> None:
    """Say what was measured. StartError (ConfigInvalid) where it is surely too much, if it should be refused."""
    most = largest_rise(formats)
    kept = {"key_dtype": formats.key.name, "value_dtype": formats.value.name, "bound_percent": most}
    measured = {"perplexity_percent": round(rise.percent, 3), "uncertainty": round(rise.uncertainty, 3)}
    facts = {**kept, **measured, "tokens": rise.tokens}
    if not rise.surely_above(most):
        log.info("what the quantised KV cache costs", extra=facts)
    elif refuse:
        raise StartError(
            StartReason.CONFIG_INVALID,
            f"--kv-key-dtype={formats.key.name} --kv-value-dtype={formats.value.name} costs this model too much: "
            f"perplexity of the sample text {rise.percent:+.2f} % (give or take {rise.uncertainty:.2f}, over "
            f"{rise.tokens} tokens; bound {most:g} %); take a finer one, or --kv-dtype-check=warn",
        )
    else:
        log.warning("the quantised KV cache costs too much and is served", extra=facts)


@dataclass(frozen=True, slots=True)
class KVTrial:
    """Measures once, at the start."""

    text: Sequence[int]
    """Token ids."""
    refuse: bool
    """What costs too much; else it is warned of."""
    clock: Callable[[], float] = time.monotonic

    def check(
        self, model: Model, backend: AttentionBackend, formats: KVFormats, *, dtype: str, device: torch.device
    ) -> None:
        """`dtype`: the name of what the model computes in. StartError (ConfigInvalid) where `formats` cost too much."""
        rise = self.measure(model, backend, formats, dtype=dtype, device=device)
        if rise is not None:
            check_rise(rise, formats, refuse=self.refuse)

    @torch.inference_mode()
    def measure(
        self, model: Model, backend: AttentionBackend, formats: KVFormats, *, dtype: str, device: torch.device
    ) -> Rise | None:
        """Over the beginning of the text; None where that has not enough tokens to say anything."""
        tokens = torch.tensor(self.text[: min(MOST_TOKENS, model.config.context_length)], device=device)
        if len(tokens) < 3:
            log.warning("what the quantised KV cache costs is not known: there is no text to measure it on")
            return None
        both = (KVFormats.of(dtype), formats)
        readers = [Reader(model, backend, each, DTYPES[dtype], device, len(tokens)) for each in both]
        end = self.clock() + MOST_SECONDS
        differences: list[float] = []
        for chunk, following in zip(tokens[:-1].split(CHUNK_TOKENS), tokens[1:].split(CHUNK_TOKENS), strict=True):
            if differences and self.clock() > end:
                break
            full, kept = (reader.losses(chunk, following) for reader in readers)
            if not full.isfinite().all():
                log.warning("what the quantised KV cache costs is not known: the model's own losses are no numbers")
                return None
            differences += (kept - full).tolist()
        return Rise.of(differences)


class Reader:
    """Reads one text over a cache of its own."""

    def __init__(
        self,
        model: Model,
        backend: AttentionBackend,
        formats: KVFormats,
        compute: torch.dtype,
        device: torch.device,
        tokens: int,
    ) -> None:
        """`tokens`: of the whole text."""
        self._model = model
        self._backend = backend
        layout = kv_layout(model.config, _BLOCK_TOKENS, formats)
        blocks, groups = -(-tokens // _BLOCK_TOKENS), len(layout.windows)
        self._cache = KVCache(blocks=groups * blocks, layout=layout, dtype=compute, device=device)
        tables = torch.arange(1, groups * blocks + 1, dtype=torch.int32, device=device)
        self._tables = tables.view(groups, 1, blocks)
        self._device = device
        self._read = 0

    def losses(self, chunk: Tensor, following: Tensor) -> Tensor:
        """int64 [n] each: the next tokens and those after each of them -> float64 [n] on the host, nats."""
        positions = torch.arange(self._read, self._read + len(chunk), device=self._device)
        batches = [self._batch(group, positions) for group in range(len(self._tables))]
        attention = StepAttention(self._backend, batches, self._cache)
        hidden = self._model.forward(chunk, positions, attention)
        self._read += len(chunk)
        logits = self._model.logits(hidden).float()
        return torch.nn.functional.cross_entropy(logits, following, reduction="none").double().cpu()

    def _batch(self, group: int, positions: Tensor) -> AttentionBatch:
        start, count, table = self._read, len(positions), self._tables[group]
        return AttentionBatch(
            starts=[start],
            lengths=[count],
            block_tables=table,
            query_starts=torch.tensor([0, count], device=self._device),
            seq_lens=torch.tensor([start + count], device=self._device),
            slots=table[0, positions // _BLOCK_TOKENS].long() * _BLOCK_TOKENS + positions % _BLOCK_TOKENS,
            window=self._cache.layout.windows[group],
        )
