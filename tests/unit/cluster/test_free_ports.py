import itertools
import socket

import pytest

from tests.cluster import free_ports as module
from tests.cluster.free_ports import END, FIRST, free_ports


def test_no_port_is_given_twice() -> None:
    given = [port for _ in range(20) for port in free_ports("127.0.0.1", 3)]
    assert len(set(given)) == 60
    assert all(FIRST <= port < END for port in given)


def test_a_port_that_somebody_listens_on_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    (port,) = free_ports("127.0.0.1", 1)
    monkeypatch.setattr(module, "_turns", itertools.count(port - FIRST))
    with socket.create_server(("127.0.0.1", port)):
        assert port not in free_ports("127.0.0.1", 3)


def test_the_last_is_followed_by_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_turns", itertools.count(END - FIRST - 1))
    monkeypatch.setattr(module, "_is_free", lambda address, port: True)
    assert free_ports("127.0.0.1", 2) == [END - 1, FIRST]


def test_where_none_is_free_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_is_free", lambda address, port: False)
    with pytest.raises(OSError, match="no 2 ports"):
        free_ports("127.0.0.1", 2)
