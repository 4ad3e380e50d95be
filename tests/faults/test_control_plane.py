"""The control plane that the other fault tests stand on."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.processes import every_process, wait_until
from tests.support.control_plane import control_plane

pytestmark = pytest.mark.timeout(600)

ROOT = Path(__file__).resolve().parents[2]
KILLED_INSIDE = """
import os, signal, sys
from pathlib import Path
from tests.support.control_plane import control_plane
with control_plane(Path(sys.argv[1])):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def processes_in(folder: Path) -> list[int]:
    return [pid for pid, command in every_process() if any(str(folder) in word for word in command)]


def test_objects_survive_a_killed_api_server_and_nothing_survives_the_end(tmp_path: Path):
    with control_plane(tmp_path) as plane:
        plane.run_kubectl("create", "configmap", "kept", "--from-literal=a=b")
        plane["kube-apiserver"].kill()
        plane["kube-apiserver"].start()
        plane.wait_ready()
        assert plane.run_kubectl("get", "configmap", "kept", "--output=jsonpath={.data.a}") == "b"
        plane["etcd"].pause()  # a frozen program must not hold up the end
    assert processes_in(tmp_path) == []


def test_a_killed_test_run_leaves_no_control_plane(tmp_path: Path):
    run = subprocess.run([sys.executable, "-c", KILLED_INSIDE, str(tmp_path)], cwd=ROOT, check=False, timeout=300)
    assert run.returncode == -signal.SIGKILL
    try:
        wait_until("the programs to end", lambda: processes_in(tmp_path) == [], 60)
    finally:
        for pid in processes_in(tmp_path):
            os.kill(pid, signal.SIGKILL)
