"""The least time a device can take (Williams et al., "Roofline", 2009): bytes over bandwidth, or operations over rate.

Real engines reach a part of it. Communication between ranks is not counted.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvik_engine.capacity.gpus import GPU


@dataclass(frozen=True, slots=True)
class Work:
    """What one rank does in a step."""

    flops: float
    bytes: float

    def seconds(self, gpu: GPU) -> float:
        return max(self.flops / gpu.flops, self.bytes / gpu.bytes_per_second)

    def bound(self, gpu: GPU) -> str:
        """What the time is spent on: memory or compute."""
        return "compute" if self.flops / gpu.flops > self.bytes / gpu.bytes_per_second else "memory"


@dataclass(frozen=True, slots=True)
class Roofline:
    """Of `rows` requests at full context. Seconds, and tokens a second over all requests."""

    rows: int
    step_seconds: float
    """A decode step, which is the time per output token of each request."""
    step_bound: str
    output_tokens_per_second: float
    prefill_seconds: float
    """One prompt of the whole context, alone."""
    prefill_bound: str
    prompt_tokens_per_second: float


def roofline(gpu: GPU, *, decode: Work, rows: int, prefill: Work, prompt_tokens: int) -> Roofline:
    """Of a decode step of `rows` rows and of a prefill of one prompt."""
    step, prompt = decode.seconds(gpu), prefill.seconds(gpu)
    return Roofline(
        rows=rows,
        step_seconds=step,
        step_bound=decode.bound(gpu),
        output_tokens_per_second=rows / step,
        prefill_seconds=prompt,
        prefill_bound=prefill.bound(gpu),
        prompt_tokens_per_second=prompt_tokens / prompt,
    )


def cost_per_million(price_per_hour: float, tokens_per_second: float) -> float:
    """In the price's currency, with the device never idle."""
    return price_per_hour / 3600.0 / tokens_per_second * 1e6
