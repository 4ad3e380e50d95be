"""What the next step computes. No prefill or decode phase: every branch has tokens to compute, and a budget is shared.

`plan` makes one step, `settle` takes its results; a step may be planned while the one before it is not settled.
Order within a step:
1. the head (oldest running request of the highest class), so that something always moves on; it leaves a part of the
   prefills' share to prompts that rank before it;
2. branches that compute one new output token: they are never held up by prompts;
3. prompts and recomputation within the prefills' share, class by class, running and waiting requests by the same rank:
   the least served tenant first, then priority and turn.
While an interactive request waits or computes its prompt, batch rows get a part of 2 and 3 only.
"""

from __future__ import annotations

from bisect import insort
from collections import deque

from kvik_engine.kv.manager import NO_CHANGE, KVManager
from kvik_engine.kv.offload import NoOffload, Offload
from kvik_engine.kv.prefix_cache import Hit
from kvik_engine.request import Branch, Life, Request
from kvik_engine.scheduler import admission, settling, shares
from kvik_engine.scheduler.batching import Batching, ContinuousBatching
from kvik_engine.scheduler.beginning import begin_step
from kvik_engine.scheduler.choices import continuation_of
from kvik_engine.scheduler.fairness import ServiceCounters
from kvik_engine.scheduler.limits import Limits
from kvik_engine.scheduler.line import Line
from kvik_engine.scheduler.making_room import get_blocks
from kvik_engine.scheduler.news import News
from kvik_engine.scheduler.plan_builder import PlanBuilder, PlannedStep
from kvik_engine.scheduler.policy import SLO_CLASSES, WaitingQueue, rank
from kvik_engine.scheduler.preemption import PIN_AFTER
from kvik_engine.scheduler.room import PagedRoom, Room
from kvik_engine.scheduler.rows import Rows
from kvik_engine.scheduler.state import State
from kvik_engine.scheduler.tiers import tier_of, turn_of
from kvik_engine.scheduler.token_rate import TokenRate
from kvik_engine.spelling import Spell, unspelled
from kvik_engine.step import StepPlan, StepResult


