"""Which cluster the commands and tests work on: CLUSTER=local (this package), kind, or existing."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from images import builder
from images.catalog import LOCAL_PREFIX
from tests.cluster import accelerators, build, second_node
from tests.cluster.down import down as down_local
from tests.cluster.golang import go
from tests.cluster.load_image import Loader
from tests.cluster.paths import ClusterFolder, cache_root, local_cluster
from tests.cluster.up import running
from tests.cluster.up import up as up_local

KIND_NAME = "kvik"
KIND_VERSION = "v0.30.0"
KIND_CONFIG = Path(__file__).resolve().parent / "kind.yaml"


@dataclass(frozen=True, slots=True)
class Access:
    """How to use a cluster that is up. Images are named `image_prefix` + `kvik/...`."""

    kubeconfig: Path
    kubectl: Path
    helm: Path
    image_prefix: str


class Target(Protocol):
    """A cluster that can be brought up, given images and taken down."""

    def up(self, nodes: int | None = None) -> Access:
        """Idempotent. Returns once the cluster can run pods.

        With `nodes` it has so many afterwards; without, as many as before, or one.

        Raises:
            RuntimeError: also where the number of nodes is not ours to choose.
        """

    def access(self) -> Access | None:
        """How to use it as it is; None: it is not up."""

    def load(self, image: str) -> None:
        """Makes an image that was built here runnable there."""

    def down(self) -> None: ...


@dataclass(frozen=True, slots=True)
class LocalTarget:
    folder: ClusterFolder

    def up(self, nodes: int | None = None) -> Access:
        up_local(self.folder)
        if nodes == 1:
            second_node.remove(self.folder, build.programs())
        elif nodes == 2:
            second_node.add(self.folder, build.programs())
        elif nodes is not None:
            raise RuntimeError(f"the local cluster has one node or two, not {nodes}")
        return _access(self.folder.kubeconfig, LOCAL_PREFIX)

    def access(self) -> Access | None:
        return _access(self.folder.kubeconfig, LOCAL_PREFIX) if running(self.folder) else None

    def load(self, image: str) -> None:
        for node in (self.folder.first, *([self.folder.second] if second_node.running(self.folder) else [])):
            Loader(node).load(image)

    def down(self) -> None:
        down_local(self.folder)


@dataclass(frozen=True, slots=True)
class KindTarget:
    """A kind cluster of one node on this machine's Docker engine."""

    folder: Path

    def up(self, nodes: int | None = None) -> Access:
        _refuse_number_of_nodes(nodes)
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self._exists():
            self._run("create", "cluster", "--config", str(KIND_CONFIG), "--wait", "120s", *self._kubeconfig())
        else:
            self._run("export", "kubeconfig", *self._kubeconfig())
        access = _access(self.folder / "kind.conf", LOCAL_PREFIX)
        accelerators.advertise(access.kubectl, access.kubeconfig, f"{KIND_NAME}-control-plane")
        return access

    def access(self) -> Access | None:
        return self.up() if self._exists() else None

    def _exists(self) -> bool:
        if not builder.docker_answers():
            raise RuntimeError("CLUSTER=kind needs a Docker engine, and none answers: start it, or use CLUSTER=local")
        return KIND_NAME in self._output("get", "clusters").split()

    def _kubeconfig(self) -> list[str]:
        """Without it kind would write to the user's own."""
        return ["--kubeconfig", str(self.folder / "kind.conf")]

    def load(self, image: str) -> None:
        self._run("load", "docker-image", image)

    def down(self) -> None:
        self._run("delete", "cluster", *self._kubeconfig())

    def _run(self, *arguments: str) -> None:
        command = [str(self._kind()), *arguments, "--name", KIND_NAME]
        if subprocess.run(command, check=False, stdout=sys.stderr).returncode != 0:
            raise RuntimeError(f"kind {' '.join(arguments)} failed (see above)")

    def _output(self, *arguments: str) -> str:
        done = subprocess.run([str(self._kind()), *arguments], capture_output=True, text=True, check=False)
        return done.stdout

    def _kind(self) -> Path:
        """kind of PATH, else built by Go into the cache folder."""
        found = shutil.which("kind")
        if found is not None:
            return Path(found)
        built = self.folder / f"kind-{KIND_VERSION}" / "kind"
        if not built.exists():
            print(f"cluster: building kind {KIND_VERSION} ...", file=sys.stderr, flush=True)
            environment = os.environ | {"GOBIN": str(built.parent), "CGO_ENABLED": "0"}
            command = [str(go()), "install", f"sigs.k8s.io/kind@{KIND_VERSION}"]
            if subprocess.run(command, env=environment, check=False, stdout=sys.stderr).returncode != 0:
                raise RuntimeError("building kind failed (see above)")
        return built


