"""Noise as a counter function of (seed, choice, output position, purpose) and the token id: no state, no neighbours.

A sample depends on nothing else: batching, preemption, a prefix hit or another device change nothing, and a draft can
be checked against the very noise its target would draw. SplitMix64 (Steele, Lea and Flood, OOPSLA 2014) in wrapping
64-bit integers gives the bits; the logarithms are taken in fp64 and rounded to fp32, so that the last bit of a device's
log does not show.
"""

from __future__ import annotations

from enum import IntEnum

import torch
from torch import Tensor

GAMMA = 0x9E3779B97F4A7C15
MIX_1 = 0xBF58476D1CE4E5B9
MIX_2 = 0x94D049BB133111EB
_MASK = (1 << 64) - 1


class Purpose(IntEnum):
    """Draws of different purposes at one position are independent."""

    TOKEN = 1


def stream_key(seed: int, choice: int, position: int, purpose: Purpose = Purpose.TOKEN) -> int:
    """64 bits that name one draw over the vocabulary; a signed integer, as torch stores it."""
    key = seed & _MASK
    for word in (choice, position, int(purpose)):
        key = _mix((key + GAMMA * (word + 1)) & _MASK)
    return _signed(key)


def gumbel(keys: Tensor, vocab_size: int) -> Tensor:
    """int64 [rows] -> fp32 [rows, vocab_size]: the noise of every token of a row."""
    return gumbel_of(keys[:, None], torch.arange(vocab_size, device=keys.device))


def gumbel_of(keys: Tensor, tokens: Tensor) -> Tensor:
    """Standard Gumbel noise, fp32: argmax(logits + noise) is a draw from softmax(logits).

    int64 keys and token ids of shapes that broadcast. Token i of a row is output i of the SplitMix64 stream that starts
    at the row's key.
    """
    state = (tokens + 1).mul_(_signed(GAMMA)) + keys
    state.bitwise_xor_(_shift_right(state, 30)).mul_(_signed(MIX_1))
    state.bitwise_xor_(_shift_right(state, 27)).mul_(_signed(MIX_2))
    return noise_of_bits(state.bitwise_xor_(_shift_right(state, 31)))


def noise_of_bits(bits: Tensor) -> Tensor:
    """int64 of any value -> fp32: the upper 52 bits and a half are a uniform in (0, 1), -log(-log(u)) its Gumbel.

    With 53 bits and a half the largest uniform would round to 1: its noise is infinite and could draw a filtered token.
    """
    uniform = _shift_right(bits, 12).to(torch.float64).add_(0.5).mul_(2.0**-52)
    return uniform.log_().neg_().log_().neg_().to(torch.float32)


def _shift_right(x: Tensor, bits: int) -> Tensor:
    """Logical shift of 64-bit integers, which torch only has as an arithmetic one."""
    return (x >> bits).bitwise_and_((1 << (64 - bits)) - 1)


def _mix(x: int) -> int:
    x = ((x ^ (x >> 30)) * MIX_1) & _MASK
    x = ((x ^ (x >> 27)) * MIX_2) & _MASK
    return x ^ (x >> 31)


def _signed(x: int) -> int:
    return x - (1 << 64) if x >= 1 << 63 else x
