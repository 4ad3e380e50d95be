"""The CRDs of the Prometheus operator, from its Go module."""

from pathlib import Path

from tests.support import go_module

MODULE = "github.com/prometheus-operator/prometheus-operator@v0.85.0"
SUM = "h1:M5xLCLEoaW2IJfnuCwFzzpL+jSVQu3KGT84Pye+fW8s="


def crd(plural: str) -> Path:
    """The file of one CRD: podmonitors, prometheusrules. Raises RuntimeError as `go_module.folder`."""
    folder = go_module.folder(MODULE, SUM) / "example" / "prometheus-operator-crd"
    return folder / f"monitoring.coreos.com_{plural}.yaml"
