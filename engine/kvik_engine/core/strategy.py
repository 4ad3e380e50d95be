"""How requests are batched and given memory: the product's way, and older ones to compare it with.

No flag leads here: measurements and tests hand one to `build_core`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kvik_engine.kv.contiguous import ContiguousKVManager
from kvik_engine.kv.manager import KVManager
from kvik_engine.kv.prefix_cache import PrefixCache
from kvik_engine.kv.sizing import Ledger
from kvik_engine.scheduler.batching import Batching, ContinuousBatching, StaticBatching
from kvik_engine.scheduler.room import ContiguousRoom, PagedRoom, Room
from kvik_engine.step import ModelFacts

MakeKV = Callable[[ModelFacts, Ledger, PrefixCache, int], KVManager]
"""From facts, ledger, prefix cache and the tokens of the largest step."""


def paged_kv(facts: ModelFacts, ledger: Ledger, cache: PrefixCache, step_tokens: int) -> KVManager:
    return KVManager(facts.groups, ledger.blocks, cache, step_tokens=step_tokens)


def contiguous_kv(facts: ModelFacts, ledger: Ledger, cache: PrefixCache, step_tokens: int) -> KVManager:
    """Prompt + max_tokens of each request; prefixes are not shared whatever `cache` is."""
    return ContiguousKVManager(facts.groups, ledger.blocks, step_tokens=step_tokens)


def contiguous_context_kv(facts: ModelFacts, ledger: Ledger, cache: PrefixCache, step_tokens: int) -> KVManager:
    """The whole served context for each request, as engines did that knew no max_tokens."""
    return ContiguousKVManager(facts.groups, ledger.blocks, step_tokens=step_tokens, reserved_tokens=ledger.context)


@dataclass(frozen=True, slots=True)
class Strategy:
    """Made anew for each core."""

    batching: Callable[[], Batching] = ContinuousBatching
    room: Callable[[], Room] = PagedRoom
    kv: MakeKV = paged_kv


PRODUCT = Strategy()
STATIC = Strategy(batching=StaticBatching)
CONTIGUOUS = Strategy(room=ContiguousRoom, kv=contiguous_kv)
CONTIGUOUS_CONTEXT = Strategy(room=ContiguousRoom, kv=contiguous_context_kv)
STATIC_CONTIGUOUS = Strategy(StaticBatching, ContiguousRoom, contiguous_kv)
