"""The CRDs of the Prometheus operator, from its Go module, which the module proxy serves and the hash pins."""

import json
import subprocess
import tempfile
from pathlib import Path

from tests.cluster import golang

MODULE = "github.com/prometheus-operator/prometheus-operator@v0.85.0"
SUM = "h1:M5xLCLEoaW2IJfnuCwFzzpL+jSVQu3KGT84Pye+fW8s="


def crd(plural: str) -> Path:
    """The file of one CRD: podmonitors, prometheusrules. Raises RuntimeError if the module cannot be had."""
    with tempfile.TemporaryDirectory() as outside_of_any_module:
        done = subprocess.run(
            [str(golang.go()), "mod", "download", "-json", MODULE],
            cwd=outside_of_any_module,
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode != 0:
        raise RuntimeError(f"{MODULE} could not be downloaded:\n{done.stdout}{done.stderr}")
    module = json.loads(done.stdout)
    if module["Sum"] != SUM:
        raise RuntimeError(f"{MODULE} is not what it was: {module['Sum']}")
    return Path(module["Dir"]) / "example" / "prometheus-operator-crd" / f"monitoring.coreos.com_{plural}.yaml"
