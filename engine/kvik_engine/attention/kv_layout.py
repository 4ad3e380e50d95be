"""How the blocks of the KV pool are divided among layers. Values only, no torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LayerPlace:
    """A layer's keys and values lie at `slot` of the blocks that the tables of group `group` name."""

    group: int
    slot: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KVLayout:
    """One block: [slots, parts, heads, block_tokens, width] elements, the same in all groups.

    Layers of different groups use the same slots of different blocks.
    """

    block_tokens: int
    slots: int
    """Layers that a block has room for."""
    parts: int
    """2: keys, then values. 1: one vector a token, whose first `value_width` elements are its value."""
    heads: int
    """Key-value heads."""
    width: int
    """Elements of a key."""
    value_width: int
    windows: tuple[int | None, ...]
    """By group, how many of the last tokens its layers see; None: all."""
    places: tuple[LayerPlace, ...]
    """By layer."""

    @property
    def block_elements(self) -> int:
        return self.slots * self.parts * self.heads * self.block_tokens * self.width
