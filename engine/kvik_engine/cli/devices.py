"""Which device `auto` means, without loading torch."""

from __future__ import annotations

from pathlib import Path

_GPU_NODES = ("/dev/nvidiactl", "/dev/kfd")


def resolve_device(wanted: str, root: Path = Path("/")) -> str:
    """`cuda` (also ROCm, as torch calls it) or `cpu`. The core checks that torch sees what was chosen."""
    if wanted == "gpu":
        return "cuda"
    if wanted == "cpu":
        return "cpu"
    return "cuda" if any((root / node.lstrip("/")).exists() for node in _GPU_NODES) else "cpu"
