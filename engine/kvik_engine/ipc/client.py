"""EngineClient: the API process's end of the socket. `submit` a request, read its stream, abort by closing it.

One reader task connects, waits for Hello, hands out frames, and connects again when launch has restarted the core.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from kvik_engine.errors import EngineDead, NotServing, QueueFull, UserError
from kvik_engine.ipc.framing import PREFIX_BYTES, ProtocolError, body_length, pack
from kvik_engine.ipc.messages import Abort, CoreStats, Frame, Hello, ModelInfo, Refusal, Submit, ToApi
from kvik_engine.ipc.stream import RequestStream
from kvik_engine.params import SamplingParams

log = logging.getLogger(__name__)

RECONNECT_SECONDS = 0.1
RESTART_RETRY_AFTER = 5.0


class EngineClient:
    """Owned by the event loop's thread. Other threads may read `stats`, `model`, `ready`: they are replaced whole."""

    def __init__(self, path: Path, api_id: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._api_id = api_id
        self._clock = clock
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(ToApi)
        self._ids = itertools.count(1)
        self._streams: dict[int, RequestStream] = {}
        self._waiting: dict[int, asyncio.Future[None]] = {}
        """Submitted requests that the core has neither queued nor refused."""
        self._writer: asyncio.StreamWriter | None = None
        self._reader_task: asyncio.Task[None] | None = None
        self._connected = asyncio.Event()
        self.model: ModelInfo | None = None
        """As the last Hello said; kept while the core restarts."""
        self.stats: CoreStats | None = None
        self.core_restarts = 0
        """How many cores came after the first; a connection that was lost and made again to the same core is none."""

    @property
    def ready(self) -> bool:
        """Whether a warm core is connected."""
        return self._writer is not None

    @property
    def running(self) -> int:
        """Requests of this API process that have not ended."""
        return len(self._streams)

    def start(self) -> None:
        self._reader_task = asyncio.create_task(self._connect_for_ever(), name="engine client")

    async def wait_ready(self) -> None:
        await self._connected.wait()

    async def stop(self) -> None:
        if self._reader_task is not None:
            self._reader_task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._reader_task
        self._lose()

    async def submit(
        self,
        *,
        prompt: list[int],
        params: SamplingParams,
        slo_class: int,
        priority: int,
        wake: asyncio.Event,
        salt: bytes = b"",
        tenant: str = "",
        param: str = "prompt",
    ) -> RequestStream:
        """Return once the core has queued the request; release the stream in the end. `wake` is set at news.

        `param` is the field that an error about the prompt's length names.

        Raises QueueFull or UserError when the core refused it, NotServing when there is no core, EngineDead when it
        died before it answered. When the caller is cancelled meanwhile, the request is aborted.
        """
        if self._writer is None:
            raise NotServing("The engine is not ready.", retry_after=RESTART_RETRY_AFTER)
        request_id = next(self._ids)
        stream = RequestStream(self._api_id, request_id, params.n, wake, self._send)
        queued: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._streams[request_id] = stream
        self._waiting[request_id] = queued
        arrival = self._clock()
        self._send(Submit(self._api_id, request_id, prompt, params, slo_class, priority, salt, arrival, tenant))
        try:
            await queued
        except BaseException as error:
            self._forget(request_id)
            if isinstance(error, asyncio.CancelledError):
                stream.close()
            if isinstance(error, UserError):
                error.param = param
            raise
        return stream

    def release(self, stream: RequestStream) -> None:
        """Close the stream and forget it: the end of each request, however it ended."""
        stream.close()
        self._forget(stream.request_id)

    def _forget(self, request_id: int) -> None:
        self._streams.pop(request_id, None)
        self._waiting.pop(request_id, None)

    def _send(self, message: Submit | Abort) -> None:
        if self._writer is not None:
            self._writer.write(pack(self._encoder, message))

    async def _connect_for_ever(self) -> None:
        while True:
            try:
                reader, writer = await asyncio.open_unix_connection(str(self._path))
            except OSError:
                await asyncio.sleep(RECONNECT_SECONDS)
                continue
            try:
                await self._read_frames(reader, writer)
            except (OSError, ProtocolError, asyncio.IncompleteReadError, msgspec.MsgspecError) as error:
                log.warning("the core's connection ended", extra={"why": repr(error)})
            except Exception:  # a bug must not leave the process without a core for ever
                log.exception("reading from the core failed")
            finally:
                self._lose()
                writer.close()
            await asyncio.sleep(RECONNECT_SECONDS)

    async def _read_frames(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            length = body_length(await reader.readexactly(PREFIX_BYTES))
            message = self._decoder.decode(await reader.readexactly(length))
            if isinstance(message, Hello):
                if self.model is not None and message.model.warm_at != self.model.warm_at:
                    self.core_restarts += 1
                self.model, self.stats, self._writer = message.model, message.stats, writer
                self._connected.set()
            else:
                self._take(message)

    def _take(self, frame: Frame) -> None:
        self.stats = frame.stats
        for request_id in frame.queued:
            self._answer(request_id, None)
        for refusal in frame.refused:
            self._answer(refusal.request_id, _refusal_error(refusal))
        for output in frame.outputs:
            stream = self._streams.get(output.request_id)
            if stream is not None:
                stream.deliver(output)

    def _answer(self, request_id: int, error: Exception | None) -> None:
        queued = self._waiting.pop(request_id, None)
        if queued is None or queued.done():
            return
        if error is None:
            queued.set_result(None)
        else:
            queued.set_exception(error)

    def fail_all(self) -> None:
        """Every request that has not ended fails with EngineDead: the core is gone, or the process will not wait."""
        for stream in self._streams.values():
            stream.fail()
        for request_id in list(self._waiting):
            self._answer(request_id, EngineDead("The engine stopped before it took the request."))

    def _lose(self) -> None:
        self._writer = None
        self._connected.clear()
        self.fail_all()


def _refusal_error(refusal: Refusal) -> Exception:
    if refusal.code in ("queue_full", "too_late"):
        return QueueFull(refusal.message, retry_after=refusal.retry_after or 1.0, code="rate_limit_exceeded")
    if refusal.code == "too_long":
        return UserError(refusal.message, code="context_length_exceeded")
    return RuntimeError(refusal.message)
