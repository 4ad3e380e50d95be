"""A request is a group of branches (its n choices or beams), and this is all that can happen to either.

Branches are scheduled; requests are admitted, limited and chosen as victims. Both live by the same table:

    WAITING --START--> RUNNING --PREEMPT--> WAITING
    WAITING --LOAD---> LOADING --START----> RUNNING
                       LOADING --PREEMPT--> WAITING
    any of these three --FINISH--> FINISHED

A waiting branch holds no row on the device and no blocks. A loading branch holds blocks whose content is on its way
from elsewhere (host memory, disk): it is not scheduled before all of it has arrived. Only branches load; their request
runs meanwhile. Branch 0 computes the prompt; the other choices wait until its last token is computed, start as forks
of it and sample from the same logits.

Per branch: computed <= scheduled <= known. Planning moves `scheduled`, settling moves `computed`; `known` counts the
samples that planned steps will bring (`pending`), so that step N + 1 can be planned before step N is settled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from kvik_engine.params import SamplingParams
from kvik_engine.step import Row

RequestKey = tuple[int, int]
"""(api_id, request_id): never a client's own id (vllm #10583)."""


class Life(StrEnum):
    """Where a request or a branch is."""

    WAITING = "waiting"
    LOADING = "loading"
    RUNNING = "running"
    FINISHED = "finished"


class LifeEvent(StrEnum):
    """What happens to a request or a branch."""

    START = "start"
    LOAD = "load"
    PREEMPT = "preempt"
    FINISH = "finish"


TRANSITIONS: Mapping[Life, Mapping[LifeEvent, Life]] = MappingProxyType(
    {
        Life.WAITING: {
            LifeEvent.START: Life.RUNNING,
            LifeEvent.LOAD: Life.LOADING,
            LifeEvent.FINISH: Life.FINISHED,
        },
        Life.LOADING: {
            LifeEvent.START: Life.RUNNING,
            LifeEvent.PREEMPT: Life.WAITING,
            LifeEvent.FINISH: Life.FINISHED,
        },
        Life.RUNNING: {LifeEvent.PREEMPT: Life.WAITING, LifeEvent.FINISH: Life.FINISHED},
        Life.FINISHED: {},
    }
)


class IllegalTransition(RuntimeError):
    """An event that the table does not know: a bug of the scheduler."""


def after(life: Life, event: LifeEvent) -> Life:
    """The state after `event`; IllegalTransition when the table has none."""
    try:
        return TRANSITIONS[life][event]
    except KeyError:
        raise IllegalTransition(f"{event} while {life}") from None


class Finish(StrEnum):
    """Why a branch ended. The same words as on the wire, where they are told."""

    STOP = "stop"
    LENGTH = "length"
    PRUNED = "pruned"
    """Other beams of its search were better. Never told."""
    ABORTED = "aborted"
    ERROR = "error"


