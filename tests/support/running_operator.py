"""The charts on a control plane without kubelet, and the operator as a process with exactly the rights that they give.

    install(plane)
    with running_operator(plane, folder) as operator:
        ...

The operator's own pod cannot run there; the process authenticates with a token of the chart's ServiceAccount, so a
missing verb shows as it would in a cluster.
"""

import subprocess
from pathlib import Path

import yaml

from tests.support.control_plane import RunningControlPlane
from tests.support.kubectl import wait_for
from tests.support.operator_process import OperatorProcess

ROOT = Path(__file__).resolve().parents[2]
NAMESPACE = "kvik-system"
RELEASE = "kvik"
NAME = f"{RELEASE}-operator"


def helm(plane: RunningControlPlane, *arguments: str) -> str:
    """What helm prints. Raises RuntimeError with its error text."""
    command = [str(plane.helm), "--kubeconfig", str(plane.kubeconfig), "--namespace", NAMESPACE, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"helm {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def install(plane: RunningControlPlane, *values: str) -> None:
    """Both charts, as a user installs them, without waiting for the operator's pod; returns once pools are served."""
    helm(plane, "upgrade", "--install", "--create-namespace", "kvik-crds", "charts/kvik-crds")
    helm(plane, "upgrade", "--install", "--create-namespace", RELEASE, "charts/kvik", *values)
    # `kubectl wait` fails on a CRD that has no conditions yet.
    served = ("get", "--raw", "/apis/kvik.dev/v1alpha1/inferencepools")
    wait_for("the CRD to be served", lambda: plane.run_kubectl(*served, check=False) != "", 30)
    plane.restart_controllers()  # the garbage collector has pools to look after


def running_operator(plane: RunningControlPlane, folder: Path, *flags: str) -> OperatorProcess:
    """A context manager. `folder` is the caller's; the log is `operator.log` in it."""
    return OperatorProcess(
        _kubeconfig(plane, folder), folder / "operator.log", *flags, lease_namespace=NAMESPACE, lease_name=NAME
    )


def _kubeconfig(plane: RunningControlPlane, folder: Path) -> Path:
    token = plane.run_kubectl("create", "token", NAME, "-n", NAMESPACE, "--duration=2h").strip()
    config = yaml.safe_load(plane.kubeconfig.read_text())
    for user in config["users"]:
        user["user"] = {"token": token}
    path = folder / "operator.conf"
    path.write_text(yaml.safe_dump(config))
    return path
