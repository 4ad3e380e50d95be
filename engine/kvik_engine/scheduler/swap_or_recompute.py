"""Whether a preempted request's KV goes to the host and comes back, or is computed again.

    swap       2 x (one step + tokens x bytes per token / copy bandwidth)
    recompute  tokens / prefill rate

Both directions of a swap cost a step beside the copy: a block is given to somebody else only when the step that copied
it out is settled, and a branch runs on only when the step that copied it in is. So few tokens are computed again
sooner, many are swapped, and between them lies the crossing. A block copied whole moves at nearly the full bandwidth
of the bus; without a copy of its own per layer there is no other fixed cost worth a name.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

_DECAY = 0.95
"""Weight that older steps keep at each new one."""


class PreemptionMode(StrEnum):
    """What the user wants: the quicker way, or always one of the two (swap only while the host pool has room)."""

    AUTO = "auto"
    SWAP = "swap"
    RECOMPUTE = "recompute"


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapCosts:
    """What the two ways cost on this machine, measured."""

    bytes_per_token: int
    copy_bytes_per_second: float
    """One way, in whole blocks."""
    prefill_tokens_per_second: float
    step_seconds: float
    """A step in which nothing is prefilled."""

    @property
    def crossing(self) -> float:
        """From so many tokens on, swapping is quicker; infinite when it never is."""
        gain = 1 / self.prefill_tokens_per_second - 2 * self.bytes_per_token / self.copy_bytes_per_second
        return 2 * self.step_seconds / gain if gain > 0 else math.inf


class SwapOrRecompute:
    """Chooses by mode, then by threshold: the given one, else the crossing of what was measured so far."""

    def __init__(
        self,
        *,
        mode: PreemptionMode,
        threshold_tokens: int | None,
        bytes_per_token: int,
        copy_bytes_per_second: float,
    ) -> None:
        self._mode = mode
        self._threshold = threshold_tokens
        self._bytes_per_token = bytes_per_token
        self._bandwidth = copy_bytes_per_second
        self._full_rate: float | None = None
        self._prefill_tokens = 0.0
        self._prefill_seconds = 0.0
        self._plain_steps = 0.0
        self._plain_seconds = 0.0

    def observe(self, seconds: float, prefill_tokens: int, full_rate: float | None) -> None:
        """A step took so long and computed so many tokens of prompts or recomputation. `full_rate`: tokens a second of
        steps full of them, once known: what others computed tells little of how fast a long request is computed again.
        """
        self._full_rate = full_rate
        if prefill_tokens:
            self._prefill_tokens = self._prefill_tokens * _DECAY + prefill_tokens
            self._prefill_seconds = self._prefill_seconds * _DECAY + seconds
        else:
            self._plain_steps = self._plain_steps * _DECAY + 1
            self._plain_seconds = self._plain_seconds * _DECAY + seconds

    @property
    def costs(self) -> SwapCosts | None:
        """As measured so far; None before anything was prefilled."""
        if self._prefill_seconds <= 0:
            return None
        return SwapCosts(
            bytes_per_token=self._bytes_per_token,
            copy_bytes_per_second=self._bandwidth,
            prefill_tokens_per_second=self._full_rate or self._prefill_tokens / self._prefill_seconds,
            step_seconds=self._plain_seconds / self._plain_steps if self._plain_steps else 0.0,
        )

    @property
    def threshold(self) -> float:
        """Requests with at least so many tokens are swapped, room permitting; infinite before anything is known."""
        match self._mode:
            case PreemptionMode.SWAP:
                return 0
            case PreemptionMode.RECOMPUTE:
                return math.inf
            case PreemptionMode.AUTO:
                if self._threshold is not None:
                    return self._threshold
                costs = self.costs
                return math.inf if costs is None else costs.crossing

    def prefers_swap(self, tokens: int) -> bool:
        """Whether KV of so many tokens should go to the host, if there is room."""
        return tokens >= self.threshold
