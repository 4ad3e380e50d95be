"""What happens to branches when samples are taken, on the scheduler's state: continuation.Hands."""

from __future__ import annotations

from dataclasses import dataclass

from kvik_engine.request import Branch, Finish, Life
from kvik_engine.scheduler.state import State


@dataclass(frozen=True, slots=True)
class StateHands:
    """See continuation.Hands."""

    state: State

    def accept(self, branch: Branch, token: int) -> None:
        branch.tokens.append(token)
        state, request = self.state, branch.request
        state.counters.generation_tokens += 1
        state.served.charge_output(request.slo_class, request.tenant)

    def split(self, source: Branch, target: Branch) -> None:
        tables = self.state.kv.fork(source, target, source.scheduled)
        self.state.rows.reserve(target)
        target.start(len(target.tokens), computed=source.computed, scheduled=source.scheduled)
        self.state.rows.split(source, target, tables)

    def choose(self, branch: Branch, token: int) -> None:
        self.accept(branch, token)
        branch.row_tokens = len(branch.tokens)
        self.state.rows.choose_last(branch)

    def answered(self, outputs: int) -> None:
        self.state.lengths.add(outputs)

    def end(self, branch: Branch, finish: Finish, accepted: int | None = None) -> None:
        """`accepted`: how many tokens of the branch count, when some behind a stop string do not."""
        state, request = self.state, branch.request
        state.kv.release(branch, accepted)
        state.offload.end(branch, accepted)
        state.rows.give_back(branch)
        branch.end(finish)
        if request.live:
            return
        if request.life is Life.RUNNING:
            state.running.remove(request)
        state.waiting.remove(request)
        state.continuations.pop(request, None)
        request.end()
        state.full_from = None
