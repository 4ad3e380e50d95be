"""One look at every running branch at the beginning of a step: which decode, which have prompt to compute."""

from __future__ import annotations

from collections.abc import Sequence

from kvik_engine.kv.manager import KVManager
from kvik_engine.request import Branch, Life, Request
from kvik_engine.scheduler import admission, shares
from kvik_engine.scheduler.limits import Limits
from kvik_engine.scheduler.plan_builder import PlanBuilder
from kvik_engine.scheduler.policy import SLO_CLASSES
from kvik_engine.scheduler.preemption import head_of


def begin_step(
    step: int, now: float, running: Sequence[Request], limits: Limits, kv: KVManager, *, interactive_waits: bool
) -> PlanBuilder:
    """An empty step over the `running` requests, which are in rank order."""
    head = head_of(running)
    head_decodes: list[Branch] = []
    decodes: list[Branch] = []
    head_prompts: list[Branch] = []
    prompts: dict[int, list[Branch]] = {slo_class: [] for slo_class in SLO_CLASSES}
    for request in running:
        for branch in request.branches:
            if branch.decoding:
                (head_decodes if request is head else decodes).append(branch)
            elif branch.life in (Life.WAITING, Life.LOADING) or (branch.life is Life.RUNNING and branch.todo):
                (head_prompts if request is head else prompts[request.slo_class]).append(branch)
    decodes = head_decodes + decodes
    prefilling = {branch.request for branches in (head_prompts, *prompts.values()) for branch in branches}
    interactive_first = interactive_waits or any(request.slo_class == shares.INTERACTIVE for request in prefilling)
    if interactive_first:
        decodes = shares.rows_in_turn(decodes, head, limits.max_requests)
    prefill_cap = limits.chunked_prefill_tokens if decodes else limits.max_batch_tokens
    prefill_left = min(prefill_cap, limits.max_batch_tokens - len(decodes))
    return PlanBuilder(
        step=step,
        now=now,
        head=head,
        decodes=decodes,
        head_prompts=head_prompts,
        prompts=prompts,
        interactive_first=interactive_first,
        tokens_left=limits.max_batch_tokens,
        prefill_left=prefill_left,
        full_chunk=min(limits.chunked_prefill_tokens, prefill_left),
        owed={request: admission.owed(request, kv) for request in prefilling},
    )
