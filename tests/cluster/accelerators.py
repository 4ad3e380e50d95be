"""Accelerators that are not there, as extended resources of a node: scheduling by GPU is real, computing is not."""

import json
import subprocess
from pathlib import Path

ADVERTISED = {"nvidia.com/gpu": "4"}


def advertise(kubectl: Path, kubeconfig: Path, node: str) -> None:
    """Idempotent. The kubelet keeps the capacity of resources that it does not know."""
    patch = json.dumps({"status": {"capacity": ADVERTISED, "allocatable": ADVERTISED}})
    command = [
        str(kubectl),
        f"--kubeconfig={kubeconfig}",
        "patch",
        "node",
        node,
        "--subresource=status",
        "--type=merge",
    ]
    done = subprocess.run([*command, f"--patch={patch}"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"the node could not be given accelerators: {done.stderr.strip()}")
