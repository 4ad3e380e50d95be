"""Builds the cluster's programs from the pinned Go modules in `go/`, once for each content of that folder."""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import threading
import time
from pathlib import Path

from tests.cluster import golang
from tests.cluster.paths import GO_SOURCES, Programs, cache_root

# The one binary that is all of these, by the name it is called with (go/components/main.go).
COMPONENTS = (
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kube-proxy",
    "kubelet",
    "kubectl",
)
PACKAGES = {
    "components": "./components",
    "pause": "./pause",
    "coredns": "./coredns",
    "helm": "helm.sh/helm/v3/cmd/helm",
}
PROGRESS_SECONDS = 15


def programs() -> Programs:
    """The finished build of the sources as they are now; builds it first if it is missing (minutes, with progress)."""
    folder = cache_root() / "bin" / source_hash(GO_SOURCES)
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with (folder.parent / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.exists():
                _build(folder)
    return Programs(folder)


def source_hash(sources: Path) -> str:
    """Names a build: the relative names and contents of all Go files, nothing of where or when they lie."""
    digest = hashlib.sha256()
    for path in sorted(path for pattern in ("*.go", "go.mod", "go.sum") for path in sources.rglob(pattern)):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(sources).as_posix()} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:16]


def _build(folder: Path) -> None:
    go = golang.go()
    environment = os.environ | {"CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false", "GOTOOLCHAIN": "local"}
    flags = "-s -w " + " ".join(f"-X {variable}={value}" for variable, value in _version_stamp().items())
    unfinished = folder.with_suffix(".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    for name, package in PACKAGES.items():
        command = [str(go), "build", "-v", "-trimpath", "-ldflags", flags, "-o", str(unfinished / name), package]
        _run_with_progress(name, command, environment)
    for name in COMPONENTS:
        (unfinished / name).symlink_to("components")
    unfinished.rename(folder)


def _version_stamp() -> dict[str, str]:
    """What the Kubernetes programs report as their version; clients refuse a server without one."""
    required = re.search(r"k8s\.io/kubernetes (v(\d+)\.(\d+)\.\d+)", (GO_SOURCES / "go.mod").read_text())
    if required is None:
        raise RuntimeError("go.mod does not require k8s.io/kubernetes")
    stamp = {"gitVersion": required[1], "gitMajor": required[2], "gitMinor": required[3]}
    packages = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    return {f"{package}.{name}": value for package in packages for name, value in stamp.items()}


def _run_with_progress(name: str, command: list[str], environment: dict[str, str]) -> None:
    """`go build -v` names each package on standard error as it compiles it: the count is the progress."""
    begin, lines = time.monotonic(), list[str]()
    print(f"cluster: building {name} (a first build takes minutes) ...", flush=True)
    process = subprocess.Popen(command, cwd=GO_SOURCES, env=environment, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    reader = threading.Thread(target=lines.extend, args=(iter(process.stderr),), daemon=True)
    reader.start()
    while True:
        try:
            code = process.wait(timeout=PROGRESS_SECONDS)
            break
        except subprocess.TimeoutExpired:
            print(f"cluster:   {name}: {len(lines)} packages, {time.monotonic() - begin:.0f} s", flush=True)
    reader.join()
    if code != 0:
        raise RuntimeError(f"building {name} failed:\n" + "".join(lines[-20:]))
    print(f"cluster: built {name} in {time.monotonic() - begin:.0f} s", flush=True)
