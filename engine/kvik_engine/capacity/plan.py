"""The plan: what a model takes on a device, how many requests fit beside it, how fast it can be and what it costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvik_engine.attention.kv_layout import KVFormats
from kvik_engine.capacity.activations import RUNTIME_BYTES, step_bytes
from kvik_engine.capacity.gpus import GPU
from kvik_engine.capacity.kv_kinds import ELEMENT_BYTES
from kvik_engine.capacity.ranks import rank_config
from kvik_engine.capacity.roofline import Roofline, cost_per_million, roofline
from kvik_engine.capacity.step_work import decode_work, prefill_work
from kvik_engine.errors import StartError, StartReason
from kvik_engine.kv.sizing import Ledger, blocks_held, device_bytes, size_cache
from kvik_engine.models.config import ModelConfig
from kvik_engine.models.kv_groups import kv_groups
from kvik_engine.models.parameters import count_parameters
from kvik_engine.step import KVGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is asked for. Bytes and prices are of one device; `context` is prompt and answer of one request."""

    memory_bytes: int
    memory_fraction: float
    dtype: str
    formats: KVFormats
    """Of the KV cache."""
    block_tokens: int
    context: int
    concurrency: int
    shared_prefix: int
    """Tokens at the beginning that all requests have in common, found in the prefix cache."""
    max_batch_tokens: int
    ranks: int
    gpu: GPU | None
    price_per_hour: float | None


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests of the wanted context in the KV cache of one rank. Bytes and blocks are over all KV groups."""

    blocks_each: int
    """Of one alone, at its fullest moment."""
    bytes_each: int
    fit: int
    """How many fit, with the shared prefix held once."""
    longest: int
    """The longest context at the wanted concurrency, the prefix included; 0 when not even one token each fits."""
    memory_needed: int
    """The smallest device for all wanted requests."""


@dataclass(frozen=True, slots=True)
class Prefix:
    """The shared prefix's whole blocks: bytes once, and what they would be once for each request."""

    tokens: int
    shared_bytes: int
    unshared_bytes: int


@dataclass(frozen=True, slots=True)
class Cost:
    """Of a million tokens, in the price's currency, at the roofline's rate."""

    per_million_output: float
    per_million_prompt: float


@dataclass(frozen=True, slots=True)
class Plan:
    """The answer. Everything but the parameters is of one rank."""

    parameters: int
    parameters_per_token: int
    """Without experts that a token does not choose, and the embedding's other rows."""
    weight_bytes: int
    activation_bytes: int
    groups: tuple[KVGroup, ...]
    ledger: Ledger
    requests: Requests
    prefix: Prefix | None
    roofline: Roofline | None
    cost: Cost | None

    @property
    def used_bytes(self) -> int:
        """Without a KV cache."""
        return self.weight_bytes + self.activation_bytes + RUNTIME_BYTES


def make_plan(config: ModelConfig, wanted: Wanted) -> Plan:
    """Raises StartError: InsufficientMemory, which says how much would be enough, or ConfigInvalid."""
    if wanted.context > config.context_length:
        raise StartError(
            StartReason.CONFIG_INVALID,
            f"--context: {wanted.context} tokens are more than the model's {config.context_length}",
        )
    if wanted.shared_prefix >= wanted.context:
        raise StartError(
            StartReason.CONFIG_INVALID,
            f"--shared-prefix: {wanted.shared_prefix} tokens leave nothing of the context's {wanted.context}",
        )
    rank, element = rank_config(config, wanted.ranks), int(ELEMENT_BYTES[wanted.dtype])
    weight_bytes = count_parameters(rank).total * element
    activations = step_bytes(
        rank,
        tokens=min(wanted.max_batch_tokens, config.context_length),
        rows=min(wanted.concurrency, wanted.max_batch_tokens),
        element_bytes=element,
    )
    groups = kv_groups(rank, wanted.block_tokens, wanted.formats)
    used = weight_bytes + activations + RUNTIME_BYTES
    ledger = size_cache(
        groups,
        model_context=config.context_length,
        context_limit=None,
        kv_cache_size=None,
        memory_fraction=wanted.memory_fraction,
        device_bytes_total=wanted.memory_bytes,
        device_bytes_used=used,
        step_tokens=wanted.max_batch_tokens,
    )
    requests = _requests(groups, ledger, used, wanted)
    rows = min(requests.fit, wanted.concurrency)
    speed = None if wanted.gpu is None or not rows else _roofline(rank, rows, element, wanted, wanted.gpu)
    counted = count_parameters(config)
    return Plan(
        parameters=counted.total,
        parameters_per_token=counted.per_token,
        weight_bytes=weight_bytes,
        activation_bytes=activations,
        groups=groups,
        ledger=ledger,
        requests=requests,
        prefix=_prefix(groups, wanted),
        roofline=speed,
        cost=_cost(wanted, speed),
    )


