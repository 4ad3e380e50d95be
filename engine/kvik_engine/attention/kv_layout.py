"""How the blocks of the KV pool are divided among layers. Values only, no torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KVFormat:
    """How the keys, or the values, of a cache are kept. A vector is one token's of one head."""

    name: str
    element_bits: int
    scale_bytes: int = 0
    """Of a group of elements; 0: there are no scales."""
    group: int | None = None
    """Elements that share scales; None: all of a vector's."""
    rotated: bool = False
    """Whether keys are rotated before they are kept so, and queries with them (attention.rotation)."""

    @property
    def quantised(self) -> bool:
        return self.element_bits < _COMPUTED_BITS

    @property
    def scaled(self) -> bool:
        return self.scale_bytes > 0

    def serves(self, width: int) -> bool:
        """Whether vectors of so many elements can be kept so."""
        return self.group is None or width % self.group == 0

    def page_bytes(self, block_tokens: int, width: int) -> int:
        """One head's vectors in a block, and their scales behind them. Rounded up to 16 bytes where it is quantised, so
        that what follows is aligned; blocks of 8 tokens and more have nothing to round for heads of even width."""
        groups = width // (self.group or width)
        size = block_tokens * (width * self.element_bits // 8 + groups * self.scale_bytes)
        return -(-size // _ALIGNED) * _ALIGNED if self.quantised else size


_ALIGNED = 16
_COMPUTED_BITS = 16
"""Of the shortest type that models compute in."""
_SCALE_BYTES = 2
"""A bfloat16 (kvik_kernels.quantised, which has the formats' meaning)."""
FORMATS = {
    each.name: each
    for each in (
        KVFormat("fp32", 32),
        KVFormat("bf16", 16),
        KVFormat("fp16", 16),
        KVFormat("int8", 8, _SCALE_BYTES),
        KVFormat("fp8", 8, rotated=True),
        KVFormat("fp8-dynamic", 8, _SCALE_BYTES, rotated=True),
        KVFormat("int4", 4, 2 * _SCALE_BYTES, group=32, rotated=True),
    )
}
QUANTISED = tuple(name for name, each in FORMATS.items() if each.quantised)


@dataclass(frozen=True, slots=True)
class KVFormats:
    """How keys and values are kept, chosen apart."""

    key: KVFormat
    value: KVFormat

    @classmethod
    def of(cls, dtype: str, key: str = "auto", value: str = "auto") -> KVFormats:
        """`dtype`: what the model computes in, which `auto` keeps."""
        return cls(*(FORMATS[dtype if name == "auto" else name] for name in (key, value)))

    @property
    def quantised(self) -> bool:
        """Whether either of them is."""
        return self.key.quantised or self.value.quantised


@dataclass(frozen=True, slots=True)
class LayerPlace:
    """A layer's keys and values lie at `slot` of the blocks that the tables of group `group` name."""

    group: int
    slot: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KVLayout:
    """One block: for each slot the pages of all heads' keys, then those of their values; the same in all groups.

    A page is [block_tokens, width] elements, and behind them [block_tokens] scales where the format has any. Layers of
    different groups use the same slots of different blocks.
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
    formats: KVFormats
    """Of a cache with one part, the key's alone counts."""

    @property
    def key_page_bytes(self) -> int:
        return self.formats.key.page_bytes(self.block_tokens, self.width)

    @property
    def value_page_bytes(self) -> int:
        """0 where the values are the beginnings of the keys."""
        return self.formats.value.page_bytes(self.block_tokens, self.width) if self.parts == 2 else 0

    @property
    def slot_bytes(self) -> int:
        """What a block holds of one layer."""
        return self.heads * (self.key_page_bytes + self.value_page_bytes)

    @property
    def block_bytes(self) -> int:
        return self.slots * self.slot_bytes
