"""What one rank reads and multiplies in a step: the two sides of the roofline."""

from __future__ import annotations

from collections.abc import Iterator

from kvik_engine.attention.kv_layout import KVFormats
from kvik_engine.capacity.roofline import Work
from kvik_engine.models.config import ModelConfig
from kvik_engine.models.kv_groups import kv_layout
from kvik_engine.models.parameters import count_parameters


def decode_work(config: ModelConfig, *, rows: int, context: int, element_bytes: int, formats: KVFormats) -> Work:
    """A step of `rows` rows of one token each, that all see `context` tokens. `element_bytes`: of a weight."""
    seen = sum(min(context, window) for window in _reach(config, context))
    return Work(
        flops=rows * (2 * count_parameters(config).per_token + _pair_flops(config) * seen),
        bytes=_weights_read(config, rows) * element_bytes + rows * seen * _layer_token_bytes(config, formats),
    )


def prefill_work(config: ModelConfig, *, tokens: int, chunk: int, element_bytes: int, formats: KVFormats) -> Work:
    """A prompt of `tokens`, alone, in steps of at most `chunk`; its last token is sampled from."""
    head = config.vocab_size * config.hidden_size
    products = tokens * (count_parameters(config).per_token - head) + head
    pairs = sum(_pairs(tokens, window) for window in _reach(config, tokens))
    steps = -(-tokens // chunk)
    cached = config.layers * tokens * _layer_token_bytes(config, formats)
    return Work(
        flops=2 * products + _pair_flops(config) * pairs,
        bytes=steps * _weights_read(config, min(tokens, chunk)) * element_bytes + cached,
    )


def _reach(config: ModelConfig, context: int) -> Iterator[int]:
    """How far back each layer sees."""
    windowed = frozenset() if config.window is None else frozenset(config.window.layers)
    for layer in range(config.layers):
        yield config.window.tokens if config.window is not None and layer in windowed else context


def _pairs(tokens: int, window: int) -> int:
    """Pairs of a query and a key that it sees, over a whole prompt."""
    seen = min(tokens, window)
    return seen * (seen + 1) // 2 + (tokens - seen) * seen


def _pair_flops(config: ModelConfig) -> int:
    """Of one layer: a score, and a sum of values, for each head."""
    latent = config.latent
    widths = 2 * config.head_dim if latent is None else 2 * latent.kv_rank + latent.rope_dim
    return 2 * config.heads * widths


def _layer_token_bytes(config: ModelConfig, formats: KVFormats) -> int:
    """Of 16 tokens' pages, so that none is rounded up."""
    return kv_layout(config, 16, formats).slot_bytes // 16


def _weights_read(config: ModelConfig, tokens: int) -> float:
    """Parameters that a step of `tokens` tokens reads: those of one token, and the experts that the others choose.

    Experts are taken to be chosen evenly, so that count x (1 - (1 - per_token / count) ** tokens) of them are.
    """
    experts, read = config.experts, float(count_parameters(config).per_token)
    if experts is None:
        return read
    chosen = experts.count * (1 - (1 - experts.per_token / experts.count) ** tokens)
    one = 3 * config.hidden_size * experts.intermediate_size
    return read + (config.layers - experts.first_layer) * (chosen - experts.per_token) * one