def _requests(groups: Sequence[KVGroup], ledger: Ledger, used: int, wanted: Wanted) -> Requests:
    def held(requests: int, tokens: int) -> int:
        return _held(groups, requests, tokens, wanted)

    each = held(1, wanted.context)
    needed = held(wanted.concurrency, wanted.context)
    return Requests(
        blocks_each=each,
        bytes_each=each * ledger.block_bytes,
        fit=_fit(lambda requests: held(requests, wanted.context), ledger.blocks),
        longest=_most(lambda tokens: held(wanted.concurrency, tokens) <= ledger.blocks, 0, ledger.context),
        memory_needed=device_bytes((needed + 1) * ledger.block_bytes, used, wanted.memory_fraction),
    )


def _held(groups: Sequence[KVGroup], requests: int, tokens: int, wanted: Wanted) -> int:
    """Blocks of so many requests of so many tokens, with the shared prefix held once."""
    shared = min(wanted.shared_prefix, tokens)
    return blocks_held(groups, [tokens] * requests, step_tokens=wanted.max_batch_tokens, shared=shared)


def _fit(held: Callable[[int], int], blocks: int) -> int:
    """How many requests fit. Each further one takes at most what the second one does, and less where windows are full:
    so the first guess fits, and is the answer without windows."""
    if held(1) > blocks:
        return 0
    guess = 1 + (blocks - held(1)) // (held(2) - held(1))
    return guess if held(guess + 1) > blocks else _most(lambda requests: held(requests) <= blocks, guess, blocks)


def _most(fits: Callable[[int], bool], low: int, high: int) -> int:
    """The largest number from `low` to `high` that fits, given that `low` and all smaller ones do."""
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def _prefix(groups: Sequence[KVGroup], wanted: Wanted) -> Prefix | None:
    """Groups that see a window only keep no prefix for long, so they are left out."""
    common = sum(wanted.shared_prefix // group.block_tokens for group in groups if group.window is None)
    if not common:
        return None
    once = common * groups[0].block_bytes
    return Prefix(tokens=wanted.shared_prefix, shared_bytes=once, unshared_bytes=once * wanted.concurrency)


def _roofline(rank: ModelConfig, rows: int, element: int, wanted: Wanted, gpu: GPU) -> Roofline:
    tokens = wanted.context
    return roofline(
        gpu,
        decode=decode_work(rank, rows=rows, context=tokens, element_bytes=element, formats=wanted.formats),
        rows=rows,
        prefill=prefill_work(
            rank, tokens=tokens, chunk=wanted.max_batch_tokens, element_bytes=element, formats=wanted.formats
        ),
        prompt_tokens=tokens,
    )


def _cost(wanted: Wanted, speed: Roofline | None) -> Cost | None:
    if wanted.price_per_hour is None or speed is None:
        return None
    price = wanted.price_per_hour * wanted.ranks
    return Cost(
        per_million_output=cost_per_million(price, speed.output_tokens_per_second),
        per_million_prompt=cost_per_million(price, speed.prompt_tokens_per_second),
    )
