"""What a quantised KV cache costs in quality and time and gains in room, on the embedded model in bf16: part of
`make bench`.

The text is this repository's own pages, read in segments that see nothing of one another. Perplexity is of every token
but each segment's first. Greedy answers begin with the first half of some segments and are compared with those over a
bf16 cache, up to the first token that differs. Decoding is timed in pairs of steps: the figure is the median of the
ratios, beside that of the steps themselves, of processor time of one thread, so that other work on the machine shows
less; with --threads above 1 of wall clock.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from bench.demo_rows import load_demo
from bench.report import Report
from kvik_engine.attention.backend import AttentionBatch, StepAttention
from kvik_engine.attention.kv_cache import KVCache
from kvik_engine.attention.kv_layout import KVFormats
from kvik_engine.cli.sources import DEMO, default_cache_dir, local_model
from kvik_engine.models.config import ModelConfig
from kvik_engine.models.kv_groups import kv_layout
from kvik_engine.models.registry import Model
from kvik_engine.runner.devices import choose_backend
from kvik_engine.runner.kv_quality import Reader, Rise, largest_rise
from kvik_engine.text.gguf_tokenizer import tokenizer_from_gguf
from kvik_engine.weights.gguf_header import read_header
from kvik_engine.weights.model_files import find_model_files

DOCS = Path(__file__).parents[1] / "docs"
BLOCK, CHUNK = 16, 256
ANSWER_TOKENS = 64
CPU = torch.device("cpu")
FORMATS = ["int8+int8", "fp8+fp8", "fp8-dynamic+fp8-dynamic", "int8+int4", "int4+int4"]
CAPACITY = {"int8+int8": 1.9, "fp8+fp8": 2.0, "int8+int4": 2.4, "int4+int4": 3.0}
"""Of bf16's, scales counted, at least, by keys and values."""


