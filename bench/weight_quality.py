"""What weights of int8 cost the embedded model in bf16: part of `make bench`.

Perplexity of this repository's pages, read in segments that see nothing of one another, of every token but each
segment's first; the rise is of the differences, token by token.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys

import torch

from bench.demo_rows import load_demo
from bench.kv_quality import CHUNK, losses, read_text
from bench.report import Report
from kvik_engine.attention.kv_layout import KVFormats
from kvik_engine.runner.kv_quality import Rise

MOST = 1.0
"""Percent that perplexity may rise."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.weight_quality", description=__doc__)
    parser.add_argument("--tokens", type=int, default=20480, help="of the text")
    parser.add_argument("--segment", type=int, default=1024)
    options = parser.parse_args()
    segments, formats = read_text(options.tokens).split(options.segment), KVFormats.of("bf16")

    def read(quantization: str) -> list[float]:
        model = load_demo(rows=1, prompt=CHUNK, dtype="bf16", quantization=quantization)._model
        return losses(model, formats, segments)

    report = Report("weight_quality", {"model": "demo", "dtype": "bf16", "tokens": options.tokens})
    whole = read("none")
    perplexity = math.exp(statistics.fmean(whole))
    report.line("bf16: perplexity", f"{perplexity:.3f}", perplexity)
    rise = Rise.of([rounded - full for full, rounded in zip(whole, read("int8"), strict=True)])
    report.line("int8: perplexity", f"{rise.percent:+.3f} % ± {rise.uncertainty:.3f}", rise.percent, most=MOST)
    report.write()
    return 0


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main())
