"""The core's loop: one step after another. Open this first."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from kvik_engine.core.check import Bounds, invalid, too_long
from kvik_engine.core.gate import Gate
from kvik_engine.core.news import NewsByApi
from kvik_engine.core.stats import Stats
from kvik_engine.ipc.core_channel import Gone
from kvik_engine.ipc.messages import Abort, CoreStats, Frame, Refusal, Submit, ToCore
from kvik_engine.kv.check import check_idle
from kvik_engine.request import Life, Request, RequestKey
from kvik_engine.scheduler.scheduler import Scheduler
from kvik_engine.step import Runner

log = logging.getLogger(__name__)

_LOADING_SECONDS = 0.001
"""Between two looks when all work waits for a disk."""


class Channel(Protocol):
    """The core's end of the wire: `ipc.core_channel.CoreChannel`, or two lists in memory."""

    def poll(self, timeout: float) -> list[ToCore | Gone]: ...

    def send(self, stats: CoreStats, news: Mapping[int, Frame]) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """What the loop must know of the configuration. `overlap` is how many steps may be planned and not settled."""

    bounds: Bounds
    overlap: int


class EngineCore:
    """Scheduler, runner and channel, moved on one step at a time."""

    def __init__(
        self,
        serving: Serving,
        scheduler: Scheduler,
        gate: Gate,
        runner: Runner,
        channel: Channel,
        clock: Callable[[], float],
    ) -> None:
        self.scheduler = scheduler
        self.stats = Stats()
        self._serving = serving
        self._gate = gate
        self._runner = runner
        self._channel = channel
        self._clock = clock
        self._requests: dict[RequestKey, Request] = {}
        self._news = NewsByApi()
        self._patience = 0.0

    @property
    def now(self) -> float:
        """Seconds of the clock that arrivals are given in."""
        return self._clock()

    @property
    def busy(self) -> bool:
        """Whether any request is unfinished or any step unsettled."""
        return bool(self.scheduler.unfinished or self.scheduler.in_flight)

    def step(self, wait: float = 0.0) -> bool:
        """Take messages, plan and launch a step, settle the oldest one beyond the overlap, tell the news.

        Without work it waits up to `wait` seconds for messages. Returns whether anything happened.
        """
        received = self._channel.poll(self._patience if self.busy else wait)
        if received:
            self._gate.begin()
        for message in received:
            self._take(message)
        plan = self.scheduler.plan(self._clock())
        if plan is not None:
            self._runner.launch(plan)
        settled = self.scheduler.in_flight > (self._serving.overlap if plan is not None else 0)
        if settled:
            self._settle()
        if received or settled:
            stats = self.stats.snapshot(self.scheduler)
            self._channel.send(stats, self._news.take(stats))
        happened = bool(received or plan is not None or settled)
        self._patience = 0.0 if happened else _LOADING_SECONDS
        return happened

    def check_idle(self) -> None:
        """Without work nothing may be owned; BooksDoNotBalance says what was lost."""
        assert not self.busy
        assert not self._requests, "a request ended and was not forgotten"
        check_idle(self.scheduler.kv)
        self.scheduler.offload.check(idle=True)

    def _take(self, message: ToCore | Gone) -> None:
        match message:
            case Submit():
                self._submit(message)
            case Abort():
                self._abort(message)
            case Gone(api_id):
                for request in [request for key, request in self._requests.items() if key[0] == api_id]:
                    self.scheduler.abort(request)
                    self._forget_ended(request)

    def _submit(self, submit: Submit) -> None:
        """Queue a request, or tell why not."""
        key = (submit.api_id, submit.request_id)
        refusal = self._fault(submit, key)
        if refusal is None:
            request = _request(submit, key)
            refusal = self._no_place(request)
            if refusal is not None:
                _cut(request)
        if refusal is not None:
            self._news.refused(submit.api_id, refusal)
            return
        self._requests[key] = request
        self.scheduler.add(request)
        self._news.queued(key)

    def _fault(self, submit: Submit, key: RequestKey) -> Refusal | None:
        if key in self._requests:
            return Refusal(submit.request_id, "duplicate", "this request id is in use")
        if (why := invalid(submit, self._serving.bounds)) is not None:
            log.error("the API sent an invalid request", extra={"request_key": key, "why": why})
            return Refusal(submit.request_id, "invalid", why)
        if (why := too_long(submit, self._serving.bounds)) is not None:
            return Refusal(submit.request_id, "too_long", why)
        return None

    def _no_place(self, request: Request) -> Refusal | None:
        if not self.scheduler.fits(request):
            message = f"{request.params.n} choices of this length can never fit this engine's rows and KV cache"
            return Refusal(request.key[1], "too_long", message)
        self.scheduler.place(request)
        refusal = self._gate.refusal(request, self._clock())
        self.stats.refused += refusal is not None
        return refusal

    def _abort(self, abort: Abort) -> None:
        """End a request or a choice. One that ended by itself meanwhile is no longer known, which is fine."""
        request = self._requests.get((abort.api_id, abort.request_id))
        if request is not None:
            self.scheduler.abort(request, abort.choice, abort.accepted_tokens)
            self._forget_ended(request)

    def _settle(self) -> None:
        result = self._runner.collect()
        news, prefill_tokens = self.scheduler.settle(result)
        self.stats.count_step(result.seconds, prefill_tokens)
        self._gate.settled(result.seconds, prefill_tokens)
        self._news.outputs(news)
        for item in news:
            if item.finish is not None:
                self._forget_ended(item.branch.request)

    def _forget_ended(self, request: Request) -> None:
        if request.life is Life.FINISHED:
            self._requests.pop(request.key, None)
            _cut(request)


def _cut(request: Request) -> None:
    """Let prompts be freed at once, without a search for cycles: branches that are still in flight know their request,
    but not the other way round."""
    request.branches.clear()


def _request(submit: Submit, key: RequestKey) -> Request:
    return Request(
        key=key,
        prompt=submit.prompt,
        params=submit.params,
        slo_class=submit.slo_class,
        priority=submit.priority,
        salt=submit.salt,
        arrival=submit.arrival,
        tenant=submit.tenant,
    )
