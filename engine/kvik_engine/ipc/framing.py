"""Length-prefixed msgpack on a byte stream: 4 bytes, little endian, then one struct. Shared by both ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from kvik_engine.ipc.messages import MAX_MESSAGE_BYTES

CORE_SOCKET = "core.sock"
PREFIX_BYTES = 4

_Message = TypeVar("_Message")


class ProtocolError(Exception):
    """The peer sent something that is no message. The connection cannot be used any more."""


def core_socket(run_dir: str) -> Path:
    """Where the core of this start listens."""
    return Path(run_dir) / CORE_SOCKET


def pack(encoder: msgspec.msgpack.Encoder, message: object) -> bytes:
    """One message with its prefix."""
    body = encoder.encode(message)
    return len(body).to_bytes(PREFIX_BYTES, "little") + body


def body_length(prefix: bytes | bytearray | memoryview) -> int:
    """The length that a prefix announces; ProtocolError above MAX_MESSAGE_BYTES."""
    length = int.from_bytes(prefix, "little")
    if length > MAX_MESSAGE_BYTES:
        raise ProtocolError(f"a message of {length} bytes is longer than {MAX_MESSAGE_BYTES}")
    return length


class Unpacker(Generic[_Message]):
    """Turns received pieces into messages. Holds at most one incomplete message."""

    def __init__(self, decoder: msgspec.msgpack.Decoder[_Message]) -> None:
        self._decoder = decoder
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[_Message]:
        """Yield the messages that `data` completes; ProtocolError when it cannot be one."""
        self._buffer += data
        while len(self._buffer) >= PREFIX_BYTES:
            end = PREFIX_BYTES + body_length(self._buffer[:PREFIX_BYTES])
            if len(self._buffer) < end:
                return
            body = bytes(self._buffer[PREFIX_BYTES:end])
            del self._buffer[:end]
            try:
                message = self._decoder.decode(body)
            except (msgspec.DecodeError, msgspec.ValidationError) as error:
                raise ProtocolError(f"not a message: {error}") from error
            yield message
