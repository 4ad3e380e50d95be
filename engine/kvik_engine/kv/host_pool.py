"""The host pool (swap space): slots in the host's memory, each for the content of one block of the device.

    free    no content; taken first
    cached  content that `find` knows, nobody needs it; the longest unused goes when no slot is free
    owned   held by swapped-out branches, or pinned by transfers that still read or write it

free + cached + owned = total. Content is named by what it is, not by where it was: group and chained digest.
"""

from __future__ import annotations

from collections import OrderedDict

from kvik_engine.step import HostSlot

ContentKey = tuple[int, bytes]
"""KV group, and the digest over the block's tokens, all tokens before them and the salt (kv.prefix_hash)."""


class Slot:
    """A place for one block. `holders` are table entries of swapped-out branches; `pins` are transfers."""

    __slots__ = ("holders", "id", "key", "pins")

    def __init__(self, number: int) -> None:
        self.id = HostSlot(number)
        self.holders = 0
        self.pins = 0
        self.key: ContentKey | None = None

    def __repr__(self) -> str:
        return f"Slot({self.id}, holders={self.holders}, pins={self.pins}, named={self.key is not None})"


class HostPool:
    """Slots 0 to `total` - 1. Every operation is O(1)."""

    def __init__(self, total: int) -> None:
        self.slots = [Slot(number) for number in range(total)]
        self._free = list(reversed(self.slots))
        self._cached: OrderedDict[Slot, None] = OrderedDict()
        self._named: dict[ContentKey, Slot] = {}

    @property
    def total(self) -> int:
        return len(self.slots)

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def cached(self) -> int:
        return len(self._cached)

    @property
    def owned(self) -> int:
        return len(self.slots) - len(self._free) - len(self._cached)

    @property
    def available(self) -> int:
        """Slots that `take` can give now."""
        return len(self._free) + len(self._cached)

    def take(self) -> Slot:
        """A slot without content, pinned once. There must be one available."""
        if self._free:
            slot = self._free.pop()
        else:
            slot, _ = self._cached.popitem(last=False)
            self._unname(slot)
        assert slot.key is None
        assert slot.holders == slot.pins == 0, slot
        slot.pins = 1
        return slot

    def find(self, key: ContentKey) -> Slot | None:
        """The slot with this content. Hold or pin it before the next `take`."""
        return self._named.get(key)

    def touch(self, slot: Slot) -> None:
        """Its content was wanted again just now."""
        if slot in self._cached:
            self._cached.move_to_end(slot)

    def name(self, slot: Slot, key: ContentKey) -> None:
        """An owned slot will hold this content; `find` knows it from now on, unless it knows another one."""
        assert slot.holders or slot.pins, slot
        if slot.key is None and key not in self._named:
            slot.key = key
            self._named[key] = slot

    def forget(self, key: ContentKey) -> None:
        """This content must not be found any more. Fine if there is none."""
        slot = self._named.get(key)
        if slot is None:
            return
        self._unname(slot)
        if slot in self._cached:
            del self._cached[slot]
            self._free.append(slot)

    def hold(self, slot: Slot) -> None:
        self._cached.pop(slot, None)
        slot.holders += 1

    def drop(self, slot: Slot) -> None:
        assert slot.holders > 0, slot
        slot.holders -= 1
        self._put_back(slot)

    def pin(self, slot: Slot) -> None:
        """A transfer needs the slot, whoever else leaves."""
        self._cached.pop(slot, None)
        slot.pins += 1

    def unpin(self, slot: Slot) -> None:
        assert slot.pins > 0, slot
        slot.pins -= 1
        self._put_back(slot)

    def free_slots(self) -> list[Slot]:
        """The free slots, for checks and tests."""
        return list(self._free)

    def cached_slots(self) -> list[Slot]:
        """The cached slots, the longest unused first, for checks and tests."""
        return list(self._cached)

    def _unname(self, slot: Slot) -> None:
        assert slot.key is not None
        del self._named[slot.key]
        slot.key = None

    def _put_back(self, slot: Slot) -> None:
        if slot.holders or slot.pins:
            return
        if slot.key is None:
            self._free.append(slot)
        else:
            self._cached[slot] = None
