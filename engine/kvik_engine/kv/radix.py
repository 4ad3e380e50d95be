"""Finding blocks that hold the KV of a prompt's beginning, in a tree of blocks (radix cache, arXiv 2312.07104).

A node is one block of tokens with one block of KV per group; there is a tree for each salt. A walk takes whole blocks,
then the first tokens of the block that shares most with what comes next. The last, partly filled block of a branch is a
node, too, until a longer one replaces it. Equal blocks are not merged: the first one added is the one that is found.

A branch holds the blocks of full and latent groups on its whole path and releases them tail first, so the one that is
evicted is a leaf, unless the branch below computed equal blocks of its own. Losing an inner one loses all below it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import cast

from kvik_engine.kv.block import SCRATCH, Block
from kvik_engine.kv.prefix_cache import GroupBlocks, Hit, PartHit
from kvik_engine.kv.token_tree import TOKEN_BYTES, Node, common_tokens, pack
from kvik_engine.kv.windows import blocks_of_hit, first_needed
from kvik_engine.request import Branch
from kvik_engine.step import KVGroup

_STRIDE = 32
"""Blocks of tokens that are packed at once: little is packed in vain when the first one is not found."""


class RadixCache:
    """A branch's `trail` is its path: the nodes of its leading whole blocks, as far as they were looked up or added."""

    def __init__(self, groups: Sequence[KVGroup]) -> None:
        self._groups = tuple(groups)
        self._block_tokens = groups[0].block_tokens
        self._windows = [index for index, group in enumerate(groups) if group.window is not None]
        self._roots: dict[bytes, Node] = {}

    def find(self, branch: Branch, limit: int) -> Hit:
        size = self._block_tokens
        path = self._walk(branch, limit // size)
        whole = self._within_windows(path) if self._windows else len(path)
        part = self._part(branch, path, limit) if whole == len(path) else None
        blocks = [self._blocks_of(path[:whole], index) for index in range(len(self._groups))]
        return Hit(whole * size, tuple(blocks), part, common=whole > 0 and self._goes_on(path[whole - 1]))

    def add(self, branch: Branch, tokens: int, tables: GroupBlocks, *, since: int) -> Sequence[Block]:
        whole, rest = divmod(tokens, self._block_tokens)
        trail = self._alive(branch)
        depth = min(whole, len(trail))
        for index in range(since // self._block_tokens, depth):
            self._complete(trail[index], [table[index] for table in tables])
        node = trail[depth - 1] if depth else self._root(branch)
        replaced: list[Block] = []
        for index, key in self._keys(branch, depth, whole):
            node = self._enter(node, key, [table[index] for table in tables], replaced)
            trail.append(node)
        if rest:
            key = pack(branch.tokens[tokens - rest : tokens])
            self._enter(node, key, [table[whole] for table in tables], replaced)
        self._prune(node)
        return replaced

    def forget(self, block: Block) -> Sequence[Block]:
        node = block.entry
        assert isinstance(node, Node), block
        if self._groups[block.group].window is None:
            parent, lost = node.parent, _take_out(node)
            assert parent is not None
            self._prune(parent)
            return lost
        block.entry = None
        node.blocks = tuple(None if other is block else other for other in node.blocks)
        self._prune(node)
        return [block]

    def blocks(self) -> Iterable[Block]:
        return (block for root in self._roots.values() for node in _below(root) for block in node.blocks if block)

    def _root(self, branch: Branch) -> Node:
        salt = branch.request.salt
        root = self._roots.get(salt)
        if root is None:
            root = self._roots[salt] = Node(salt, ())
        return root

    def _alive(self, branch: Branch) -> list[Node]:
        """The branch's trail, without nodes that were taken out of the tree: what is above a live node is alive."""
        trail: list[Node] = branch.trail
        while trail and trail[-1].parent is None:
            trail.pop()
        return trail

    def _keys(self, branch: Branch, first: int, end: int) -> Iterator[tuple[int, bytes]]:
        """Indices and packed tokens of the branch's blocks [first, end)."""
        size = self._block_tokens
        for start in range(first, end, _STRIDE):
            stop = min(end, start + _STRIDE)
            packed = pack(branch.tokens[start * size : stop * size])
            width = size * TOKEN_BYTES
            for index in range(start, stop):
                at = (index - start) * width
                yield index, packed[at : at + width]

    def _walk(self, branch: Branch, most: int) -> list[Node]:
        """The nodes of the branch's leading whole blocks, at most so many."""
        trail = self._alive(branch)
        node = trail[-1] if trail else self._roots.get(branch.request.salt)
        if node is not None:
            for _, key in self._keys(branch, len(trail), most):
                node = node.child(key)
                if node is None:
                    break
                trail.append(node)
        return trail[:most]

    def _goes_on(self, node: Node) -> bool:
        """Whether something was computed behind this block, a mere part of the next one aside. O(1)."""
        children = node.children
        if isinstance(children, Node):
            return len(children.key) == self._block_tokens * TOKEN_BYTES
        return children is not None

    def _within_windows(self, path: Sequence[Node]) -> int:
        """How many leading nodes make a hit: every window group must have the blocks that the next token reads."""
        return blocks_of_hit(self._groups, ([block is not None for block in node.blocks] for node in path))

    def _blocks_of(self, path: Sequence[Node], group: int) -> tuple[Block, ...]:
        first = first_needed(self._groups[group], len(path) * self._block_tokens)
        found = [node.blocks[group] for node in path[first:]]  # none is None: see _within_windows
        return (SCRATCH,) * first + tuple(cast("list[Block]", found))

    def _part(self, branch: Branch, path: Sequence[Node], limit: int) -> PartHit | None:
        """The child behind the path that shares most with the branch's next tokens."""
        parent = path[-1] if path else self._roots.get(branch.request.salt)
        start = len(path) * self._block_tokens
        probe = pack(branch.tokens[start : min(limit, start + self._block_tokens)])
        best = None
        for node in parent.neighbours(probe) if parent and probe else ():
            sources = tuple([block for block in node.blocks if block is not None])
            tokens = common_tokens(node.key, probe)
            if len(sources) == len(self._groups) and tokens > (best.tokens if best else 0):
                best = PartHit(sources, tokens)
        return best

    def _enter(self, parent: Node, key: bytes, blocks: Sequence[Block], replaced: list[Block]) -> Node:
        """The child of `parent` with these tokens: the one that is there, or a new one for `blocks`."""
        for other in parent.neighbours(key):
            if other.key.startswith(key):
                if len(other.key) == len(key):
                    self._complete(other, blocks)
                return other
            if key.startswith(other.key):
                replaced += _take_out(other)
        node = Node(key, tuple([None if block is SCRATCH else block for block in blocks]))
        for block in blocks:
            assert block.entry is None, "a block is in one place of the tree"
            if block is not SCRATCH:
                block.entry = node
        parent.attach(node)
        return node

    def _complete(self, node: Node, blocks: Sequence[Block]) -> None:
        """Give a node blocks of window groups that it lost."""
        for group in self._windows:
            block = blocks[group]
            if node.blocks[group] is None and block is not SCRATCH and block.entry is None:
                block.entry = node
                node.blocks = (*node.blocks[:group], block, *node.blocks[group + 1 :])

    def _prune(self, node: Node) -> None:
        """Take out a node that finds nothing any more, and then perhaps its parent."""
        while node.children is None and not any(node.blocks):
            parent = node.parent
            if parent is None:
                self._roots.pop(node.key, None)
                return
            node.detach()
            node = parent


def _below(node: Node) -> Iterator[Node]:
    """The node and everything below it, without recursion: a path may have thousands of nodes."""
    stack = [node]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(node)


def _take_out(node: Node) -> list[Block]:
    """Take a node and all below it out of the tree; returns their blocks."""
    lost: list[Block] = []
    node.detach()
    for each in list(_below(node)):
        for block in each.blocks:
            if block is not None:
                block.entry = None
                lost.append(block)
        each.blocks = ()
        each.parent = None
    return lost
