"""The core's end of the socket: non-blocking, so that no API process can hold up a step.

The core makes it when it is warm. API processes connect, each gets Hello, then at most one frame a step. What a peer
does not take at once waits merged; a peer that leaves more than 64 MiB waiting, or takes nothing for 30 s, is cut off.
Single-threaded: all calls come from the core's loop.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import socket
import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from kvik_engine.ipc.framing import ProtocolError, Unpacker, pack
from kvik_engine.ipc.merge import merge_frames
from kvik_engine.ipc.messages import CoreStats, Frame, Hello, ToCore

log = logging.getLogger(__name__)

MAX_BACKLOG_BYTES = 64 << 20
MAX_BACKLOG_SECONDS = 30.0
_READ_BYTES = 1 << 18
_READS_PER_POLL = 64
_PEER_CREDENTIALS = struct.Struct("3i")


@dataclass(frozen=True, slots=True)
class Gone:
    """The API process `api_id` went away: all of its requests are to be aborted."""

    api_id: int


class _Peer:
    """One connected API process. Its api_id is known from its first message on."""

    def __init__(self, connection: socket.socket, decoder: msgspec.msgpack.Decoder[ToCore], now: float) -> None:
        self.socket = connection
        self.unpacker = Unpacker[ToCore](decoder)
        self.api_id: int | None = None
        self.writing = memoryview(b"")
        self.waiting: Frame | None = None
        self.waiting_bytes = 0
        self.progress_at = now

    @property
    def backlog(self) -> int:
        return len(self.writing) + self.waiting_bytes


class CoreChannel:
    """Listens at `path` (0600, only for the own user); never blocks but for the timeout of `poll`."""

    def __init__(self, path: Path, hello: Callable[[], Hello], clock: Callable[[], float] = time.monotonic) -> None:
        self._hello = hello
        self._clock = clock
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(ToCore)
        self._peers: dict[socket.socket, _Peer] = {}
        self._lost: list[Gone] = []
        self._selector = selectors.DefaultSelector()
        self._path = path
        path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.setblocking(False)
        self._listener.bind(str(path))
        path.chmod(0o600)
        self._listener.listen(16)
        self._selector.register(self._listener, selectors.EVENT_READ)

    def poll(self, timeout: float) -> list[ToCore | Gone]:
        """What arrived, in order per API process. Waits up to `timeout` seconds if nothing is there (0 = look only)."""
        received: list[ToCore | Gone] = []
        if self._lost:
            timeout = 0.0
        for key, events in self._selector.select(timeout):
            if key.fileobj is self._listener:
                self._accept()
                continue
            peer = self._peers.get(key.fileobj)  # type: ignore[call-overload]
            if peer is None:
                continue
            if events & selectors.EVENT_READ:
                self._read(peer, received)
            if events & selectors.EVENT_WRITE and peer.socket in self._peers:
                self._write(peer)
        received.extend(self._lost)
        self._lost.clear()
        return received

    def send(self, stats: CoreStats, news: Mapping[int, Frame]) -> None:
        """Send one step's news by api_id. API processes without news get the counters alone.

        The frames are the channel's from here on.
        """
        now = self._clock()
        for peer in list(self._peers.values()):
            frame = news.get(peer.api_id) if peer.api_id is not None else None
            self._enqueue(peer, frame or Frame(queued=[], refused=[], outputs=[], stats=stats), now)

    def close(self) -> None:
        for peer in list(self._peers.values()):
            self._drop(peer, "the core stops", logging.INFO)
        self._selector.unregister(self._listener)
        self._listener.close()
        self._selector.close()
        self._path.unlink(missing_ok=True)

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            connection, _ = self._listener.accept()
            _, user, _ = _PEER_CREDENTIALS.unpack(
                connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER_CREDENTIALS.size)
            )
            if user != os.getuid():
                connection.close()
                return
            connection.setblocking(False)
            peer = _Peer(connection, self._decoder, self._clock())
            self._peers[connection] = peer
            self._selector.register(connection, selectors.EVENT_READ)
            peer.writing = memoryview(pack(self._encoder, self._hello()))
            self._write(peer)

    def _read(self, peer: _Peer, received: list[ToCore | Gone]) -> None:
        try:
            for _ in range(_READS_PER_POLL):
                data = peer.socket.recv(_READ_BYTES)
                if not data:
                    self._drop(peer, "it closed the connection", logging.INFO)
                    return
                for message in peer.unpacker.feed(data):
                    peer.api_id = message.api_id
                    received.append(message)
                if len(data) < _READ_BYTES:
                    return
        except BlockingIOError:
            return
        except OSError as error:
            self._drop(peer, str(error), logging.INFO)
        except ProtocolError as error:
            self._drop(peer, str(error))

    def _enqueue(self, peer: _Peer, frame: Frame, now: float) -> None:
        if not peer.backlog:
            peer.progress_at = now
            peer.writing = memoryview(pack(self._encoder, frame))
        else:
            peer.waiting_bytes += len(self._encoder.encode(frame))
            peer.waiting = frame if peer.waiting is None else merge_frames(peer.waiting, frame)
        self._write(peer)
        if peer.backlog > MAX_BACKLOG_BYTES or (peer.backlog and now - peer.progress_at > MAX_BACKLOG_SECONDS):
            self._drop(peer, f"it left {peer.backlog} bytes unread")

    def _write(self, peer: _Peer) -> None:
        try:
            while peer.backlog:
                if not peer.writing and peer.waiting is not None:
                    peer.writing = memoryview(pack(self._encoder, peer.waiting))
                    peer.waiting, peer.waiting_bytes = None, 0
                sent = peer.socket.send(peer.writing)
                peer.writing = peer.writing[sent:]
                peer.progress_at = self._clock()
            self._selector.modify(peer.socket, selectors.EVENT_READ)
        except BlockingIOError:
            self._selector.modify(peer.socket, selectors.EVENT_READ | selectors.EVENT_WRITE)
        except OSError as error:
            self._drop(peer, str(error), logging.INFO)

    def _drop(self, peer: _Peer, why: str, level: int = logging.WARNING) -> None:
        """A warning where the core cuts it off; of one that left by itself, launch says how it ended."""
        if self._peers.pop(peer.socket, None) is None:
            return
        log.log(level, "API process left", extra={"api_id": peer.api_id, "why": why})
        self._selector.unregister(peer.socket)
        peer.socket.close()
        if peer.api_id is not None:
            self._lost.append(Gone(peer.api_id))
