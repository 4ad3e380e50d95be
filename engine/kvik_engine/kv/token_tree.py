"""A tree whose edges are blocks of tokens: packed keys, siblings in order, as little memory a node as Python allows.

Most nodes have one child, so a node points to that alone; a sorted list is made for the second. Among sorted keys, the
one that shares most with a probe is next to the probe's place, so bisect finds it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence

from kvik_engine.kv.block import Block

TOKEN_BYTES = array("I").itemsize


class Node:
    """One block of tokens at one place of the tree. A root has no parent, and its key is the salt.

    `blocks` has the block of each KV group that holds the KV of these tokens, None where it is gone.
    A node that was taken out of the tree has no parent either.
    """

    __slots__ = ("blocks", "children", "key", "parent")

    def __init__(self, key: bytes, blocks: tuple[Block | None, ...]) -> None:
        self.key = key
        self.blocks = blocks
        self.parent: Node | None = None
        self.children: Node | Siblings | None = None

    def __iter__(self) -> Iterator[Node]:
        if isinstance(self.children, Node):
            yield self.children
        elif self.children is not None:
            yield from self.children.nodes

    def child(self, key: bytes) -> Node | None:
        """The child with exactly this key."""
        children = self.children
        if children is None:
            return None
        if isinstance(children, Node):
            return children if children.key == key else None
        place = bisect_left(children.keys, key)
        return children.nodes[place] if place < len(children.keys) and children.keys[place] == key else None

    def neighbours(self, key: bytes) -> list[Node]:
        """The children just before and from `key` in the order of keys: among them is the one that shares most."""
        children = self.children
        if children is None:
            return []
        if isinstance(children, Node):
            return [children]
        place = bisect_left(children.keys, key)
        return children.nodes[max(0, place - 1) : place + 1]

    def attach(self, child: Node) -> None:
        """Add a child; there must be none with its key."""
        child.parent = self
        children = self.children
        if children is None:
            self.children = child
            return
        if isinstance(children, Node):
            self.children = children = Siblings(children)
        place = bisect_left(children.keys, child.key)
        children.keys.insert(place, child.key)
        children.nodes.insert(place, child)

    def detach(self) -> None:
        """Leave the tree, with everything below."""
        assert self.parent is not None
        siblings = self.parent.children
        if isinstance(siblings, Siblings):
            place = bisect_left(siblings.keys, self.key)
            assert siblings.nodes[place] is self
            del siblings.keys[place], siblings.nodes[place]
            if len(siblings.nodes) == 1:
                self.parent.children = siblings.nodes[0]
        else:
            assert siblings is self
            self.parent.children = None
        self.parent = None


class Siblings:
    """The children of a node that has more than one, in the order of their keys."""

    __slots__ = ("keys", "nodes")

    def __init__(self, only: Node) -> None:
        self.keys = [only.key]
        self.nodes = [only]


def pack(tokens: Sequence[int]) -> bytes:
    return array("I", tokens).tobytes()


def common_tokens(one: bytes, other: bytes) -> int:
    """How many leading tokens two packed keys share."""
    same, most = 0, min(len(one), len(other))
    while same < most and one[same : same + TOKEN_BYTES] == other[same : same + TOKEN_BYTES]:
        same += TOKEN_BYTES
    return same // TOKEN_BYTES
