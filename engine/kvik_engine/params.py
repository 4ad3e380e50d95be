"""What one request asks of sampling, resolved: the API has applied every default and checked every range."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum


def score(logprob: float, tokens: int, length_penalty: float) -> float:
    """How good a completion of so many tokens is: log-probability / tokens ** length_penalty, higher is better.

    A penalty of 1 is the log-probability per token, 0 leaves the length out, more favours long ones. The same in
    transformers' beam search, which counts output tokens and the one that ended them.
    """
    return logprob / math.pow(tokens, length_penalty)


class EarlyStopping(StrEnum):
    """When a beam search with as many complete answers as beams ends; what clients write as true, false, "never"."""

    COMPLETE = "complete"
    """At once."""
    LIKELY = "likely"
    """When the best beam, were it complete now, would not be among them."""
    SURE = "sure"
    """When no beam can come among them any more, however it goes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamParams:
    """How a beam search ranks and ends. `SamplingParams.n` is its width, and how many answers it gives."""

    length_penalty: float = 1.0
    early_stopping: EarlyStopping = EarlyStopping.LIKELY
    stop: tuple[str, ...] = ()
    """Strings that end a beam, each at least one character."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Sampling of one request, shared by its n choices.

    Stop strings are not here: they are found by the API process, which then aborts the choice. Only a search must know
    of them in the core (BeamParams).
    """

    max_tokens: int
    """Output tokens at most, at least 1."""
    seed: int
    """64 bits, unsigned. Drawn by the API when the client gave none, so that the core has no randomness of its own."""
    n: int = 1
    temperature: float = 1.0
    """0 is greedy."""
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(token id, bias) pairs; ids are inside the vocabulary."""
    stop_token_ids: tuple[int, ...] = ()
    """Token ids that end a choice: the model's own end tokens (unless ignore_eos) and the client's. Never shown."""
    min_tokens: int = 0
    """No stop token is sampled before this many output tokens."""
    logprobs: int | None = None
    """How many top alternatives to report beside the chosen token (0 = the chosen one only); None = no logprobs."""
    beam: BeamParams | None = None
    """Search for the likeliest answers instead of sampling: then temperature, filters, bias and penalties are at their
    defaults, or greedy."""

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is taken, without noise."""
        return self.temperature == 0.0

    @property
    def listed(self) -> int | None:
        """How many of the likeliest tokens the sampler lists beside each sample; None = no log probabilities at all.

        A beam needs as many that go on as there are beams, beside any that would end it: all stop tokens, and as many
        answers as can end with a stop string at once.
        """
        if self.beam is None:
            return self.logprobs
        going_on = 2 * self.n if self.beam.stop else self.n
        return max(self.logprobs or 0, going_on + len(self.stop_token_ids))
