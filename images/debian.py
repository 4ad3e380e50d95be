"""The programs that come from the distribution: installs them where it may, else says exactly what is missing."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def ensure(needed: Mapping[str, str]) -> None:
    """Makes every program of `needed` (program -> Debian package) available. A program with a leading / is a file.

    Raises:
        RuntimeError: some are missing and cannot be installed here; names the packages.
    """
    absent = missing(needed)
    if not absent:
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise RuntimeError(f"missing programs: install these packages (Debian's names): {' '.join(absent)}")
    print(f"set-up: installing {' '.join(absent)}", flush=True, file=sys.stderr)
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update"], ["install", "--yes", "--no-install-recommends", *absent]):
        done = subprocess.run(
            ["apt-get", "-qq", *command], env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode != 0 and command[0] == "install":
            raise RuntimeError(f"apt-get install {' '.join(absent)} failed:\n{done.stderr.strip()[-2000:]}")
    if still := missing(needed):
        raise RuntimeError(f"installed, but still without the programs of: {' '.join(still)}")


def missing(needed: Mapping[str, str]) -> list[str]:
    """The packages of those programs that are not here, each once, in order."""
    return list(dict.fromkeys(package for program, package in needed.items() if not _present(program)))


def _present(program: str) -> bool:
    if program.startswith("/"):
        return Path(program).exists() or Path("/opt/cni/bin", Path(program).name).exists()
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:{SYSTEM_PATH}") is not None
