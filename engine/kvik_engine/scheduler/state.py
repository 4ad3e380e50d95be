"""What the scheduler keeps between steps, for the files that share its work."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvik_engine.kv.manager import KVManager
from kvik_engine.kv.offload import Offload
from kvik_engine.request import Request
from kvik_engine.scheduler.continuation import Continuation
from kvik_engine.scheduler.fairness import ServiceCounters
from kvik_engine.scheduler.news import Counters
from kvik_engine.scheduler.policy import WaitingQueue
from kvik_engine.scheduler.preemption import OutputLengths
from kvik_engine.scheduler.rows import Rows


@dataclass(slots=True, kw_only=True)
class State:
    """The scheduler's own. `settling`, `hands` and `making_room` change it on its behalf."""

    kv: KVManager
    offload: Offload
    rows: Rows
    served: ServiceCounters
    waiting: WaitingQueue
    running: list[Request] = field(default_factory=list)
    """In rank order."""
    continuations: dict[Request, Continuation] = field(default_factory=dict)
    """Of all requests that have not ended."""
    lengths: OutputLengths = field(default_factory=OutputLengths)
    counters: Counters = field(default_factory=Counters)
    full_from: int | None = None
    """The pool-full episode: the best class that lost a request, from then until any request ends."""
