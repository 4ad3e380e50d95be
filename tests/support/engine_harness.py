"""The engine core without processes: the product's classes, an in-memory channel and the fake runner.

Unit tests, property tests and the simulator of scheduling policies all stand on it. After every step the books of the
KV cache are checked, and blocks that became free are poisoned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from kvik_engine.core.check import Bounds
from kvik_engine.core.gate import QueueGate
from kvik_engine.core.loop import EngineCore, Serving
from kvik_engine.ipc.core_channel import Gone
from kvik_engine.ipc.messages import Abort, CoreStats, FinishReason, Frame, Refusal, Submit, ToCore
from kvik_engine.kv.check import check_books
from kvik_engine.kv.content_names import ContentNames, NamingCache
from kvik_engine.kv.host_pool import HostPool
from kvik_engine.kv.host_tier import HostTier
from kvik_engine.kv.manager import KVManager
from kvik_engine.kv.prefix_cache import NoPrefixCache, PrefixCache
from kvik_engine.kv.prefix_hash import BlockHashCache
from kvik_engine.kv.radix import RadixCache
from kvik_engine.params import SamplingParams
from kvik_engine.scheduler.limits import Limits
from kvik_engine.scheduler.scheduler import Scheduler
from kvik_engine.scheduler.swap_or_recompute import PreemptionMode, SwapOrRecompute
from kvik_engine.spelling import Spell, unspelled
from kvik_engine.step import Row, Runner
from tests.support.fake_runner import END_TOKEN, FULL, VOCAB, FakeRunner, Windows, likely_after, solo_output
from tests.support.held_disk import Fault, HeldDisk
from tests.support.plain_beam_search import Found, plain_beam_search

API = 1


class MemoryChannel:
    """Two lists instead of a socket."""

    def __init__(self) -> None:
        self.inbox: list[ToCore | Gone] = []
        self.frames: list[Frame] = []
        self.stats: CoreStats | None = None

    def poll(self, timeout: float) -> list[ToCore | Gone]:
        received, self.inbox = self.inbox, []
        return received

    def send(self, stats: CoreStats, news: Mapping[int, Frame]) -> None:
        self.stats = stats
        self.frames.extend(news.values())


@dataclass
class Heard:
    """What an API process would know of one choice."""

    tokens: list[int] = field(default_factory=list)
    finish: FinishReason | None = None
    stop_tokens: int = 0
    cached_tokens: int = 0
    logprob: float = 0.0
    """Of all its tokens, the one that ended it included, where log-probabilities were asked for."""
    margins: list[float] = field(default_factory=list)
    """Of each token's two best alternatives, where so many were asked for: how much likelier the best one was."""
    error: str | None = None


