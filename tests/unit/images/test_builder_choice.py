"""Whether a Docker engine answers, which decides what images and clusters are made with."""

import shutil
import subprocess
from typing import Any

import pytest

from images.builder import docker_answers


def test_an_engine_that_hangs_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def hangs(command: list[str], *, timeout: float, **_: Any) -> None:
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(shutil, "which", lambda _: "/usr/bin/docker")
    monkeypatch.setattr(subprocess, "run", hangs)
    assert not docker_answers()