class Scheduler:
    """Admits requests, plans steps, settles them. Single-threaded; the core's loop is the only caller."""

    def __init__(
        self,
        limits: Limits,
        kv: KVManager,
        *,
        offload: Offload | None = None,
        batching: Batching | None = None,
        room: Room | None = None,
        spell: Spell = unspelled,
    ) -> None:
        """By default continuous batching over paged memory, and what is preempted is computed again; and tokens are no
        text, so that stop strings end no beam."""
        served = ServiceCounters()
        self._state = state = State(
            kv=kv,
            offload=offload or NoOffload(),
            rows=Rows(limits.max_requests),
            served=served,
            waiting=WaitingQueue(PIN_AFTER, served),
        )
        self.kv = kv
        self.offload = state.offload
        self.counters = state.counters
        self.waiting = state.waiting
        self.running = state.running
        self.prefill_rate = TokenRate()
        """Of steps full of prompts or recomputation: others tell how many came, not how many can be computed."""
        self._served = served
        self._rows = state.rows
        self._limits = limits
        self._batching = batching or ContinuousBatching()
        self._room = room or PagedRoom()
        self._line = Line(state, self._batching, self._room)
        self._spell = spell
        self._in_flight: deque[PlannedStep] = deque()
        self._step = 0
        self._prompting: tuple[Request, ...] = ()
        """All running requests that can have prompt left until the next plan: those it had some branch to start or to
        compute the prompt of."""

    @property
    def in_flight(self) -> int:
        """Steps planned and not settled."""
        return len(self._in_flight)

    @property
    def unfinished(self) -> int:
        """Requests waiting or running."""
        return len(self.waiting) + len(self.running)

    @property
    def free_rows(self) -> int:
        return self._rows.free

    @property
    def prompt_tokens_left(self) -> int:
        """Prompt tokens of waiting and running requests that no step was planned for yet, without those that the prefix
        cache has, or of a waiting request had when it came."""
        return self.waiting.prompt_tokens + sum([request.prompt_left for request in self._prompting])

    def fits(self, request: Request) -> bool:
        """Whether the request can ever finish here. One that cannot must not be added."""
        return self._room.can_ever_fit(request, self.kv, self._limits.max_requests)

    def place(self, request: Request) -> None:
        """Decide a new request's length tier and with it its turn, by what there is to compute of its prompt now."""
        to_compute = request.to_compute = request.prompt_length - self.kv.find(request.live[0]).tokens
        request.tier = tier_of(to_compute, self._limits.chunked_prefill_tokens)
        request.turn = turn_of(request.arrival, request.tier, to_compute, self.prefill_rate.tokens_per_second)

    def add(self, request: Request) -> None:
        """Queue a new request that has its place."""
        assert self.fits(request), "a request that can never fit would block the queue"
        self._state.continuations[request] = continuation_of(request, self._spell)
        self.waiting.add(request)

    def abort(self, request: Request, choice: int | None = None, accepted_outputs: int | None = None) -> None:
        """End a request or one choice of it in whatever state it is. Samples still to come are dropped.

        `accepted_outputs`: later outputs lie behind a stop string; the prefix cache forgets them.
        """
        settling.abort(self._state, request, choice, accepted_outputs)

    def plan(self, now: float) -> StepPlan | None:
        """Plan the next step; None when nothing can be computed now."""
        self.offload.advance()
        self._batching.begin(running=len(self.running), waiting=len(self.waiting), free_rows=self.free_rows)
        step = self._begin(now)
        if self._line.make_room(step):
            step = self._begin(now)
        self._plan_head(step)
        for branch in step.decodes:
            if branch.life is Life.RUNNING and step.tokens_left:
                self._schedule(step, branch, 1)
        for slo_class in SLO_CLASSES:
            if slo_class == shares.BATCH and step.interactive_first:
                step.prefill_left = shares.prefill_share(step.prefill_left)
            for branch in step.prompts[slo_class]:
                self._admit(step, slo_class, before=branch.request)
                self._plan_prompt(step, branch)
            self._admit(step, slo_class)
        if step.unstartable:
            self._batching.full()
        self._prompting = tuple(step.owed)
        if step.empty and not self.offload.pending:
            return None
        self._step = step.step
        self._in_flight.append(step.record())
        return step.plan(self._rows.take_changes(), *self.offload.take(step.step))

    def settle(self, result: StepResult) -> tuple[list[News], int]:
        """Take the results of the oldest planned step. Returns the news and how many prefill tokens the step had."""
        planned = self._in_flight.popleft()
        if planned.full_of_prefill:
            self.prefill_rate.count(result.seconds, planned.prefill_tokens)
        news = settling.settle(self._state, planned, result, self.prefill_rate.tokens_per_second)
        return news, planned.prefill_tokens

    def _begin(self, now: float) -> PlanBuilder:
        interactive_waits = bool(len(self.waiting.of_class(shares.INTERACTIVE)))
        step = begin_step(self._step + 1, now, self.running, self._limits, self.kv, interactive_waits=interactive_waits)
        for prompts in step.prompts.values():
            prompts.sort(key=lambda branch: self._line.rank(branch.request))
        return step

    def _plan_head(self, step: PlanBuilder) -> None:
        """The head's prompt. Prompts that rank before it keep what they can use of the share."""
        if not step.head_prompts:
            return
        kept = self._line.kept_before(step, step.head_prompts[0].request)
        step.prefill_left -= kept
        for branch in step.head_prompts:
            self._plan_prompt(step, branch)
        step.prefill_left += kept

    def _plan_prompt(self, step: PlanBuilder, branch: Branch) -> None:
        """The next chunk of a branch, as far as the prefills' share goes."""
        if branch.request.life is not Life.RUNNING or not min(step.prefill_left, step.tokens_left):
            return
        if branch.last_step == step.step:
            return  # it started as a fork within this step
        if branch.life is Life.RUNNING:
            self._schedule_chunk(step, branch)
        elif branch.life is Life.LOADING:
            if self.offload.ready(branch):
                self._start_loaded(step, branch)
        elif branch.life is Life.WAITING and self._may_start(branch):
            self._start(step, branch)

    def _admit(self, step: PlanBuilder, slo_class: int, *, before: Request | None = None) -> None:
        """Start waiting requests of this class, and those whose turn has come by age or preemption.

        With `before`, only those that rank before that running request.
        """
        while self.waiting and min(step.prefill_left, step.tokens_left) and self._batching.open_to_more():
            candidate = self._line.next_admission(step, slo_class, before)
            if candidate is None:
                return
            request = candidate.request
            self.waiting.remove(request)
            if candidate.aged:
                request.aged = True
                self.waiting.took_aged_turn(request.slo_class, step.now)
            request.start()
            self._batching.admitted()
            insort(self.running, request, key=rank)
            for branch in request.live:
                self._rows.reserve(branch)
            step.owed[request] = admission.owed(request, self.kv)
            self._start(step, request.live[0])

    def _may_start(self, branch: Branch) -> bool:
        """Whether a waiting branch of a running request starts by itself, not as a fork at the end of the prompt.

        After preemption every branch goes on from its own tokens, but shares the prompt's whole blocks: it waits for
        the leader to have them planned.
        """
        leader = branch.request.leader
        if branch is leader:
            return True
        assert leader is not None
        return branch.forked and leader.life is not Life.LOADING and leader.scheduled >= self._whole_prompt(branch)

    def _start(self, step: PlanBuilder, branch: Branch) -> None:
        """Start a branch from what the prefix cache or its leader has, and compute its first chunk."""
        kv, request = self.kv, branch.request
        hit = kv.find(branch)
        if self._load(step, branch, hit):
            return
        shared = self._shared_tokens(branch)
        forks = shared > 0 and shared >= hit.tokens
        known = shared if forks else hit.tokens
        upto = min(branch.known, known + min(step.prefill_left, step.tokens_left))

        def missing() -> int:
            return kv.between(shared, upto) if forks else kv.to_start(hit, upto)

        if not get_blocks(self._state, step, request, missing):
            return
        if forks:
            assert request.leader is not None
            tables = kv.fork(request.leader, branch, shared)
            branch.start(len(branch.tokens), computed=min(shared, request.leader.computed), scheduled=shared)
            step.start(branch, tables)
        else:
            started = kv.start(branch, hit, step.step)
            branch.start(len(branch.tokens), computed=hit.tokens, scheduled=hit.tokens)
            step.start(branch, started.tables, started.copies)
        self._count_prefix_hit(request, known)
        self._schedule_chunk(step, branch)

    def _load(self, step: PlanBuilder, branch: Branch, hit: Hit) -> bool:
        """Bring KV back that is kept elsewhere. True: the branch is Loading, or must wait for the blocks for it."""
        load = self.offload.find(branch, hit)
        if load is None:
            return False
        if get_blocks(self._state, step, branch.request, lambda: load.missing):
            step.scheduled.add(branch.request)
            return self.offload.begin(load, step.step)
        return True

    def _start_loaded(self, step: PlanBuilder, branch: Branch) -> None:
        """All blocks of a Loading branch are filled: compute its next chunk."""
        kv, known = self.kv, branch.scheduled
        upto = min(branch.known, known + min(step.prefill_left, step.tokens_left))
        if get_blocks(self._state, step, branch.request, lambda: kv.missing(branch, upto)):
            self.offload.started(branch)
            branch.start(len(branch.tokens), computed=known, scheduled=known)
            step.start(branch, kv.tables(branch))
            self._count_prefix_hit(branch.request, known)
            self._schedule_chunk(step, branch)

    def _shared_tokens(self, branch: Branch) -> int:
        """Tokens that a preempted branch takes over from its leader: those in the whole blocks of the prompt."""
        leader, shared = branch.request.leader, self._whole_prompt(branch)
        if branch is leader or not shared:
            return 0
        assert leader is not None
        return shared if self.kv.can_fork(leader, shared) else 0

    def _whole_prompt(self, branch: Branch) -> int:
        return branch.request.prompt_length // self.kv.block_tokens * self.kv.block_tokens

    def _schedule_chunk(self, step: PlanBuilder, branch: Branch) -> None:
        length = min(branch.todo, step.prefill_left, step.tokens_left)
        if self._schedule(step, branch, length):
            step.prefill_left -= length
            step.prefill_tokens += length
            step.owed[branch.request] = admission.owed(branch.request, self.kv)
            self._charge_prompt(branch.request, branch.scheduled)

    def _charge_prompt(self, request: Request, upto: int) -> None:
        """Charge the tenant chunk by chunk, so that its long prompt holds up no short ones of others."""
        upto = min(upto, request.prompt_length)
        if upto > request.charged_tokens:
            tokens = upto - request.charged_tokens
            self._served.charge_prompt(request.slo_class, request.tenant, tokens)
            request.charged_tokens = upto

    def _schedule(self, step: PlanBuilder, branch: Branch, length: int) -> bool:
        """Give a branch its next tokens to compute. False when it must wait for blocks or was preempted."""
        request = branch.request
        upto = branch.scheduled + length
        prepared = NO_CHANGE
        if not self.kv.has_room(branch, upto):
            if not get_blocks(self._state, step, request, lambda: self.kv.missing(branch, upto)):
                return False
            prepared = self.kv.prepare(branch, upto, step.step)
        forks = self._start_forks(step, branch) if upto == request.prompt_length and not branch.forked else ()
        step.work(branch, upto, prepared, forks=forks, samples=upto == branch.known)
        return True

    def _start_forks(self, step: PlanBuilder, leader: Branch) -> list[Branch]:
        """The other choices start with the prompt's last token, which this step computes."""
        request = leader.request
        forks = [fork for fork in request.live if fork.life is Life.WAITING]
        for fork in forks:
            tables = self.kv.fork(leader, fork, request.prompt_length)
            fork.start(request.prompt_length, computed=leader.computed, scheduled=request.prompt_length)
            step.fork(leader, fork, tables)
        return forks

    def _count_prefix_hit(self, request: Request, cached_tokens: int) -> None:
        """A branch of a request has started, the first one for the first time or another."""
        request.charged_tokens = max(request.charged_tokens, cached_tokens)
        if request.cached_tokens is None:
            request.cached_tokens = cached_tokens
            self.counters.prompt_tokens += request.prompt_length
            self.counters.prefix_query_tokens += request.prompt_length
            self.counters.prefix_hit_tokens += cached_tokens
