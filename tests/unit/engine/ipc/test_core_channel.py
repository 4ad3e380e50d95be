"""The core's end never blocks, merges what waits and cuts off who does not read."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from kvik_engine.ipc.core_channel import MAX_BACKLOG_BYTES, MAX_BACKLOG_SECONDS, CoreChannel, Gone
from kvik_engine.ipc.framing import ProtocolError, Unpacker, pack
from kvik_engine.ipc.merge import merge_frames
from kvik_engine.ipc.messages import (
    MAX_MESSAGE_BYTES,
    Abort,
    FinishReason,
    Frame,
    Hello,
    Output,
    OutputToken,
    Refusal,
    ToApi,
    ToCore,
)
from tests.support.scripted_core import model_info, stats
from tests.support.waiting import PATIENCE

ENCODER = msgspec.msgpack.Encoder()


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def channel(tmp_path: Path, clock: Clock) -> Iterator[CoreChannel]:
    made = CoreChannel(tmp_path / "core.sock", lambda: Hello(model_info(), stats()), clock)
    yield made
    made.close()


@pytest.fixture
def peer(tmp_path: Path, channel: CoreChannel) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(PATIENCE)
        connection.connect(str(tmp_path / "core.sock"))
        connection.sendall(pack(ENCODER, Abort(7, 1)))
        while not any(isinstance(m, Abort) for m in channel.poll(0.01)):
            pass
        yield connection


def receive(peer: socket.socket, count: int) -> list[ToApi]:
    unpacker = Unpacker[ToApi](msgspec.msgpack.Decoder(ToApi))
    messages: list[ToApi] = []
    while len(messages) < count:
        messages += unpacker.feed(peer.recv(1 << 20))
    return messages


def frame(*tokens: int, step: int = 0) -> Frame:
    output = Output(1, 0, [OutputToken(t) for t in tokens])
    return Frame(queued=[], refused=[], outputs=[output], stats=stats(step=step))


def test_hello_comes_first_and_frames_in_order(channel: CoreChannel, peer: socket.socket) -> None:
    channel.send(stats(step=1), {7: frame(5, step=1)})
    channel.send(stats(step=2), {})
    hello, first, second = receive(peer, 3)
    assert isinstance(hello, Hello)
    assert isinstance(first, Frame)
    assert isinstance(second, Frame)
    assert first.outputs[0].tokens[0].token == 5
    assert (second.outputs, second.stats.step) == ([], 2)


def test_an_api_process_hears_only_of_its_own_requests(channel: CoreChannel, peer: socket.socket) -> None:
    channel.send(stats(step=1), {8: frame(5)})
    _, news = receive(peer, 2)
    assert isinstance(news, Frame)
    assert news.outputs == []


def test_an_api_process_that_leaves_by_itself_is_no_warning(
    channel: CoreChannel, peer: socket.socket, caplog: pytest.LogCaptureFixture
) -> None:
    """Every clean stop of an engine ended with a warning."""
    caplog.set_level(logging.INFO)
    peer.close()
    while not any(isinstance(message, Gone) for message in channel.poll(0.01)):
        pass
    (told,) = caplog.records
    assert (told.levelname, told.getMessage()) == ("INFO", "API process left")


def test_a_slow_reader_gets_everything_in_few_frames(channel: CoreChannel, peer: socket.socket) -> None:
    steps = 3000
    for step in range(steps):
        channel.send(stats(step=step), {7: frame(*range(40), step=step)})
    frames: list[Frame] = []
    unpacker = Unpacker[ToApi](msgspec.msgpack.Decoder(ToApi))
    while not frames or frames[-1].stats.step < steps - 1:
        channel.poll(0)
        frames += [m for m in unpacker.feed(peer.recv(1 << 20)) if isinstance(m, Frame)]
    tokens = [t.token for f in frames for o in f.outputs for t in o.tokens]
    assert tokens == list(range(40)) * steps
    assert len(frames) < steps / 2, "unsent frames are merged"


def fill(channel: CoreChannel) -> None:
    """Send until something waits unsent."""
    for step in range(500):
        channel.send(stats(step=step), {7: frame(*range(200))})


def test_a_reader_that_takes_nothing_for_half_a_minute_is_cut_off(
    channel: CoreChannel, peer: socket.socket, clock: Clock
) -> None:
    fill(channel)
    clock.now += MAX_BACKLOG_SECONDS - 1
    channel.send(stats(), {7: frame(1)})
    assert channel.poll(0) == []
    clock.now += 2
    channel.send(stats(), {7: frame(1)})
    assert channel.poll(0) == [Gone(7)]


def test_a_reader_that_lets_too_much_wait_is_cut_off(channel: CoreChannel, peer: socket.socket) -> None:
    big = Frame([], [], [Output(1, 0, [OutputToken(1)] * (1 << 20))], stats())
    size = len(ENCODER.encode(big))
    for _ in range(MAX_BACKLOG_BYTES // size + 2):
        channel.send(stats(), {7: big})
    assert channel.poll(0) == [Gone(7)]


@pytest.mark.parametrize(
    "garbage",
    [b"\xff\xff\xff\xff", (3).to_bytes(4, "little") + b"\xc1\xc1\xc1", pack(ENCODER, {"type": "exec", "code": "x"})],
)
def test_garbage_ends_only_its_own_connection(channel: CoreChannel, peer: socket.socket, garbage: bytes) -> None:
    peer.sendall(garbage)
    received: list[object] = []
    while not received:
        received += channel.poll(0.01)
    assert received == [Gone(7)]


def test_a_message_cut_anywhere_is_put_together() -> None:
    messages: list[ToCore] = [Abort(1, 2), Abort(3, 4, 5, 6)]
    wire = b"".join(pack(ENCODER, m) for m in messages)
    for size in range(1, len(wire) + 1):
        unpacker = Unpacker[ToCore](msgspec.msgpack.Decoder(ToCore))
        pieces = [wire[i : i + size] for i in range(0, len(wire), size)]
        assert [m for piece in pieces for m in unpacker.feed(piece)] == messages


def test_a_length_over_the_limit_is_refused_before_anything_is_kept() -> None:
    unpacker = Unpacker[ToCore](msgspec.msgpack.Decoder(ToCore))
    with pytest.raises(ProtocolError):
        list(unpacker.feed((MAX_MESSAGE_BYTES + 1).to_bytes(4, "little")))


def test_merged_frames_lose_nothing() -> None:
    old = Frame([1], [Refusal(9, "queue_full", "m")], [Output(1, 0, [OutputToken(1)], cached_tokens=3)], stats(step=1))
    new = Frame(
        [2],
        [],
        [Output(1, 0, [OutputToken(2)], FinishReason.STOP, stop_tokens=1), Output(1, 1, [OutputToken(7)])],
        stats(step=2),
    )
    merged = merge_frames(old, new)
    assert (merged.queued, len(merged.refused), merged.stats.step) == ([1, 2], 1, 2)
    first, second = merged.outputs
    assert [t.token for t in first.tokens] == [1, 2]
    assert (first.finish, first.stop_tokens, first.cached_tokens) == (FinishReason.STOP, 1, 3)
    assert second.choice == 1
