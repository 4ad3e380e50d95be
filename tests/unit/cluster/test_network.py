"""What is taken away with the second node: nothing that this cluster did not make."""

import subprocess
from typing import Any

import pytest

from tests.cluster import network

NOWHERE = network.Place("203.0.113.2", "198.51.100.0/24", "kvik-that-never-was")


def test_only_routes_of_our_own_interface_are_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A route to the second node's address may be another network's, where there never was a second node."""
    commands: list[list[str]] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(network.subprocess, "run", run)
    monkeypatch.setattr(network, "_exists", lambda interface: False)

    network.disconnect(NOWHERE)

    assert commands == [
        ["ip", "route", "delete", destination, "dev", network.INTERFACE]
        for destination in (NOWHERE.address, NOWHERE.pod_range)
    ]
