"""The KV ledger: how many blocks the cache gets, and how many tokens that is. Pure arithmetic over measured facts.

bytes per token = sum over KV groups of block_bytes / block_tokens
capacity        = kv_cache_size, or memory_fraction x device total - what is used without a cache
blocks          = capacity / block bytes - 1 (the scratch block)
swap slots      = swap_space / block bytes; where the host's memory is the device's, it is taken from the total first
served context  = min(the model's, the user's limit, what the blocks hold)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvik_engine.errors import StartError, StartReason
from kvik_engine.kv.windows import most_at_once
from kvik_engine.step import KVGroup

MIN_POOL_TOKENS = 256
"""A smaller cache serves nobody. A model with a shorter context needs only that."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """The size of the KV cache. Bytes are on the device; `blocks` does not count the scratch block."""

    block_tokens: int
    block_bytes: int
    bytes_per_token: int
    blocks: int
    max_tokens: int
    """Tokens that fit at once: over all requests, or of one where layers see a window only."""
    context: int
    """Tokens that one request may have, prompt and output."""
    model_context: int
    swap_slots: int = 0
    """Blocks that the swap space holds."""

    @property
    def allocated_bytes(self) -> int:
        """What the runner allocates, scratch block included."""
        return (self.blocks + 1) * self.block_bytes

    def __str__(self) -> str:
        return (
            f"KV cache: {self.blocks} blocks of {self.block_tokens} tokens = {self.max_tokens} tokens, "
            f"{self.bytes_per_token} bytes a token, {self.allocated_bytes / (1 << 20):.0f} MiB; "
            f"served context {self.context} of the model's {self.model_context} tokens"
            + (f"; swap space for {self.swap_slots} blocks" if self.swap_slots else "")
        )


def size_cache(
    groups: Sequence[KVGroup],
    *,
    model_context: int,
    context_limit: int | None,
    kv_cache_size: int | None,
    memory_fraction: float,
    device_bytes_total: int,
    device_bytes_used: int,
    step_tokens: int,
    swap_slots: int = 0,
) -> Ledger:
    """Size the cache; a step computes at most `step_tokens` tokens.

    Raises StartError InsufficientMemory when it would hold too little or not fit the device.
    """
    block_tokens, block_bytes = groups[0].block_tokens, groups[0].block_bytes
    room = device_bytes_total - device_bytes_used
    if kv_cache_size is None:
        capacity = int(memory_fraction * device_bytes_total) - device_bytes_used
        source = f"{memory_fraction:.0%} of {_mib(device_bytes_total)} less {_mib(device_bytes_used)} in use"
    else:
        capacity = kv_cache_size
        source = f"kv-cache-size {_mib(kv_cache_size)}"
        if capacity > room:
            raise StartError(
                StartReason.INSUFFICIENT_MEMORY,
                f"{source} does not fit: the device has {_mib(device_bytes_total)}, {_mib(device_bytes_used)} are in "
                f"use without a KV cache, so {_mib(max(0, room))} are left",
            )
    per_token = sum(group.block_bytes for group in groups) // block_tokens
    blocks = max(0, capacity // block_bytes - 1)
    tokens = longest_request(groups, blocks, step_tokens=step_tokens)
    least = min(MIN_POOL_TOKENS, model_context, context_limit or model_context)
    if tokens < least:
        enough = (blocks_held(groups, [least], step_tokens=step_tokens) + 1) * block_bytes
        remedy = f"a KV cache of {_mib_up(enough)}"
        if kv_cache_size is None:
            remedy += f", so a device of {_mib_up(device_bytes(enough, device_bytes_used, memory_fraction))},"
        raise StartError(
            StartReason.INSUFFICIENT_MEMORY,
            f"the KV cache would hold {tokens} tokens, {least} are the least ({source}; {per_token} bytes a token); "
            f"{remedy} would be enough",
        )
    return Ledger(
        block_tokens=block_tokens,
        block_bytes=block_bytes,
        bytes_per_token=per_token,
        blocks=blocks,
        max_tokens=tokens,
        context=min(tokens, model_context, context_limit or model_context),
        model_context=model_context,
        swap_slots=swap_slots,
    )


def blocks_held(groups: Sequence[KVGroup], lengths: Sequence[int], *, step_tokens: int, shared: int = 0) -> int:
    """Blocks over all groups that requests of these lengths hold at once, their first `shared` tokens in common."""
    return sum(most_at_once(group, lengths, shared=shared, step_tokens=step_tokens) for group in groups)


def longest_request(groups: Sequence[KVGroup], blocks: int, *, step_tokens: int) -> int:
    """Tokens of the longest request that so many blocks hold, alone. Whole blocks; found by bisection.

    Where all layers see a window only, no number of tokens would be too much: then as many as there are slots.
    """
    block_tokens = groups[0].block_tokens
    low, high = 0, blocks
    while low < high:
        middle = (low + high + 1) // 2
        held = blocks_held(groups, [middle * block_tokens], step_tokens=step_tokens)
        low, high = (middle, high) if held <= blocks else (low, middle - 1)
    return low * block_tokens


def device_bytes(cache_bytes: int, device_bytes_used: int, memory_fraction: float) -> int:
    """The smallest device whose `memory_fraction` holds what is used without a cache, and a cache of `cache_bytes`."""
    wanted = cache_bytes + device_bytes_used
    total = max(0, int(wanted / memory_fraction) - 2)  # the division rounds, as the product below does
    while int(memory_fraction * total) < wanted:
        total += 1
    return total


def swap_slots(*, swap_space: int, block_bytes: int, host_bytes_total: int, host_bytes_used: int) -> int:
    """Blocks that the swap space holds. Raises StartError when the host's memory or one block is too large for it."""
    if swap_space > host_bytes_total - host_bytes_used:
        raise StartError(
            StartReason.INSUFFICIENT_MEMORY,
            f"--swap-space {_mib(swap_space)} does not fit: the host has {_mib(host_bytes_total)}, "
            f"{_mib(host_bytes_used)} are in use",
        )
    slots = swap_space // block_bytes
    if swap_space and not slots:
        raise StartError(
            StartReason.CONFIG_INVALID, f"--swap-space {swap_space} bytes is less than a block of {block_bytes}"
        )
    return slots


def _mib(size: int) -> str:
    return f"{size / (1 << 20):.0f} MiB" if size >= 1 << 20 else f"{size} bytes"


def _mib_up(size: int) -> str:
    return f"{-(-size // (1 << 20))} MiB"
