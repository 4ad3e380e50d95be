"""A port that cannot be had is told with its address, and before a model is fetched for it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvik_engine import cli
from kvik_engine.api.ports import bind, bind_or_refuse
from kvik_engine.errors import StartError, StartReason
from kvik_engine.exits import EXIT_START_ERROR


@pytest.fixture
def taken() -> Iterator[int]:
    with bind("127.0.0.1", 0) as held:
        held.listen()
        yield held.getsockname()[1]


@pytest.fixture
def free() -> int:
    with bind("127.0.0.1", 0) as held:
        port: int = held.getsockname()[1]
    return port


def test_a_taken_port_is_an_error_that_names_it(taken: int) -> None:
    with pytest.raises(StartError, match=f"127.0.0.1:{taken} cannot be used: Address already in use") as caught:
        bind_or_refuse("127.0.0.1", taken)
    assert caught.value.reason is StartReason.PORT_IN_USE


def test_a_port_left_by_a_closed_connection_is_free(free: int) -> None:
    """An engine that is started again finds its port in TIME_WAIT."""
    with bind("127.0.0.1", free) as server:
        server.listen()
        with socket.create_connection(("127.0.0.1", free)), server.accept()[0] as first_to_close:
            first_to_close.shutdown(socket.SHUT_RDWR)
    bind_or_refuse("127.0.0.1", free).close()


@pytest.mark.parametrize("flag", ["--port", "--metrics-port"])
def test_serve_refuses_a_taken_port_before_it_looks_for_the_model(
    taken: int, free: int, flag: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = {"--port": "--metrics-port", "--metrics-port": "--port"}[flag]
    arguments = ["serve", str(tmp_path / "no-such-model"), "--host=127.0.0.1", f"--run-dir={tmp_path}"]
    assert cli.main([*arguments, f"{flag}={taken}", f"{other}={free}"]) == EXIT_START_ERROR
    assert f"PortInUse: 127.0.0.1:{taken} cannot be used" in capsys.readouterr().err
