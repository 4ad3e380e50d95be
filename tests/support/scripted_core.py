"""A core that says what a test wants, on the real socket with the real framing. Tokens are bytes (byte_tokenizer)."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from kvik_engine.ipc.client import EngineClient
from kvik_engine.ipc.core_channel import CoreChannel, Gone
from kvik_engine.ipc.messages import (
    Abort,
    CoreStats,
    FinishReason,
    Frame,
    Hello,
    ModelInfo,
    Output,
    OutputToken,
    Refusal,
    Submit,
    TopLogprob,
)
from tests.support.byte_tokenizer import VOCAB_SIZE
from tests.support.waiting import PATIENCE

CONTEXT = 256


def stats(**more: float) -> CoreStats:
    """Counters, all zero unless given."""
    zero: dict[str, float | None] = dict.fromkeys(CoreStats.__struct_fields__, 0)
    zero |= {"kv_blocks_total": 100, "prefill_tokens_per_second": None}
    return CoreStats(**{**zero, **more})  # type: ignore[arg-type]


def model_info(context: int = CONTEXT, warm_at: float = 1_800_000_000.0) -> ModelInfo:
    return ModelInfo(
        vocab_size=VOCAB_SIZE,
        max_tokens=context,
        context_length=context,
        parameters=1000,
        dtype="fp32",
        quantization="none",
        kv_key_dtype="fp32",
        kv_value_dtype="fp32",
        device="cpu",
        attention="reference",
        block_tokens=16,
        blocks_total=100,
        bytes_per_token=64,
        kv_cache_bytes=101 * 16 * 64,
        startup_seconds={"weights_loaded": 1.0, "warm": 0.5},
        warm_at=warm_at,
    )


@dataclass
class ScriptedCore:
    """Answers each request with `reply`, a token a step and choice, until its max_tokens.

    `gate` closed: requests are queued but nothing is computed. `refuse` set: requests that `refuses` picks get that
    refusal.
    """

    path: Path
    reply: Callable[[Submit], bytes] = lambda submit: b"Hello, world"
    replies: Callable[[Submit, int], bytes] | None = None
    """In place of `reply`, by choice."""
    logprob: Callable[[int], float] = lambda choice: -0.5
    """Of each token of a choice, if the request asks."""
    refuse: Refusal | None = None
    refuses: Callable[[Submit], bool] = lambda submit: True
    error_after: int | None = None
    """The row fails after so many tokens."""
    queue: bool = True
    """False: nothing is answered at all, as by a core that hangs."""
    context: int = CONTEXT
    warm_at: float = 1_800_000_000.0
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    submits: list[Submit] = field(default_factory=list)
    aborts: list[Abort] = field(default_factory=list)
    gone: list[int] = field(default_factory=list)
    _channel: CoreChannel | None = None
    _task: asyncio.Task[None] | None = None
    _work: dict[tuple[int, int], tuple[Submit, int]] = field(default_factory=dict)
    """(request, choice) -> (its submit, tokens sent)."""
    _steps: itertools.count[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self.gate.set()

    def start(self) -> None:
        hello = Hello(model=model_info(self.context, self.warm_at), stats=stats())
        self._channel = CoreChannel(self.path, lambda: hello)
        self._task = asyncio.create_task(self._run())

    async def die(self) -> None:
        """As kill -9 does: the socket closes, nothing more is said."""
        if self._task is not None and self._channel is not None:
            self._task.cancel()
            self._channel.close()
            self._work.clear()
            self._task = self._channel = None

    @property
    def running(self) -> int:
        return len({request for request, _ in self._work})

    async def _run(self) -> None:
        assert self._channel is not None
        while True:
            news: dict[int, Frame] = {}
            for message in self._channel.poll(0):
                self._take(message, news)
            if self.gate.is_set():
                self._compute(news)
            self._channel.send(stats(step=next(self._steps), running=self.running), news)
            await asyncio.sleep(0.001)

    def _take(self, message: Submit | Abort | Gone, news: dict[int, Frame]) -> None:
        if isinstance(message, Gone):
            self.gone.append(message.api_id)
            self._work.clear()
        elif isinstance(message, Abort):
            self.aborts.append(message)
            for key in list(self._work):
                if key[0] == message.request_id and message.choice in (None, key[1]):
                    del self._work[key]
        elif self.queue:
            self.submits.append(message)
            frame = _frame(news, message.api_id)
            if self.refuse is not None and self.refuses(message):
                frame.refused.append(
                    Refusal(message.request_id, self.refuse.code, self.refuse.message, self.refuse.retry_after)
                )
                return
            frame.queued.append(message.request_id)
            for choice in range(message.params.n):
                self._work[message.request_id, choice] = (message, 0)

    def _compute(self, news: dict[int, Frame]) -> None:
        for (request_id, choice), (submit, sent) in list(self._work.items()):
            output = self._next(submit, choice, sent)
            _frame(news, submit.api_id).outputs.append(output)
            if output.finish is None:
                self._work[request_id, choice] = (submit, sent + 1)
            else:
                del self._work[request_id, choice]

    def _next(self, submit: Submit, choice: int, sent: int) -> Output:
        rid = submit.request_id
        reply = self.reply(submit) if self.replies is None else self.replies(submit, choice)
        logprob = self.logprob(choice)
        asked = submit.params.logprobs
        if self.error_after == sent:
            return Output(rid, choice, [], FinishReason.ERROR, error="non-finite logits")
        if sent == len(reply):
            own = None if asked is None else logprob
            return Output(rid, choice, [], FinishReason.STOP, stop_tokens=1, stop_logprob=own, cached_tokens=16)
        finish = FinishReason.LENGTH if sent + 1 == submit.params.max_tokens else None
        token = OutputToken(reply[sent])
        if asked is not None:
            top = [TopLogprob(reply[sent], logprob), TopLogprob(0x80, float("-inf"))][:asked]
            token = OutputToken(reply[sent], logprob, top)
        return Output(rid, choice, [token], finish, cached_tokens=16)


def _frame(news: dict[int, Frame], api_id: int) -> Frame:
    return news.setdefault(api_id, Frame(queued=[], refused=[], outputs=[], stats=stats()))


@asynccontextmanager
async def connected(core: ScriptedCore) -> AsyncIterator[EngineClient]:
    """A client that has heard Hello."""
    core.start()
    client = EngineClient(core.path, api_id=7)
    client.start()
    async with asyncio.timeout(PATIENCE):
        await client.wait_ready()
    try:
        yield client
    finally:
        await client.stop()
        await core.die()
