"""A run as JSON and as a table (docs/bench.md). Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from kvik_engine.bench.figures import Figures, Slo, Spread
from kvik_engine.bench.workloads import Workload

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Run:
    """What was asked for, and how well it could be kept."""

    url: str
    model: str
    workload: Workload
    requests: int
    concurrency: int | None
    """None: an open load."""
    rate: float | None
    seed: int
    warmup: int
    ignore_eos: bool
    slo: Slo
    exact_prompts: bool
    latest_start: float | None
    """Seconds that a conversation of an open load began too late at most."""


def as_json(run: Run, figures: Figures) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "url": run.url,
        "model": run.model,
        "workload": asdict(run.workload),
        "load": {"concurrency": run.concurrency, "rate": run.rate},
        "requests": run.requests,
        "seed": run.seed,
        "warmup": run.warmup,
        "ignore_eos": run.ignore_eos,
        "slo_ms": {"ttft": _ms(run.slo.ttft), "tpot": _ms(run.slo.tpot)},
        "prompt_lengths": "exact" if run.exact_prompts else "approximate",
        "tokens_from": "usage" if figures.tokens_from_usage else "events",
        "latest_start_ms": _ms(run.latest_start),
        "completed": figures.completed,
        "failed": sum(figures.failed.values()),
        "failures": {
            kind: {"count": count, "example": figures.examples[kind]} for kind, count in figures.failed.items()
        },
        "seconds": figures.seconds,
        "prompt_tokens": figures.prompt_tokens,
        "output_tokens": figures.output_tokens,
        "requests_per_second": figures.requests_per_second,
        "output_tokens_per_second": figures.output_tokens_per_second,
        "total_tokens_per_second": figures.total_tokens_per_second,
        "goodput_requests_per_second": figures.goodput,
        "ttft_ms": _spread(figures.ttft),
        "tpot_ms": _spread(figures.tpot),
        "itl_ms": _spread(figures.itl),
        "e2e_ms": _spread(figures.e2e),
    }


def as_table(run: Run, figures: Figures) -> str:
    return "\n".join([*_head(run, figures), "", *_rates(figures), "", *_latencies(figures), *_failures(figures)])


def headline(run: Run) -> str:
    load = f"{run.concurrency} at a time" if run.rate is None else f"{run.rate:g} conversations a second (Poisson)"
    return f"{run.model} at {run.url}: {run.workload.kind}, {run.requests} requests, {load}, seed {run.seed}"


def _head(run: Run, figures: Figures) -> Iterator[str]:
    yield headline(run)
    if not run.exact_prompts:
        yield "prompt lengths are approximate, a word for a token: the server does not count tokens (POST /tokenize)"
    if not figures.tokens_from_usage:
        yield "output tokens are counted by events: the server sends no usage"
    if run.latest_start is not None and run.latest_start > 0.01:
        yield f"a conversation began {1000 * run.latest_start:.0f} ms too late: this machine is too busy for the rate"


def _rates(figures: Figures) -> Iterator[str]:
    failed = sum(figures.failed.values())
    yield f"{'completed':<24}{figures.completed:>12}"
    yield f"{'failed':<24}{failed:>12}"
    yield f"{'seconds':<24}{figures.seconds:>12.2f}"
    yield f"{'requests/s':<24}{figures.requests_per_second:>12.3f}"
    if figures.goodput is not None:
        yield f"{'goodput, requests/s':<24}{figures.goodput:>12.3f}"
    yield f"{'output tokens/s':<24}{figures.output_tokens_per_second:>12.1f}"
    if figures.total_tokens_per_second is not None:
        yield f"{'total tokens/s':<24}{figures.total_tokens_per_second:>12.1f}"


def _latencies(figures: Figures) -> Iterator[str]:
    yield f"{'ms':<12}{'mean':>12}{'P50':>12}{'P90':>12}{'P99':>12}"
    for name, spread in (("TTFT", figures.ttft), ("TPOT", figures.tpot), ("ITL", figures.itl), ("E2E", figures.e2e)):
        values = ["-"] * 4 if spread is None else [f"{1000 * value:.2f}" for value in asdict(spread).values()]
        yield f"{name:<12}" + "".join(f"{value:>12}" for value in values)


def _failures(figures: Figures) -> Iterator[str]:
    if figures.failed:
        yield ""
    for kind, count in sorted(figures.failed.items(), key=lambda item: -item[1]):
        yield f"failed {count} times: {kind}: {figures.examples[kind]}"


def _spread(spread: Spread | None) -> dict[str, float] | None:
    return None if spread is None else {name: 1000 * value for name, value in asdict(spread).items()}


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1000 * seconds
