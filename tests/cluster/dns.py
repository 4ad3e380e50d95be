"""Asks one DNS server for one address, without a resolver library: the proof that Services and cluster DNS work."""

import random
import socket
import struct

_A, _IN = 1, 1


def address_of(name: str, server: str, timeout: float = 1.0) -> str | None:
    """The first IPv4 address of `name` at `server` (UDP, port 53); None without an answer that has one."""
    identifier = random.randrange(1 << 16)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(timeout)
        try:
            client.connect((server, 53))
            client.send(query(name, identifier))
            return first_address(client.recv(512), identifier)
        except OSError:
            return None


def query(name: str, identifier: int) -> bytes:
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.rstrip(".").split("."))
    return struct.pack(">6H", identifier, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">2H", _A, _IN)


def first_address(reply: bytes, identifier: int) -> str | None:
    """None for a reply to another question, an error, or no address record."""
    if len(reply) < 12:
        return None
    got, flags, questions, answers, _, _ = struct.unpack(">6H", reply[:12])
    if got != identifier or flags & 0x000F:
        return None
    at = 12
    for _ in range(questions):
        at = _after_name(reply, at) + 4
    for _ in range(answers):
        at = _after_name(reply, at)
        kind, _, _, length = struct.unpack(">2HIH", reply[at : at + 10])
        at += 10
        if kind == _A and length == 4:
            return socket.inet_ntoa(reply[at : at + 4])
        at += length
    return None


def _after_name(reply: bytes, at: int) -> int:
    while reply[at] and reply[at] < 0xC0:
        at += 1 + reply[at]
    return at + (2 if reply[at] >= 0xC0 else 1)
