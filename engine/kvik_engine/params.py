"""What one request asks of sampling, resolved: the API has applied every default and checked every range."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Sampling of one request, shared by its n choices.

    Stop strings are not here: they are found by the API process, which then aborts the choice.
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

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is taken, without noise."""
        return self.temperature == 0.0
