"""Builds programs from the pinned Go modules in `go/`, `go_kube_router/` and `go_keda/`, once for each content."""

import fcntl
import hashlib
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.cluster import golang
from tests.cluster.paths import GO_SOURCES, KEDA_SOURCES, KUBE_ROUTER_SOURCES, Programs, cache_root

# Go package by program. `components` is one binary that is each of COMPONENTS by the name it is called with.
PACKAGES = {
    "components": "./components",
    "kubectl": "k8s.io/kubernetes/cmd/kubectl",
    "helm": "helm.sh/helm/v3/cmd/helm",
    "coredns": "./coredns",
    "pause": "./pause",
}
COMPONENTS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet")
CLIENTS = ("kubectl", "helm")
KUBE_ROUTER = "github.com/cloudnativelabs/kube-router/v2/cmd/kube-router"
KEDA = {name: f"github.com/kedacore/keda/v2/cmd/{name}" for name in ("operator", "adapter")}
PROGRESS_SECONDS = 15


def programs(needed: Iterable[str] = tuple(PACKAGES)) -> Programs:
    """The build of the sources as they are now. Builds first what is missing of `needed` (minutes, with progress)."""
    return Programs(_built(GO_SOURCES, {name: PACKAGES[name] for name in needed}))


def kube_router() -> Path:
    """The program that enforces NetworkPolicies. A module of its own: it wants other versions of what it shares."""
    return _built(KUBE_ROUTER_SOURCES, {"kube-router": KUBE_ROUTER}) / "kube-router"


def keda() -> Path:
    """The folder of KEDA's `operator` and `adapter`, from a module of its own too (ten minutes on two cores)."""
    return _built(KEDA_SOURCES, KEDA)


def _built(sources: Path, packages: Mapping[str, str]) -> Path:
    """The folder that has each program of `packages`."""
    folder = cache_root() / "bin" / source_hash(sources)
    if any(not (folder / name).exists() for name in packages):
        folder.mkdir(parents=True, exist_ok=True)
        with (folder.parent / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for name, package in packages.items():
                if not (folder / name).exists():
                    _build(name, package, sources, folder)
    return folder


def source_hash(sources: Path) -> str:
    """Names a build: the relative names and contents of all Go files, nothing of where or when they lie."""
    digest = hashlib.sha256()
    for path in sorted(path for pattern in ("*.go", "go.mod", "go.sum") for path in sources.rglob(pattern)):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(sources).as_posix()} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:16]


def _build(name: str, package: str, sources: Path, folder: Path) -> None:
    go = golang.go()
    environment = os.environ | {"CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false", "GOTOOLCHAIN": "local"}
    flags = "-s -w " + " ".join(f"-X {variable}={value}" for variable, value in _version_stamp().items())
    unfinished = folder / f"{name}.unfinished"
    command = [str(go), "build", "-v", "-trimpath", "-ldflags", flags, "-o", str(unfinished), package]
    _run_with_progress(name, command, sources, environment)
    if name == "components":
        for component in COMPONENTS:
            (folder / component).unlink(missing_ok=True)
            (folder / component).symlink_to(name)
    unfinished.rename(folder / name)


def _version_stamp() -> dict[str, str]:
    """What the Kubernetes programs report as their version; clients refuse a server without one.

    Helm takes its part for the version of the cluster that `helm template` renders for.
    """
    required = re.search(r"k8s\.io/kubernetes (v(\d+)\.(\d+)\.\d+)", (GO_SOURCES / "go.mod").read_text())
    if required is None:
        raise RuntimeError("go.mod does not require k8s.io/kubernetes")
    stamp = {"gitVersion": required[1], "gitMajor": required[2], "gitMinor": required[3]}
    packages = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    helm = "helm.sh/helm/v3/pkg/chartutil"
    return {
        **{f"{package}.{name}": value for package in packages for name, value in stamp.items()},
        f"{helm}.k8sVersionMajor": required[2],
        f"{helm}.k8sVersionMinor": required[3],
    }


def _run_with_progress(name: str, command: list[str], sources: Path, environment: dict[str, str]) -> None:
    """`go build -v` names each package on standard error as it compiles it: the count is the progress."""
    begin, lines = time.monotonic(), list[str]()
    print(f"cluster: building {name} (a first build takes minutes) ...", flush=True, file=sys.stderr)
    process = subprocess.Popen(command, cwd=sources, env=environment, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    reader = threading.Thread(target=lines.extend, args=(iter(process.stderr),), daemon=True)
    reader.start()
    while True:
        try:
            code = process.wait(timeout=PROGRESS_SECONDS)
            break
        except subprocess.TimeoutExpired:
            print(
                f"cluster:   {name}: {len(lines)} packages, {time.monotonic() - begin:.0f} s",
                flush=True,
                file=sys.stderr,
            )
    reader.join()
    if code != 0:
        raise RuntimeError(f"building {name} failed:\n" + "".join(lines[-20:]))
    print(f"cluster: built {name} in {time.monotonic() - begin:.0f} s", flush=True, file=sys.stderr)