@dataclass
class Harness:
    """One core on a fake clock. `step` moves it on and checks the books."""

    blocks: int = 64
    block_tokens: int = 4
    max_requests: int = 8
    max_batch_tokens: int = 64
    chunked_prefill_tokens: int = 16
    max_queued_requests: int = 1000
    prefix_cache: bool = True
    index: type[RadixCache] | type[BlockHashCache] = RadixCache
    windows: Windows = FULL
    swap_slots: int = 0
    preemption_mode: PreemptionMode = PreemptionMode.SWAP
    swap_threshold: int | None = None
    disk_cache: Path | None = None
    """Below the swap space; `disk.go_on` lets its jobs end."""
    disk_blocks: int = 1000
    disk_fault: Fault = Fault.NONE
    """At the start."""
    overlap: int = 0
    context: int = 4096
    runner: FakeRunner | None = None
    spell: Spell = unspelled
    now: float = 1000.0

    def __post_init__(self) -> None:
        self.fake = self.runner or FakeRunner(
            block_tokens=self.block_tokens, rows=self.max_requests, windows=self.windows
        )
        self.fake.allocate(self.blocks)
        self.disk: HeldDisk | None = None
        groups = self.fake.facts.groups
        cache: PrefixCache = self.index(groups) if self.prefix_cache else NoPrefixCache(len(groups))
        names = ContentNames(self.block_tokens)
        if self.swap_slots and self.prefix_cache:
            cache = NamingCache(cache, names, self.block_tokens)
        self.kv = KVManager(groups, self.blocks, cache, step_tokens=self.max_batch_tokens)
        self.host = self._host_tier(names) if self.swap_slots else None
        limits = Limits(
            max_requests=self.max_requests,
            max_batch_tokens=self.max_batch_tokens,
            chunked_prefill_tokens=self.chunked_prefill_tokens,
        )
        self.scheduler = Scheduler(limits, self.kv, offload=self.host, spell=self.spell)
        self.channel = MemoryChannel()
        serving = Serving(
            bounds=Bounds(vocab_size=VOCAB, context=self.context),
            overlap=self.overlap,
        )
        fake: Runner = self.fake
        gate = QueueGate(self.scheduler, self.max_queued_requests)
        self.core = EngineCore(serving, self.scheduler, gate, fake, self.channel, lambda: self.now)
        self.heard: dict[tuple[int, int], Heard] = {}
        self.refused: dict[int, Refusal] = {}
        self.submitted: dict[int, Submit] = {}
        self._searched: dict[int, list[Found]] = {}
        self._poisoned: set[int] = set()
        self._poisoned_slots: set[int] = set()

    def _host_tier(self, names: ContentNames) -> HostTier:
        space = self.fake.allocate_host(self.swap_slots)
        choice = SwapOrRecompute(
            mode=self.preemption_mode,
            threshold_tokens=self.swap_threshold,
            bytes_per_token=self.fake.block_bytes // self.block_tokens,
            copy_bytes_per_second=space.copy_bytes_per_second,
        )
        if self.disk_cache is not None:
            self.disk = HeldDisk(
                self.disk_cache,
                space.memory,
                block_bytes=self.fake.block_bytes,
                max_blocks=self.disk_blocks,
                clock=lambda: self.now,
                fault=self.disk_fault,
            )
        return HostTier(self.kv, HostPool(self.swap_slots), names, choice, self.disk and self.disk.tier)

    def submit(
        self,
        request_id: int,
        prompt: Sequence[int],
        *,
        slo_class: int = 1,
        priority: int = 0,
        salt: bytes = b"",
        tenant: str = "",
        api_id: int = API,
        params: SamplingParams | None = None,
        **sampling: object,
    ) -> Submit:
        """Send a request. Sampling defaults: greedy, 8 tokens, ends at the end token."""
        defaults: dict[str, object] = {"max_tokens": 8, "seed": 7, "temperature": 0.0, "stop_token_ids": (END_TOKEN,)}
        params = params or SamplingParams(**{**defaults, **sampling})  # type: ignore[arg-type]
        submit = Submit(api_id, request_id, list(prompt), params, slo_class, priority, salt, self.now, tenant)
        self.submitted[request_id] = submit
        self.channel.inbox.append(submit)
        return submit

    def abort(self, request_id: int, choice: int | None = None, accepted_tokens: int | None = None) -> None:
        self.channel.inbox.append(Abort(API, request_id, choice, accepted_tokens))

    def leave(self, api_id: int = API) -> None:
        """The API process goes away."""
        self.channel.inbox.append(Gone(api_id))

    def step(self, seconds: float = 0.01) -> bool:
        """One step of the core, with all checks. Returns whether anything happened."""
        happened = self.core.step()
        self.now += seconds
        check_books(self.kv)
        self.scheduler.offload.check(idle=False)
        self._check_counters()
        self._poison()
        self._listen()
        return happened

    def _check_counters(self) -> None:
        """What is kept along the way equals what a look at every request finds."""
        left = [request.prompt_left for request in self.scheduler.running]
        assert self.scheduler.prompt_tokens_left == self.scheduler.waiting.prompt_tokens + sum(left)

    def run(self, most: int = 10_000) -> int:
        """Steps until nothing is left to do; returns how many."""
        for n in range(most):
            if not self.channel.inbox and not self.core.busy:
                self.core.check_idle()
                return n
            happened = self.step()
            assert happened, "the engine stands still with work to do"
        raise AssertionError(f"not done after {most} steps")

    def output(self, request_id: int, choice: int = 0) -> list[int]:
        """Output tokens heard of so far, a stop token left out."""
        return self.heard[request_id, choice].tokens

    def expected(self, request_id: int, choice: int = 0) -> list[int]:
        """What an undisturbed run alone shows to the client."""
        submit = self.submitted[request_id]
        if submit.params.beam is not None:
            return self._found(submit)[choice].shown
        tokens = solo_output(submit.prompt, submit.params, choice, windows=self.fake.windows)
        return tokens[:-1] if tokens[-1] in submit.params.stop_token_ids else tokens

    def assert_solo(self, request_id: int) -> None:
        """All choices of a finished request equal undisturbed runs."""
        for choice in range(self.submitted[request_id].params.n):
            heard = self.heard[request_id, choice]
            assert heard.finish in (FinishReason.STOP, FinishReason.LENGTH), heard
            assert heard.tokens == self.expected(request_id, choice)

    def _found(self, submit: Submit) -> list[Found]:
        if submit.request_id not in self._searched:
            after = partial(likely_after, windows=self.fake.windows)
            self._searched[submit.request_id] = plain_beam_search(after, submit.prompt, submit.params, self.spell)
        return self._searched[submit.request_id]

    def request_row(self, request_id: int, choice: int = 0) -> Row | None:
        """The row of a branch now."""
        for request in self.scheduler.running:
            if request.key == (API, request_id):
                return request.branches[choice].row
        return None

    def _poison(self) -> None:
        free = {block.id for block in self.kv.pool.free_blocks()}
        self.fake.poison(block for block in free if block not in self._poisoned)
        self._poisoned = set(free)
        if self.host is not None:
            jobs = self.host._disk
            unread = {slot.id for slot in jobs.slots if not jobs.filled(slot)}
            empty = unread | {slot.id for slot in self.host.pool.free_slots()}
            self.fake.poison_slots(slot for slot in empty if slot not in self._poisoned_slots)
            self._poisoned_slots = empty

    def _listen(self) -> None:
        frames, self.channel.frames = self.channel.frames, []
        for frame in frames:
            for refusal in frame.refused:
                self.refused[refusal.request_id] = refusal
            for output in frame.outputs:
                heard = self.heard.setdefault((output.request_id, output.choice), Heard())
                assert heard.finish is None, "news of a choice that had ended"
                heard.tokens.extend(token.token for token in output.tokens)
                heard.finish = output.finish
                heard.stop_tokens += output.stop_tokens
                heard.cached_tokens = output.cached_tokens
                heard.error = output.error
