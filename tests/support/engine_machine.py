"""Random arrivals, aborts, priorities, classes, tenants, choices, beams and pool sizes against the core on a fake
model, as a state machine of hypothesis.

After every step: free + cached + owned = total and every block's count has its reason (harness), freed blocks are
poisoned, the fake runner refuses wrong tables, rows, copies and forks, and no row has two works. At the end every
request that was not aborted has exactly the tokens of an undisturbed run alone: they depend neither on batching, chunk
size, preemption and prefix hits nor on planning a step before the last one is settled (vllm #48245, #41190, #5543).
"""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from kvik_engine.ipc.messages import FinishReason
from kvik_engine.kv.prefix_hash import BlockHashCache
from kvik_engine.kv.radix import RadixCache
from kvik_engine.params import BeamParams, EarlyStopping
from kvik_engine.scheduler.swap_or_recompute import PreemptionMode
from tests.support.engine_harness import Harness
from tests.support.fake_runner import FULL, VOCAB, Windows

OTHER_API = 2
_BEAMS = [BeamParams(early_stopping=early, stop=stop) for early in EarlyStopping for stop in ((), ("ab", "ca"))]
_tokens = st.integers(1, VOCAB - 1)
_ends = st.sampled_from([[5], [5, 6, 7], [5, 6, 7, 8, 9]]) | st.lists(_tokens, min_size=1, max_size=6)
_beginnings = st.sampled_from(
    [tuple((7 * i + j) % (VOCAB - 1) + 1 for j in range(length)) for i in range(2) for length in (0, 3, 8, 13)]
)


def spelled(token: int) -> bytes:
    """As text of three letters, for stop strings."""
    return b"abc"[token % 3 :][:1] + b"a" * (token % 5 == 0)


