"""Synthetic traces: streams of requests with Poisson arrivals and log-normal lengths, drawn from a seed."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from kvik_engine.simulation.trace import TraceRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Tokens, log-normal around `median`, cut to [`least`, `most`]."""

    median: int
    sigma: float
    least: int
    most: int

    def draw(self, source: random.Random) -> int:
        return min(self.most, max(self.least, round(source.lognormvariate(math.log(self.median), self.sigma))))


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """Requests of one kind. Of `prefix_tokens` > 0, each begins with one of `prefixes` shared beginnings."""

    rate: float
    """Requests a second."""
    prompt: Lengths
    output: Lengths
    max_tokens: int | None = None
    slo_class: str = "balanced"
    tenant: str = ""
    prefix_tokens: int = 0
    prefixes: int = 1


def generate(streams: tuple[Stream, ...], *, seconds: float, seed: int) -> list[TraceRequest]:
    """All requests of `seconds` seconds by arrival. A stream's requests do not depend on the other streams."""
    requests = [
        request
        for number, stream in enumerate(streams)
        for request in _requests(stream, seconds, random.Random(f"{seed} {number}"), f"{stream.tenant}/{number}")
    ]
    return sorted(requests, key=lambda request: request.arrival)


def faster(streams: tuple[Stream, ...], factor: float) -> tuple[Stream, ...]:
    """The same streams at `factor` times their rate."""
    return tuple(replace(stream, rate=stream.rate * factor) for stream in streams)


def _requests(stream: Stream, seconds: float, source: random.Random, name: str) -> list[TraceRequest]:
    requests = []
    arrival = source.expovariate(stream.rate)
    while arrival < seconds:
        output = stream.output.draw(source)
        prefix = f"{name}/{source.randrange(stream.prefixes)}" if stream.prefix_tokens else None
        requests.append(
            TraceRequest(
                arrival=round(arrival, 6),
                prompt_tokens=stream.prefix_tokens + stream.prompt.draw(source),
                output_tokens=output,
                max_tokens=None if stream.max_tokens is None else max(output, stream.max_tokens),
                slo_class=stream.slo_class,
                tenant=stream.tenant,
                prefix_id=prefix,
                prefix_tokens=stream.prefix_tokens,
            )
        )
        arrival += source.expovariate(stream.rate)
    return requests


_QUESTION = Lengths(median=200, sigma=0.8, least=10, most=2000)
_ANSWER = Lengths(median=150, sigma=0.7, least=5, most=800)
_DOCUMENT = Lengths(median=1500, sigma=0.7, least=200, most=6000)
_SUMMARY = Lengths(median=300, sigma=0.5, least=50, most=1000)

CHAT = (Stream(rate=4.0, prompt=_QUESTION, output=_ANSWER, max_tokens=1024, prefix_tokens=400, prefixes=3),)
INTERACTIVE = (Stream(rate=4.0, prompt=_QUESTION, output=_ANSWER, max_tokens=1024, slo_class="interactive"),)
BATCH_OVERLOAD = (
    *INTERACTIVE,
    Stream(rate=12.0, prompt=_DOCUMENT, output=_SUMMARY, max_tokens=1024, slo_class="batch"),
)
SHORT_AND_LONG = (
    Stream(rate=8.0, prompt=Lengths(median=60, sigma=0.3, least=20, most=120), output=_ANSWER, max_tokens=1024),
    Stream(rate=2.0, prompt=Lengths(median=4000, sigma=0.1, least=3000, most=5000), output=_ANSWER, max_tokens=1024),
)
GREEDY_TENANT = (
    Stream(rate=40.0, prompt=_QUESTION, output=_ANSWER, max_tokens=1024, tenant="greedy"),
    Stream(rate=6.0, prompt=_QUESTION, output=_ANSWER, max_tokens=1024, tenant="modest"),
)

WORKLOADS: Mapping[str, tuple[Stream, ...]] = MappingProxyType(
    {
        "chat": CHAT,
        "interactive": INTERACTIVE,
        "batch-overload": BATCH_OVERLOAD,
        "short-and-long": SHORT_AND_LONG,
        "greedy-tenant": GREEDY_TENANT,
    }
)
"""By the name that `kvik simulate` knows. The rates suit a GPU; `faster` fits them to others."""