@dataclass(slots=True, eq=False)
class Branch:
    """One choice of a request. `tokens` are known to the host: the prompt, then outputs; it only grows."""

    request: Request
    choice: int
    tokens: list[int]
    life: Life = Life.WAITING
    finish: Finish | None = None
    row: Row | None = None
    """Reserved at admission for every branch, also for those that start later as forks."""
    row_tokens: int = 0
    """How many tokens the runner got from the host when the row started; later ones are its own samples."""
    computed: int = 0
    scheduled: int = 0
    pending: int = 0
    last_step: int | None = None
    """The last planned step that touches the branch's blocks."""
    trail: list[Any] = field(default_factory=list)
    """What the prefix cache remembers of the leading whole blocks, one entry a block. Owned by it."""

    @property
    def known(self) -> int:
        """Tokens that exist once all planned steps are settled."""
        return len(self.tokens) + self.pending

    @property
    def outputs(self) -> int:
        """Output tokens the host has seen."""
        return len(self.tokens) - self.request.prompt_length

    @property
    def forked(self) -> bool:
        """Whether the branch has outputs of its own, seen or pending: it can no longer start as a fork."""
        return self.known > self.request.prompt_length

    @property
    def todo(self) -> int:
        """Tokens to compute. The very last token of a branch needs no KV: nothing is sampled after it."""
        known = len(self.tokens) + self.pending
        return 0 if known >= self.request.token_limit else known - self.scheduled

    @property
    def decoding(self) -> bool:
        """Whether the next step computes just the newest output token."""
        scheduled, request = self.scheduled, self.request
        known = len(self.tokens) + self.pending
        return (
            scheduled + 1 == known and request.prompt_length < known < request.token_limit and self.life is Life.RUNNING
        )

    def start(self, tokens_from_host: int, *, computed: int, scheduled: int) -> None:
        """Take the row. What a prefix hit brought is computed already; a fork's prompt is on its way."""
        assert self.row is not None
        self.life = after(self.life, LifeEvent.START)
        self.row_tokens = tokens_from_host
        self.computed, self.scheduled = computed, scheduled
        self.check()

    def load(self, tokens: int, *, computed: int) -> None:
        """The branch's blocks are about to get the KV of its first `tokens` tokens; `computed` were there."""
        self.life = after(self.life, LifeEvent.LOAD)
        self.computed, self.scheduled = computed, tokens
        self.check()

    def unload(self) -> None:
        """What was to be loaded did not arrive: wait again, in the same row."""
        self.life = after(self.life, LifeEvent.PREEMPT)
        self.computed = self.scheduled = 0

    def plan(self, upto: int, step: int, *, samples: bool) -> None:
        """A planned step computes tokens up to `upto` and perhaps samples the next one."""
        assert self.scheduled <= upto <= len(self.tokens) + self.pending, (self.scheduled, upto, self.known)
        self.scheduled = upto
        self.pending += samples
        self.last_step = step

    def sampled(self) -> None:
        """One of the pending samples came."""
        self.pending -= 1

    def settle(self, upto: int) -> None:
        """A step that computed tokens up to `upto` is done."""
        assert self.computed <= upto <= self.scheduled, (self.computed, upto, self.scheduled)
        self.computed = upto

    def preempt(self) -> None:
        """Lose row and blocks. Pending samples are still accepted when they come: their KV was right."""
        self.life = after(self.life, LifeEvent.PREEMPT)
        self.row = None
        self.computed = self.scheduled = 0

    def end(self, finish: Finish) -> None:
        self.life = after(self.life, LifeEvent.FINISH)
        self.finish = finish
        self.row = None
        self.trail.clear()

    def check(self) -> None:
        known = len(self.tokens) + self.pending
        assert 0 <= self.computed <= self.scheduled <= known, (self.computed, self.scheduled, known)


@dataclass(slots=True, eq=False)
class Request:
    """One client request: a prompt, how to sample, and its branches."""

    key: RequestKey
    prompt: Sequence[int]
    params: SamplingParams
    slo_class: int
    priority: int
    salt: bytes
    arrival: float
    tenant: str = ""
    """Whose it is: tenants of a class are served alike."""
    branches: list[Branch] = field(init=False)
    life: Life = Life.WAITING
    preemptions: int = 0
    cached_tokens: int | None = None
    """Prompt tokens that the prefix cache brought at the first admission; None before it."""
    charged_tokens: int = 0
    """Leading prompt tokens that its tenant owes nothing more for: charged, or never computed for it."""
    aged: bool = False
    """Admitted because its turn by age had come, so nobody but the head takes its room again."""
    tier: int = 0
    """Length tier: 0 for prompts of little to compute."""
    seniority: tuple[int, float, RequestKey] = field(init=False)
    """Class, arrival and key: the oldest request of the highest class has the least."""
    turn: float = field(init=False)
    """Its place within class and priority: the arrival, later for higher tiers."""
    prompt_length: int = field(init=False)
    to_compute: int = field(init=False)
    """Prompt tokens that the prefix cache did not have when the request came."""
    token_limit: int = field(init=False)
    """Prompt and outputs of a branch never grow beyond this."""
    stop_ids: frozenset[int] = field(init=False)

    def __post_init__(self) -> None:
        self.seniority = (self.slo_class, self.arrival, self.key)
        self.turn = self.arrival
        self.prompt_length = self.to_compute = len(self.prompt)
        self.token_limit = self.prompt_length + self.params.max_tokens
        self.stop_ids = frozenset(self.params.stop_token_ids)
        self.branches = [Branch(self, choice, list(self.prompt)) for choice in range(self.params.n)]

    @property
    def live(self) -> list[Branch]:
        """Branches that have not ended."""
        return [branch for branch in self.branches if branch.life is not Life.FINISHED]

    @property
    def leader(self) -> Branch | None:
        """The branch that computes the prompt for all: the first that has not ended."""
        return next((branch for branch in self.branches if branch.life is not Life.FINISHED), None)

    @property
    def prompt_left(self) -> int:
        """Prompt tokens that no step was planned for yet; 0 once it has ended."""
        leader = self.leader
        return 0 if leader is None else max(0, self.prompt_length - leader.scheduled)

    def start(self) -> None:
        self.life = after(self.life, LifeEvent.START)

    def preempt(self) -> None:
        self.life = after(self.life, LifeEvent.PREEMPT)
        self.preemptions += 1

    def end(self) -> None:
        self.life = after(self.life, LifeEvent.FINISH)
