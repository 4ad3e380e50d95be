"""Which layers of a model share a block table, and what one block of them takes. Pure: `kvik plan` needs no torch.

All groups have blocks of the same number of tokens and bytes, so that one pool serves them. Layers that see all of the
past and layers that see a window stand in groups of their own, since their blocks are freed at different times; a kind
with more layers than a block has slots is divided into several groups (docs/decisions/0037).
"""

from __future__ import annotations

from collections.abc import Sequence

from kvik_engine.attention.kv_layout import KVFormats, KVLayout, LayerPlace
from kvik_engine.errors import StartError, StartReason
from kvik_engine.models.config import ModelConfig
from kvik_engine.step import GroupKind, KVGroup

MOST_PADDING = 1 / 6
"""Of the layers of one kind: so much may lie idle in their blocks to have fewer groups, each of which costs time and
tables. (Gemma-3-27B: 52 window layers in five groups of 11 leave 3 slots idle, 10 full layers leave 1.)"""


def kv_groups(config: ModelConfig, block_tokens: int, formats: KVFormats) -> tuple[KVGroup, ...]:
    """The KV groups of a model whose cache keeps keys and values in `formats`. The first group's layers see all of the
    past, if any layer does."""
    layout = kv_layout(config, block_tokens, formats)
    kind = GroupKind.FULL if config.latent is None else GroupKind.LATENT
    return tuple(
        KVGroup(
            kind=kind if window is None else GroupKind.WINDOW,
            layers=tuple(layer for layer, place in enumerate(layout.places) if place.group == group),
            block_tokens=block_tokens,
            block_bytes=layout.block_bytes,
            window=window,
        )
        for group, window in enumerate(layout.windows)
    )


def kv_layout(config: ModelConfig, block_tokens: int, formats: KVFormats) -> KVLayout:
    """How blocks of `block_tokens` tokens are divided among the model's layers.

    Raises StartError (ModelUnsupported) for a latent that should be quantised: its first elements are the values; and
    for heads that are no whole number of the groups that share a scale.
    """
    if config.latent is not None and formats.quantised:
        raise StartError(
            StartReason.MODEL_UNSUPPORTED,
            f"{config.architecture}: a latent KV cache is kept as computed; leave --kv-key-dtype and --kv-value-dtype "
            "at auto",
        )
    for flag, kept in (("--kv-key-dtype", formats.key), ("--kv-value-dtype", formats.value)):
        if not kept.serves(config.head_dim):
            raise StartError(
                StartReason.MODEL_UNSUPPORTED,
                f"{flag}={kept.name}: {config.architecture} has heads of {config.head_dim} elements, which groups of "
                f"{kept.group} do not divide; int8 and fp8 serve them",
            )
    windowed = () if config.window is None else config.window.layers
    full = tuple(sorted(set(range(config.layers)).difference(windowed)))
    slots = slots_per_block([len(full), len(windowed)])
    window = None if config.window is None else config.window.tokens
    groups = [(part, seen) for kind, seen in ((full, None), (windowed, window)) for part in _parts(kind, slots)]
    places = {
        layer: LayerPlace(group, slot) for group, (part, _) in enumerate(groups) for slot, layer in enumerate(part)
    }
    latent = config.latent
    width = config.head_dim if latent is None else latent.kv_rank + latent.rope_dim
    return KVLayout(
        block_tokens=block_tokens,
        slots=slots,
        parts=2 if latent is None else 1,
        heads=config.kv_heads if latent is None else 1,
        width=width,
        value_width=width if latent is None else latent.kv_rank,
        windows=tuple(seen for _, seen in groups),
        places=tuple(places[layer] for layer in range(config.layers)),
        formats=formats,
    )


def slots_per_block(counts: Sequence[int]) -> int:
    """How many layers a block holds, given how many there are of each kind: as few groups as can be made so that the
    last one of each kind leaves at most MOST_PADDING of that kind idle, and no more slots than these need."""

    def groups(slots: int) -> int:
        return sum(-(-count // slots) for count in counts)

    fitting = [
        slots for slots in range(1, max(counts) + 1) if all(-count % slots <= MOST_PADDING * count for count in counts)
    ]
    return min(fitting, key=lambda slots: (groups(slots), slots))


def _parts(layers: Sequence[int], slots: int) -> list[Sequence[int]]:
    return [layers[first : first + slots] for first in range(0, len(layers), slots)]