@dataclass(frozen=True, slots=True)
class ExistingTarget:
    """The cluster of KUBECONFIG. It pulls its images itself, from where IMAGE_PREFIX says."""

    kubeconfig: Path
    image_prefix: str

    def up(self, nodes: int | None = None) -> Access:
        _refuse_number_of_nodes(nodes)
        access = _access(self.kubeconfig, self.image_prefix)
        _ask_server(access)
        return access

    def access(self) -> Access | None:
        return self.up()

    def load(self, image: str) -> None:
        if not image.startswith(self.image_prefix):
            raise RuntimeError(f"{image} is not under IMAGE_PREFIX={self.image_prefix}: the cluster could not pull it")

    def down(self) -> None:
        raise RuntimeError("CLUSTER=existing: that cluster is not ours to take down")


def choose(environment: Mapping[str, str], docker_answers: bool) -> Target:
    """By CLUSTER; without it kind where a Docker engine answers, else the local one.

    Raises:
        RuntimeError: CLUSTER is none of the three, or `existing` lacks KUBECONFIG or an IMAGE_PREFIX that ends in `/`.
    """
    kind = environment.get("CLUSTER") or ("kind" if docker_answers else "local")
    match kind:
        case "local":
            return LocalTarget(local_cluster())
        case "kind":
            return KindTarget(cache_root() / "kind")
        case "existing":
            missing = [name for name in ("KUBECONFIG", "IMAGE_PREFIX") if not environment.get(name)]
            if missing:
                example = " such as registry.example/team/" if "IMAGE_PREFIX" in missing else ""
                raise RuntimeError(f"CLUSTER=existing needs {' and '.join(missing)}{example}")
            if not environment["IMAGE_PREFIX"].endswith("/"):
                raise RuntimeError(
                    f"IMAGE_PREFIX={environment['IMAGE_PREFIX']} must end in /: it stands before kvik/..."
                )
            return ExistingTarget(Path(environment["KUBECONFIG"]), environment["IMAGE_PREFIX"])
    raise RuntimeError(f"CLUSTER={kind}: must be local, kind or existing")


def from_environment() -> Target:
    """`choose` for this process; says when a KUBECONFIG is not used."""
    named = os.environ.get("CLUSTER")
    target = choose(os.environ, docker_answers=False if named else builder.docker_answers())
    ignored = os.environ.get("KUBECONFIG")
    if ignored and not isinstance(target, ExistingTarget) and not Path(ignored).is_relative_to(cache_root()):
        print("cluster: KUBECONFIG is ignored; set CLUSTER=existing to use that cluster", file=sys.stderr, flush=True)
    return target


def _ask_server(access: Access) -> None:
    """RuntimeError with the server's name and why it does not answer, which KUBECONFIG alone does not show."""
    kubectl = [str(access.kubectl), f"--kubeconfig={access.kubeconfig}"]
    asked = [*kubectl, "version", "--request-timeout=10s"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        named = [*kubectl, "config", "view", "--minify", "--output=jsonpath={.clusters[0].cluster.server}"]
        server = subprocess.run(named, capture_output=True, text=True, check=False).stdout or "no server"
        why = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise RuntimeError(f"the cluster of KUBECONFIG={access.kubeconfig} ({server}) does not answer: {why}")


def _refuse_number_of_nodes(nodes: int | None) -> None:
    if nodes is not None:
        raise RuntimeError("only CLUSTER=local takes a number of nodes")


def _access(kubeconfig: Path, image_prefix: str) -> Access:
    programs = build.programs(build.CLIENTS)
    return Access(kubeconfig, programs.kubectl, programs.helm, image_prefix)
