"""A run that is ended from outside has failed if one of its tests has."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
ENDED_IN_ITS_CLEAN_UP = """
import os, pytest

@pytest.fixture
def scene():
    yield
    os._exit(9)

def test_good(): pass
def test_bad(scene): assert False
"""


def test_a_failure_is_noted_before_the_clean_up_of_its_test_begins(tmp_path: Path) -> None:
    """The long tests' shard was green when the limit came while a failed test still removed its namespaces."""
    path, noted = tmp_path / "test_it.py", tmp_path / "noted"
    path.write_text(ENDED_IN_ITS_CLEAN_UP)
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider"]
    command += [f"--rootdir={tmp_path}", f"--note-failures={noted}", str(path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(command, cwd=tmp_path, env=environment, check=False, capture_output=True)
    assert ended.returncode == 9, ended.stdout + ended.stderr
    assert noted.read_text() == "test_it.py::test_bad\n"
