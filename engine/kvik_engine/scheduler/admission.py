"""Whether a waiting request may start now, later or never. Pure arithmetic over block and token counts.

A request starts only with room for its whole prompt (and for the forks' own last block) beside what is still owed to
prompts admitted before, plus a watermark for the growth of running ones. Cached blocks that the request itself hits
cost nothing, but they also are no longer room.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kvik_engine.kv.manager import KVManager
from kvik_engine.kv.prefix_cache import Hit
from kvik_engine.request import Branch, Life, Request

WATERMARK = 0.02
"""Share of the pool that stays available when a request is admitted beside others."""


def watermark(kv: KVManager, running: Iterable[Request]) -> int:
    """Blocks kept back for the growth of running requests: the next block of each of their branches, and a share.

    In a simulated overload of chats (50-500 + 20-300 tokens, 356 blocks) the next block of each branch brings the
    recomputed share of all tokens from 14 % to 6 %, for 2 % more steps.
    """
    return max(1, int(kv.pool.total * WATERMARK), sum(len(request.live) for request in running))


def blocks_for_known(request: Request, kv: KVManager) -> int:
    """Blocks for all known tokens of all branches, the whole blocks of the prompt shared among them."""
    return kv.needed([branch.known for branch in request.live], shared=request.prompt_length)


def blocks_at_most(request: Request, kv: KVManager) -> int:
    """Blocks when every branch is at its token limit. The last token of a branch needs no KV."""
    return kv.needed([request.token_limit - 1] * len(request.live), shared=kv.always_shared(request.prompt_length))


def can_ever_fit(request: Request, kv: KVManager, rows: int) -> bool:
    """Whether an otherwise empty engine could finish the request (vllm #39734: else it blocks the queue for ever)."""
    return request.params.n <= rows and blocks_at_most(request, kv) <= kv.pool.total


def has_room(
    request: Request,
    kv: KVManager,
    *,
    running: Sequence[Request],
    hit: Hit,
    owed: int,
    more_blocks: int,
    pool_was_full: bool,
) -> bool:
    """Whether the request's blocks are there, with `more_blocks` on top of what is available.

    Alone it needs no watermark. In a pool-full episode it must fit, with everything that runs, to the last token.
    """
    room = kv.pool.available + more_blocks - kv.idle(hit.without_part())
    hit_blocks = len(hit.shared)
    if not running:
        return blocks_for_known(request, kv) - hit_blocks <= room
    if pool_was_full:
        return blocks_at_most(request, kv) - hit_blocks + growth_at_most(running, kv) <= room
    return blocks_for_known(request, kv) - hit_blocks + owed + watermark(kv, running) <= room


def owed(request: Request, kv: KVManager) -> int:
    """Blocks that an admitted request still needs for its known tokens; 0 once its prompt is done."""
    return sum(_owed_to(branch, kv) for branch in request.live)


def _owed_to(branch: Branch, kv: KVManager) -> int:
    request = branch.request
    if branch.life is not Life.WAITING:
        return 0 if branch.decoding else kv.growth(branch, branch.known)
    if branch is request.leader:
        return kv.needed([branch.known])
    return kv.needed([branch.known]) - kv.whole(request.prompt_length)


def growth_at_most(running: Iterable[Request], kv: KVManager) -> int:
    """Blocks that running requests may still take until all of them end."""
    return sum(kv.growth(branch, request.token_limit - 1) for request in running for branch in request.live)
