"""What one pod can serve: the measure in which traces are stated, so that another machine changes no trace. Pure.

Lengths are shares of what a pod alone does within the objective. Rates are *pods' worths*: one is the highest rate at
which a pod alone still gives nearly every request its first token in time. Three pods' worth are carried by three pods,
whatever they compute with.
"""

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Final

from bench.scaling.calibration import Calibration
from bench.scaling.pod import PodModel, Request, SimulatedPod

TTFT_OBJECTIVE: Final = 2.0
"""Seconds: that of the class Balanced."""
ROWS: Final = 32
CHAT_PROMPT, CHAT_PROMPT_SPREAD, LONGEST_PROMPT = 0.08, 0.8, 0.5
"""Median and longest prompt of a chat, in parts of what a pod computes within the objective; sigma of the logarithm."""
CHAT_ANSWER, LONGEST_ANSWER = 0.75, 5.0
"""Mean and longest answer of a chat, in parts of what a row alone decodes within the objective."""
CHUNK = 0.13
"""Prompt tokens of a step in which rows decode, in the same measure."""
DOCUMENT, LONGEST_DOCUMENT = 0.2, 0.5
DOCUMENT_ANSWER, LONGEST_DOCUMENT_ANSWER = 0.05, 0.2
MISSES_OF_A_PODS_WORTH: Final = 0.05
"""Fraction of the requests: as many as pools of the class Balanced may miss (docs/monitoring.md)."""
_TRIAL_SECONDS: Final = 1200.0
_HALVINGS: Final = 8
_FEW_A_SECOND: Final = 0.1

Rate = Callable[[float], float]
"""Requests a second, at a time in seconds."""
Lengths = Callable[[random.Random], tuple[int, int]]
"""(prompt tokens, output tokens) of the next request."""


@dataclass(frozen=True, slots=True)
class Yardstick:
    """Tokens that a pod alone computes of a prompt, and that a row alone decodes, within the objective."""

    prompt_tokens: float
    answer_tokens: float

    @classmethod
    def of(cls, measured: Calibration) -> "Yardstick":
        step = measured.step_seconds + measured.row_seconds
        return cls(measured.prefill_tokens_per_second * TTFT_OBJECTIVE, TTFT_OBJECTIVE / step)

    def chat(self, chance: random.Random) -> tuple[int, int]:
        """Both lengths with a long tail."""
        prompt = chance.lognormvariate(math.log(CHAT_PROMPT), CHAT_PROMPT_SPREAD)
        answer = chance.expovariate(1 / CHAT_ANSWER)
        return self._tokens(min(LONGEST_PROMPT, prompt), min(LONGEST_ANSWER, answer))

    def document(self, chance: random.Random) -> tuple[int, int]:
        """Long prompts with short answers: the queue grows while the cache is a third full."""
        prompt = chance.uniform(DOCUMENT, LONGEST_DOCUMENT)
        return self._tokens(prompt, chance.uniform(DOCUMENT_ANSWER, LONGEST_DOCUMENT_ANSWER))

    def _tokens(self, prompt: float, answer: float) -> tuple[int, int]:
        return max(8, round(prompt * self.prompt_tokens)), max(2, round(answer * self.answer_tokens))


def demo_pod(measured: Calibration) -> PodModel:
    """With a start-up time that has its node's part, and a cache for as many mean chats as there are rows."""
    yardstick, chance = Yardstick.of(measured), random.Random(0)
    chat_tokens = sum(sum(yardstick.chat(chance)) for _ in range(1000)) / 1000
    return PodModel(
        prefill_tokens_per_second=measured.prefill_tokens_per_second,
        step_seconds=measured.step_seconds,
        row_seconds=measured.row_seconds,
        chunk_tokens=round(CHUNK * yardstick.prompt_tokens),
        kv_tokens=round(ROWS * chat_tokens),
        max_requests=ROWS,
        max_queued=256,
        startup_seconds=30.0,
    )


@cache
def pods_worth(pod: PodModel, lengths: Lengths) -> float:
    """Requests a second that `pod` alone serves with MISSES_OF_A_PODS_WORTH."""
    low, high = 0.0, _FEW_A_SECOND
    while _missed(pod, lengths, high) <= MISSES_OF_A_PODS_WORTH:
        low, high = high, 2 * high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if _missed(pod, lengths, middle) > MISSES_OF_A_PODS_WORTH else (middle, high)
    return low


def _missed(pod: PodModel, lengths: Lengths, rate: float) -> float:
    """Fraction of the requests that come at a constant rate."""
    alone, requests = SimulatedPod("alone", pod, 0.0), list(arrivals(lambda _: rate, rate, _TRIAL_SECONDS, lengths))
    for request in requests:
        alone.submit(request)
    alone.advance(2 * _TRIAL_SECONDS)
    return sum(missed(request, TTFT_OBJECTIVE) for request in requests) / len(requests)


def missed(request: Request, objective: float) -> bool:
    return request.ttft is None or request.ttft > objective


def arrivals(rate: Rate, most: float, seconds: float, lengths: Lengths, seed: int = 7) -> Iterator[Request]:
    """A Poisson process with a rate that changes, never above `most` (thinning; Lewis and Shedler, 1979)."""
    chance, now = random.Random(seed), 0.0
    while (now := now + chance.expovariate(most)) < seconds:
        if chance.random() * most <= rate(now):
            prompt, output = lengths(chance)
            yield Request(now, prompt, output)
