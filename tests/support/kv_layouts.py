"""Layouts of a KV cache without a model."""

from kvik_engine.attention.kv_layout import KVFormats, KVLayout, LayerPlace

FP32 = KVFormats.of("fp32")


def one_group(*, layers: int, kv_heads: int, head_dim: int, block_tokens: int, formats: KVFormats = FP32) -> KVLayout:
    """All layers alike, each with keys and values, all of the past seen."""
    return KVLayout(
        block_tokens=block_tokens,
        slots=layers,
        parts=2,
        heads=kv_heads,
        width=head_dim,
        value_width=head_dim,
        windows=(None,),
        places=tuple(LayerPlace(0, layer) for layer in range(layers)),
        formats=formats,
    )