class Rows:
    """Rows of equal length over a cache of their own, computed together."""

    def __init__(self, model: Model, formats: KVFormats, *, rows: int, tokens: int) -> None:
        self._model = model
        self._backend = choose_backend("auto", CPU, model.config, torch.bfloat16, formats)
        per_row = -(-tokens // BLOCK)
        layout = kv_layout(model.config, BLOCK, formats)
        self.cache = KVCache(blocks=rows * per_row, layout=layout, dtype=torch.bfloat16, device=CPU)
        # Blocks of a row lie apart, as they do once a pool has been in use.
        self._tables = torch.arange(1, rows * per_row + 1, dtype=torch.int32).view(per_row, rows).t().contiguous()
        self.length = 0

    @torch.inference_mode()
    def forward(self, tokens: Tensor) -> Tensor:
        """int64 [rows, n] -> hidden states [rows, n, width] of the rows' next tokens."""
        rows, count = tokens.shape
        positions = torch.arange(self.length, self.length + count)
        slots = self._tables[:, positions // BLOCK].long() * BLOCK + positions % BLOCK
        batch = AttentionBatch(
            starts=[self.length] * rows,
            lengths=[count] * rows,
            block_tables=self._tables,
            query_starts=torch.arange(rows + 1) * count,
            seq_lens=torch.full((rows,), self.length + count),
            slots=slots.reshape(-1),
        )
        attention = StepAttention(self._backend, [batch], self.cache)
        hidden = self._model.forward(tokens.reshape(-1), positions.repeat(rows), attention)
        self.length += count
        return hidden.view(rows, count, -1)

    def prefill(self, tokens: Tensor) -> Tensor:
        """The same in chunks; of the last token of each row alone."""
        for chunk in tokens.split(CHUNK, dim=1):
            hidden = self.forward(chunk)
        return hidden[:, -1]

    @torch.inference_mode()
    def next(self, hidden: Tensor) -> Tensor:
        """The likeliest tokens, int64 [rows]."""
        return self._model.logits(hidden).argmax(-1)


def read_text(tokens: int) -> Tensor:
    """The first tokens of this repository's pages, in the order of their names."""
    gguf = find_model_files(local_model(DEMO, default_cache_dir(os.environ)).path).gguf
    assert gguf is not None
    text = "\n\n".join(page.read_text() for page in sorted(DOCS.rglob("*.md")))
    ids = tokenizer_from_gguf(read_header(gguf).metadata).encode(text, add_special_tokens=False).ids
    if len(ids) < tokens:
        raise SystemExit(f"the pages have {len(ids)} tokens, {tokens} were asked for")
    return torch.tensor(ids[:tokens])


@torch.inference_mode()
def losses(model: Model, formats: KVFormats, segments: Sequence[Tensor]) -> list[float]:
    """Of each token but the segments' first, in nats; segments are computed in chunks of CHUNK tokens."""
    found: list[float] = []
    for segment in segments:
        backend = choose_backend("auto", CPU, model.config, torch.bfloat16, formats)
        reader = Reader(model, backend, formats, torch.bfloat16, CPU, len(segment))
        for chunk, following in zip(segment[:-1].split(CHUNK), segment[1:].split(CHUNK), strict=True):
            found += reader.losses(chunk, following).tolist()
    return found


def answers(model: Model, formats: KVFormats, prompts: Tensor) -> Tensor:
    """Greedy answers, int64 [rows, ANSWER_TOKENS]."""
    rows = Rows(model, formats, rows=len(prompts), tokens=prompts.shape[1] + ANSWER_TOKENS)
    tokens = [rows.next(rows.prefill(prompts))]
    while len(tokens) < ANSWER_TOKENS:
        tokens.append(rows.next(rows.forward(tokens[-1][:, None])[:, 0]))
    return torch.stack(tokens, dim=1)


def equal_beginnings(got: Tensor, want: Tensor) -> float:
    """Share of tokens before the first that differs."""
    return (got == want).long().cumprod(dim=1).float().mean().item()


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds of steps over a full cache and over a quantised one, in pairs."""

    full: Sequence[float]
    quantised: Sequence[float]

    @property
    def ratio(self) -> float:
        """Median of the pairs': what slows the machine for a while slows both of a pair."""
        return statistics.median(mine / other for other, mine in zip(self.full, self.quantised, strict=True))

    @property
    def milliseconds(self) -> float:
        """Median of the quantised ones."""
        return statistics.median(self.quantised) * 1000


def time_steps(
    model: Model, formats: tuple[KVFormats, KVFormats], prompts: Tensor, steps: int, clock: Callable[[], float]
) -> StepTimes:
    both = [Rows(model, each, rows=len(prompts), tokens=prompts.shape[1] + steps) for each in formats]
    tokens = [rows.next(rows.prefill(prompts)) for rows in both]
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(steps):
        for index, rows in enumerate(both):
            before = clock()
            tokens[index] = rows.next(rows.forward(tokens[index][:, None])[:, 0])
            times[index].append(clock() - before)
    return StepTimes(*times)


def capacity(config: ModelConfig, formats: KVFormats) -> float:
    """Tokens in the memory of one token in bf16, scales counted."""
    return kv_layout(config, BLOCK, KVFormats.of("bf16")).block_bytes / kv_layout(config, BLOCK, formats).block_bytes


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.kv_quality", description=__doc__)
    parser.add_argument("--tokens", type=int, default=20480, help="of the text")
    parser.add_argument("--segment", type=int, default=1024)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--steps", type=int, default=40, help="pairs of decode steps")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--formats", nargs="+", default=FORMATS, metavar="KEYS+VALUES")
    options = parser.parse_args()
    clock: Callable[[], float] = time.thread_time if options.threads == 1 else time.perf_counter

    model = load_demo(rows=1, prompt=CHUNK, dtype="bf16")._model
    torch.set_num_threads(options.threads)
    segments = read_text(options.tokens).split(options.segment)
    prompts = torch.stack(segments[: options.prompts])[:, : options.segment // 2]
    plain = KVFormats.of("bf16")
    report = Report(
        "kv_quality",
        {"model": "demo", "dtype": "bf16", "tokens": options.tokens, "segment": options.segment}
        | {"threads": options.threads},
    )
    base, want = losses(model, plain, segments), answers(model, plain, prompts)
    perplexity = math.exp(statistics.fmean(base))
    report.line("bf16: perplexity", f"{perplexity:.3f}", perplexity)
    for name in options.formats:
        formats = KVFormats.of("bf16", *name.split("+"))
        rise = Rise.of([kept - full for full, kept in zip(base, losses(model, formats, segments), strict=True)])
        shown = f"{rise.percent:+.3f} % ± {rise.uncertainty:.3f}"
        report.line(f"{name}: perplexity", shown, rise.percent, most=largest_rise(formats))
        room = capacity(model.config, formats)
        most = 1 / CAPACITY[name] if name in CAPACITY else None
        report.line(f"{name}: memory of a token, of bf16's", f"x {1 / room:.3f}", 1 / room, most=most)
        share = equal_beginnings(answers(model, formats, prompts), want)
        report.line(f"{name}: greedy tokens before one differs", f"{share:.0%} of {ANSWER_TOKENS}", share)
        for rows in (1, len(prompts)):
            times = time_steps(model, (plain, formats), prompts[:rows], options.steps, clock)
            what = f"{name}: a step of {rows} rows with {prompts.shape[1]} tokens"
            report.line(what, f"x {times.ratio:.2f}, {times.milliseconds:.1f} ms", times.ratio)
    report.write()
    return 0


if __name__ == "__main__":
    sys.exit(main())
