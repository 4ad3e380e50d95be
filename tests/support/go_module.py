"""Files of a Go module, such as the CRDs of another operator: the module proxy serves it, and its hash pins it."""

import json
import subprocess
import tempfile
from pathlib import Path

from tests.cluster import golang


def folder(module: str, sum_: str) -> Path:
    """Where `PATH@VERSION` lies. Raises RuntimeError if it cannot be had, or is not what it was."""
    with tempfile.TemporaryDirectory() as outside_of_any_module:
        done = subprocess.run(
            [str(golang.go()), "mod", "download", "-json", module],
            cwd=outside_of_any_module,
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode != 0:
        raise RuntimeError(f"{module} could not be downloaded:\n{done.stdout}{done.stderr}")
    found = json.loads(done.stdout)
    if found["Sum"] != sum_:
        raise RuntimeError(f"{module} is not what it was: {found['Sum']}")
    return Path(found["Dir"])
