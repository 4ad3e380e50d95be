"""The plan as JSON (docs/plan.md has the schema) and as text for people."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kvik_engine.capacity.activations import RUNTIME_BYTES
from kvik_engine.capacity.kv_kinds import ELEMENT_BYTES, kv_kinds, own_kind
from kvik_engine.capacity.model_on_disk import ModelOnDisk
from kvik_engine.capacity.plan import Plan, Wanted

SCHEMA = 1


def as_json(name: str, model: ModelOnDisk, wanted: Wanted, plan: Plan) -> dict[str, Any]:
    """Bytes, tokens, seconds; null where something was not asked for. Keys are only ever added."""
    config, prefix = model.config, plan.prefix
    return {
        "schema": SCHEMA,
        "model": _model(name, model, plan),
        "wanted": {
            "memory_bytes": wanted.memory_bytes,
            "memory_fraction": wanted.memory_fraction,
            "dtype": wanted.dtype,
            "kv_key_dtype": wanted.formats.key.name,
            "kv_value_dtype": wanted.formats.value.name,
            "block_tokens": wanted.block_tokens,
            "context": wanted.context,
            "concurrency": wanted.concurrency,
            "max_batch_tokens": wanted.max_batch_tokens,
            "tensor_parallel": wanted.ranks,
        },
        "rank": _rank(plan),
        "served_context": plan.ledger.context,
        "requests": _requests(wanted, plan),
        "shared_prefix": None
        if prefix is None
        else {
            "tokens": prefix.tokens,
            "shared_bytes": prefix.shared_bytes,
            "unshared_bytes": prefix.unshared_bytes,
        },
        "kv_bytes_per_token_by_kind": {
            kind.name: {dtype: kind.bytes_per_token(config.layers, dtype) for dtype in ELEMENT_BYTES}
            for kind in kv_kinds(config)
        },
        "roofline": _roofline(wanted, plan),
    }


def _model(name: str, model: ModelOnDisk, plan: Plan) -> dict[str, Any]:
    config, stored = model.config, model.stored
    return {
        "name": name,
        "architecture": config.architecture,
        "parameters": plan.parameters,
        "parameters_per_token": plan.parameters_per_token,
        "attention": own_kind(config),
        "layers": config.layers,
        "heads": config.heads,
        "kv_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "context": config.context_length,
        "stored": None
        if stored is None
        else {
            "format": stored.format,
            "elements": stored.elements,
            "bytes": stored.bytes,
            "bytes_by_type": stored.bytes_by_type,
        },
    }


def _rank(plan: Plan) -> dict[str, Any]:
    ledger = plan.ledger
    return {
        "weight_bytes": plan.weight_bytes,
        "activation_bytes": plan.activation_bytes,
        "runtime_bytes": RUNTIME_BYTES,
        "kv_bytes_per_token": ledger.bytes_per_token,
        "kv_block_bytes": ledger.block_bytes,
        "kv_blocks": ledger.blocks,
        "kv_tokens": ledger.max_tokens,
        "kv_bytes": ledger.allocated_bytes,
        "kv_groups": [
            {"kind": group.kind.value, "layers": len(group.layers), "window": group.window} for group in plan.groups
        ],
    }


def _requests(wanted: Wanted, plan: Plan) -> dict[str, Any]:
    requests = plan.requests
    return {
        "fit": requests.fit,
        "enough": requests.fit >= wanted.concurrency,
        "blocks_each": requests.blocks_each,
        "bytes_each": requests.bytes_each,
        "longest_context": requests.longest,
        "memory_needed": requests.memory_needed,
    }


def _roofline(wanted: Wanted, plan: Plan) -> dict[str, Any] | None:
    speed, cost = plan.roofline, plan.cost
    if speed is None or wanted.gpu is None:
        return None
    return {
        "gpu": wanted.gpu.name,
        "requests": speed.rows,
        "seconds_per_token": speed.step_seconds,
        "decode_bound": speed.step_bound,
        "output_tokens_per_second": speed.output_tokens_per_second,
        "prefill_seconds": speed.prefill_seconds,
        "prefill_bound": speed.prefill_bound,
        "prompt_tokens_per_second": speed.prompt_tokens_per_second,
        "cost_per_million_output_tokens": None if cost is None else cost.per_million_output,
        "cost_per_million_prompt_tokens": None if cost is None else cost.per_million_prompt,
    }


def as_text(name: str, model: ModelOnDisk, wanted: Wanted, plan: Plan) -> str:
    """A few short tables."""
    return "\n".join(
        [
            *_model_lines(name, model, wanted, plan),
            "",
            *_memory_lines(wanted, plan),
            "",
            *_request_lines(wanted, plan),
            "",
            *_kind_lines(model),
            *_speed_lines(wanted, plan),
        ]
    )


def _model_lines(name: str, model: ModelOnDisk, wanted: Wanted, plan: Plan) -> Iterator[str]:
    config, stored = model.config, model.stored
    active = plan.parameters_per_token
    experts = "" if config.experts is None else f", {_count(active)} of them for each token"
    yield f"{name}: {config.architecture}, {_count(plan.parameters)} parameters{experts}"
    yield (
        f"  {config.layers} layers, {config.heads} heads, {config.kv_heads} KV heads of {config.head_dim} "
        f"({own_kind(config)}), context {config.context_length}"
    )
    if stored is not None:
        types = ", ".join(f"{type_name} {_size(size)}" for type_name, size in sorted(stored.bytes_by_type.items()))
        loaded = _size(plan.parameters * ELEMENT_BYTES[wanted.dtype])
        yield (
            f"  {stored.format}: {_size(stored.bytes)} of tensors{f' ({types})' if types else ''}, "
            f"{loaded} as {wanted.dtype}"
        )


def _memory_lines(wanted: Wanted, plan: Plan) -> Iterator[str]:
    ledger = plan.ledger
    where = "one device" if wanted.ranks == 1 else f"each of {wanted.ranks} devices"
    yield f"Memory of {where}: {_size(wanted.memory_bytes)}, of which {wanted.memory_fraction:.0%} are used"
    yield f"  weights as {wanted.dtype:<12}{_size(plan.weight_bytes):>12}"
    yield f"  activations (estimate) {_size(plan.activation_bytes):>12}   steps of {wanted.max_batch_tokens} tokens"
    yield f"  runtime (assumed)      {_size(RUNTIME_BYTES):>12}"
    yield (
        f"  KV cache               {_size(ledger.allocated_bytes):>12}   {ledger.blocks} blocks of "
        f"{ledger.block_tokens} tokens = {ledger.max_tokens} tokens, {ledger.bytes_per_token} bytes a token"
    )
    if wanted.formats.quantised:
        yield f"    keys as {wanted.formats.key.name}, values as {wanted.formats.value.name}, scales counted"
    for kind, window in dict.fromkeys((group.kind, group.window) for group in plan.groups):
        same = [group for group in plan.groups if (group.kind, group.window) == (kind, window)]
        seen = "" if window is None else f" of {window} tokens"
        layers = sum(len(group.layers) for group in same)
        yield f"    {layers} layers {kind.value}{seen}, in {len(same)} KV group{'s' if len(same) > 1 else ''}"


def _request_lines(wanted: Wanted, plan: Plan) -> Iterator[str]:
    requests = plan.requests
    yield f"Requests of {wanted.context} tokens: {requests.fit} fit, {wanted.concurrency} wanted"
    yield f"  each                   {_size(requests.bytes_each):>12}   {requests.blocks_each} blocks"
    if plan.prefix is not None:
        yield (
            f"  prefix of {plan.prefix.tokens:<13}{_size(plan.prefix.shared_bytes):>12}   shared, "
            f"{_size(plan.prefix.unshared_bytes)} if each had its own"
        )
    yield f"  served context         {plan.ledger.context:>12} tokens"
    if requests.fit < wanted.concurrency:
        yield (
            f"  too little for {wanted.concurrency}: {_size(requests.memory_needed)} would be enough, or a context of "
            f"{requests.longest} tokens"
        )


def _kind_lines(model: ModelOnDisk) -> Iterator[str]:
    config = model.config
    yield "KV bytes per token by kind of attention, same layers and heads (* is the model's own)"
    yield f"  {'':<24}" + "".join(f"{dtype:>10}" for dtype in ELEMENT_BYTES)
    for kind in kv_kinds(config):
        label = f"{kind.name}{'*' if kind.own else ' '} {kind.note}"
        sizes = "".join(f"{_kib(kind.bytes_per_token(config.layers, dtype)):>10}" for dtype in ELEMENT_BYTES)
        yield f"  {label:<24}{sizes}"
    yield "  KiB, without the scales of quantised caches"


def _speed_lines(wanted: Wanted, plan: Plan) -> Iterator[str]:
    speed = plan.roofline
    if wanted.gpu is None:
        return
    if speed is None:
        yield ""
        yield f"Roofline on {wanted.gpu.name}: no request of {wanted.context} tokens fits"
        return
    count = "" if wanted.ranks == 1 else f"{wanted.ranks} x "
    yield ""
    yield f"Roofline on {count}{wanted.gpu.name}: no engine is faster, real ones reach a part of it"
    yield (
        f"  decode   {speed.step_seconds * 1e3:10.2f} ms a token, {speed.output_tokens_per_second:,.0f} tokens/s over "
        f"{speed.rows} requests of {wanted.context} tokens ({speed.step_bound} bound)"
    )
    yield (
        f"  prefill  {speed.prefill_seconds * 1e3:10.2f} ms for {wanted.context} tokens, "
        f"{speed.prompt_tokens_per_second:,.0f} tokens/s ({speed.prefill_bound} bound)"
    )
    if plan.cost is not None:
        yield (
            f"  cost     {plan.cost.per_million_output:10.4f} per million output tokens, "
            f"{plan.cost.per_million_prompt:.4f} per million prompt tokens"
        )


def _size(size: float) -> str:
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= factor:
            return f"{size / factor:.2f} {unit}"
    return f"{size:.0f} B"


def _kib(size: float) -> str:
    return f"{size / 1024:,.1f}".removesuffix(".0")


def _count(parameters: int) -> str:
    return f"{parameters / 1e9:.2f} G" if parameters >= 1e9 else f"{parameters / 1e6:.1f} M"
