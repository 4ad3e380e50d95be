"""The largest step's temporary tensors, estimated, with attention by kernels that need none for the past.

The engine itself measures them at start (runner.largest_step).
"""

from __future__ import annotations

from kvik_engine.models.config import ModelConfig

RUNTIME_BYTES = 512 << 20
"""Assumed for the driver's context, libraries and compiled kernels."""
_SAMPLING_COPIES = 9
"""fp32 tensors [rows, vocabulary] alive at once when rows ask for penalties, filters, logprobs and noise."""
_ALLOCATOR = 1.75
"""What an allocator takes beside the tensors: 1.1 to 1.8 times them was measured on a CPU, over shapes and dtypes."""


def step_bytes(config: ModelConfig, *, tokens: int, rows: int, element_bytes: int) -> int:
    """Of a prefill of `tokens`, or of `rows` that sample with every parameter set, whichever is larger.

    Follows models and layers: the residual and its successor in fp32, and either the projections with their rotation
    in fp32, or the feed-forward network's two widths and their product.
    """
    residual = 2 * 4 * config.hidden_size
    normed = 2 * config.hidden_size * element_bytes
    forward = tokens * (residual + normed + max(_attention(config, element_bytes), _mlp(config, element_bytes)))
    sampling = tokens * config.hidden_size * element_bytes + _SAMPLING_COPIES * 4 * rows * config.vocab_size
    return int(_ALLOCATOR * max(forward, sampling))


def _attention(config: ModelConfig, element_bytes: int) -> int:
    """Bytes a token."""
    latent = config.latent
    if latent is None:
        rotated = (config.heads + config.kv_heads) * config.head_dim
        return (config.heads + 2 * config.kv_heads) * config.head_dim * element_bytes + 3 * 4 * rotated
    # Queries as projected and in the latent's terms; what they attend to, in the latent's terms and out of them.
    widths = config.head_dim + 2 * latent.kv_rank + latent.rope_dim + latent.value_dim
    rotated = (config.heads + 1) * latent.rope_dim
    return config.heads * widths * element_bytes + 3 * 4 * rotated


def _mlp(config: ModelConfig, element_bytes: int) -> int:
    """Bytes a token."""
    experts = config.experts
    width = config.intermediate_size
    if experts is not None:
        width = max(width, (experts.per_token + experts.shared) * experts.intermediate_size)
    return 3 * width * element_bytes