class EngineMachine(RuleBasedStateMachine):
    """One engine core. `overlap` is set by the subclasses."""

    overlap = 0

    @initialize(
        blocks=st.integers(3, 24),
        block_tokens=st.sampled_from([1, 2, 4]),
        max_requests=st.integers(1, 6),
        chunk=st.integers(1, 16),
        spare=st.sampled_from([0, 0, 1, 4, 16, 26]),
        index=st.sampled_from([None, BlockHashCache, RadixCache, RadixCache]),
        swap_slots=st.sampled_from([0, 0, 2, 8, 40]),
        swap_threshold=st.sampled_from([0, 6, 12, 1000]),
        windows=st.sampled_from([FULL, FULL, (None, 6), (4, None, 4), (5,)]),
    )
    def begin(
        self,
        blocks: int,
        block_tokens: int,
        max_requests: int,
        chunk: int,
        spare: int,
        index: type[BlockHashCache] | type[RadixCache] | None,
        swap_slots: int,
        swap_threshold: int,
        windows: Windows,
    ) -> None:
        budget = max_requests + spare
        self.open(
            Harness(
                blocks=blocks * len(windows),
                block_tokens=block_tokens,
                max_requests=max_requests,
                chunked_prefill_tokens=min(chunk, budget),
                max_batch_tokens=budget,
                prefix_cache=index is not None,
                index=index or RadixCache,
                swap_slots=swap_slots,
                preemption_mode=PreemptionMode.AUTO,
                swap_threshold=swap_threshold,
                windows=windows,
                overlap=self.overlap,
                spell=spelled,
            )
        )

    def open(self, harness: Harness) -> None:
        self.harness = harness
        self.submitted: set[int] = set()
        self.undisturbed: set[int] = set()
        self.next_id = 0

    @rule(
        beginning=_beginnings,
        rest=_ends,
        max_tokens=st.integers(1, 20),
        min_tokens=st.integers(0, 3),
        n=st.sampled_from([1, 1, 1, 2, 3]),
        temperature=st.sampled_from([0.0, 1.0]),
        beam=st.sampled_from([None, None, None, *_BEAMS]),
        seed=st.integers(0, 3),
        slo_class=st.integers(0, 2),
        priority=st.integers(-2, 2),
        salt=st.sampled_from([b"", b"tenant"]),
        tenant=st.sampled_from(["", "a", "b"]),
        api_id=st.sampled_from([1, 1, 1, OTHER_API]),
    )
    def submit(
        self,
        beginning: tuple[int, ...],
        rest: list[int],
        max_tokens: int,
        min_tokens: int,
        n: int,
        temperature: float,
        beam: BeamParams | None,
        seed: int,
        slo_class: int,
        priority: int,
        salt: bytes,
        tenant: str,
        api_id: int,
    ) -> None:
        self.harness.submit(
            self.next_id,
            [*beginning, *rest],
            slo_class=slo_class,
            priority=priority,
            salt=salt,
            tenant=tenant,
            api_id=api_id,
            max_tokens=max_tokens,
            min_tokens=min(min_tokens, max_tokens),
            n=n,
            temperature=temperature,
            beam=beam,
            seed=seed,
        )
        self.submitted.add(self.next_id)
        self.undisturbed.add(self.next_id)
        self.next_id += 1

    @precondition(lambda self: any(heard.finish for heard in self.harness.heard.values()))
    @rule(data=st.data(), rest=_ends, max_tokens=st.integers(1, 8), slo_class=st.integers(0, 2))
    def submit_the_next_turn(self, data: st.DataObject, rest: list[int], max_tokens: int, slo_class: int) -> None:
        ended = sorted(key for key, heard in self.harness.heard.items() if heard.finish)
        request_id, choice = data.draw(st.sampled_from(ended))
        before = self.harness.submitted[request_id]
        prompt = [*before.prompt, *self.harness.output(request_id, choice), *rest]
        self.harness.submit(self.next_id, prompt, slo_class=slo_class, salt=before.salt, max_tokens=max_tokens)
        self.submitted.add(self.next_id)
        self.undisturbed.add(self.next_id)
        self.next_id += 1

    @precondition(lambda self: self.undisturbed)
    @rule(data=st.data())
    def abort_a_request(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.undisturbed)))
        if self.harness.submitted[request_id].api_id != OTHER_API:
            self.undisturbed.discard(request_id)
            self.harness.abort(request_id)

    @precondition(lambda self: self.undisturbed)
    @rule(data=st.data())
    def abort_a_choice(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.undisturbed)))
        submit = self.harness.submitted[request_id]
        if submit.api_id != OTHER_API:
            choice = data.draw(st.integers(0, submit.params.n - 1))
            accepted = data.draw(st.none() | st.integers(0, 4))
            self.undisturbed.discard(request_id)
            self.harness.abort(request_id, choice, accepted)

    @rule()
    def an_api_process_dies(self) -> None:
        self.undisturbed = {i for i in self.undisturbed if self.harness.submitted[i].api_id != OTHER_API}
        self.harness.leave(OTHER_API)

    @rule(steps=st.integers(1, 4), seconds=st.sampled_from([0.01, 5.0, 70.0]))
    def step(self, steps: int, seconds: float) -> None:
        for _ in range(steps):
            self._step(seconds)

    def teardown(self) -> None:
        if not hasattr(self, "harness"):
            return
        limit = 400 + 40 * sum(s.params.n * s.params.max_tokens for s in self.harness.submitted.values())
        for _ in range(limit):
            if not self.harness.core.busy and not self.harness.channel.inbox:
                break
            self._step(0.01)
            self.go_on()
        self.harness.core.check_idle()
        for request_id in self.undisturbed:
            if request_id not in self.harness.refused:
                self.harness.assert_solo(request_id)
        for (request_id, choice), heard in self.harness.heard.items():
            assert heard.tokens == self.harness.expected(request_id, choice)[: len(heard.tokens)]
            assert heard.finish is not FinishReason.ERROR
        for request_id, refusal in self.harness.refused.items():
            assert refusal.code == "too_long", (request_id, refusal)

    def go_on(self) -> None:
        """What the engine may wait for beside its own steps gets on. Nothing, here."""

    def waits(self) -> bool:
        """Whether that may be all there is to do."""
        return False

    def _step(self, seconds: float) -> None:
        busy = self.harness.core.busy
        planned = len(self.harness.fake.plans)
        happened = self.harness.step(seconds)
        assert happened or not busy or self.waits(), "the engine stands still with work to do (vllm #45414)"
        for plan in self.harness.fake.plans[planned:]:
            assert plan.tokens <= self.harness.max_batch_tokens
            assert len({work.row for work in plan.work}) == len(plan.work), "a branch is scheduled twice (vllm #23347)"


class OverlappedEngineMachine(EngineMachine):
    """Step N + 1 is planned before step N is settled."""

    overlap = 1
