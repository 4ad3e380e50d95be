"""KEDA's CRDs, manifests and wire contract, from its Go module. All raise RuntimeError as `go_module.folder`."""

from pathlib import Path

from tests.support import go_module

MODULE = "github.com/kedacore/keda/v2@v2.21.0"
SUM = "h1:R6z2HZvstK4RLUMxroNACzBj74xGxt3kG59b5Xc+Xps="


def crd(plural: str) -> Path:
    """The file of one CRD: scaledobjects, clustertriggerauthentications."""
    return go_module.folder(MODULE, SUM) / "config" / "crd" / "bases" / f"keda.sh_{plural}.yaml"


def proto() -> Path:
    """What KEDA asks of an external scaler."""
    return go_module.folder(MODULE, SUM) / "pkg" / "scalers" / "externalscaler" / "externalscaler.proto"


def manifests() -> Path:
    """The folder that kustomize makes all of KEDA from."""
    return go_module.folder(MODULE, SUM) / "config" / "default"
