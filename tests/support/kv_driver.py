"""Moves branches through a KV manager by hand, without a scheduler."""

from __future__ import annotations

from itertools import count

from kvik_engine.kv.manager import KVManager
from kvik_engine.params import SamplingParams
from kvik_engine.request import Branch, Request
from kvik_engine.step import Row

_keys = count(1)


def make_branch(tokens: list[int], *, n: int = 1, salt: bytes = b"") -> Branch:
    """The first branch of a request of its own."""
    params = SamplingParams(max_tokens=100, seed=0, n=n)
    return Request((1, next(_keys)), tokens, params, 1, 0, salt, 0.0).branches[0]


def compute(kv: KVManager, branch: Branch, upto: int, step: int, *, settle: bool = True) -> None:
    """Plan tokens up to `upto` in step `step`, and settle it."""
    if branch not in kv.holdings:
        hit = kv.find(branch)
        kv.start(branch, hit, step)
        branch.row = Row(0)
        branch.start(len(branch.tokens), computed=hit.tokens, scheduled=hit.tokens)
    kv.prepare(branch, upto, step)
    branch.plan(upto, step, samples=False)
    if settle:
        branch.settle(upto)
        kv.commit(branch)
        kv.settle(step)
