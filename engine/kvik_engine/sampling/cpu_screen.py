"""Which tokens can win a draw at all, found from the upper bits of their noise, without a logarithm per token.

The winner of argmax(value + noise) is distributed as top + log(total mass) + Gumbel noise, so it hardly ever lies more
than REACH below that sum. Only a few tokens reach such a level, and which is told by the noise's bits: with u the
token's uniform, noise >= level - value means -log(u) <= exp(value - level), and 1 - u <= -log(u). What passes is
computed exactly afterwards, so the outcome is that of noise for every token.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray

from kvik_engine.sampling.cpu_filters import Tokens, Values, mass
from kvik_engine.sampling.noise import GAMMA, MIX_1, MIX_2
from kvik_kernels.cpu.library import LibraryUnavailable, load_library
from kvik_kernels.cpu.screen import Screen

REACH = 2.5
"""The winner is lower once in 200,000 draws (exp(-exp(2.5))); twelve tokens pass on average (exp(2.5))."""

_BITS_SLACK = 4.0
"""What the upper bits of 1 - u may be too high by."""
_LARGEST_SLACK = 32.0
"""Values of 3e7 and more (tiny temperatures and penalties) are so coarse in fp32 that nothing can be ruled out."""


def screen(values: Values, tokens: Tokens | None, top: float, key: int) -> tuple[Tokens, float]:
    """(places of the tokens that can reach the level, the level); `tokens` None means 0, 1, 2, ...

    All tokens whose value + noise, in fp32, is at least the level are among them. `top` is the largest value, finite.
    """
    # More than all rounding of values, masses and noise together.
    slack = 1e-3 + 1e-6 * abs(top)
    if slack > _LARGEST_SLACK:
        return np.arange(len(values)), -math.inf
    total = mass(values, top)
    factor, level = math.exp(REACH + slack) / total * 2.0**32, top + math.log(total) - REACH
    kernel = _kernel()
    if kernel is not None:
        ids = None if tokens is None else torch.from_numpy(tokens)
        found = kernel.places(torch.from_numpy(values), ids, key=key, top=top, factor=factor, slack=_BITS_SLACK)
        return found.numpy(), level
    masses = np.exp(values - np.float32(top))
    masses *= np.float32(factor)
    masses += np.float32(_BITS_SLACK)
    return np.flatnonzero(_one_minus_uniform(key, tokens, len(values)) <= masses), level


@lru_cache(maxsize=1)
def _kernel() -> Screen | None:
    """The compiled one, where this CPU has it: numpy takes about ten times as long."""
    try:
        return Screen(load_library())
    except LibraryUnavailable:
        return None


def _one_minus_uniform(key: int, tokens: Tokens | None, count: int) -> NDArray[np.uint32]:
    """The upper 32 bits of 1 - u, less than 4 too high.

    Multiplying by -MIX_2 gives 1 - u where MIX_2 gives u. SplitMix64's last step is left out: it changes no bit above
    the 33rd.
    """
    if tokens is None:
        state = _steps(count) + np.uint64(key & _MASK)
    else:
        state = (tokens + 1).view(np.uint64) * np.uint64(GAMMA)
        state += np.uint64(key & _MASK)
    state ^= state >> np.uint64(30)
    state *= np.uint64(MIX_1)
    state ^= state >> np.uint64(27)
    state *= np.uint64(-MIX_2 & _MASK)
    upper: NDArray[np.uint32] = state.view("<u4")[1::2]
    return upper


_MASK = (1 << 64) - 1


@lru_cache(maxsize=4)
def _steps(count: int) -> NDArray[np.uint64]:
    return np.arange(1, count + 1, dtype=np.uint64) * np.uint64(GAMMA)
