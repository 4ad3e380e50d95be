"""A real control plane without a kubelet, for tests of the operator under faults: ready in about four seconds.

Use it as a context manager; every program can be stopped, killed, frozen and started again by name:

    with control_plane(folder) as plane:
        plane["kube-apiserver"].pause()
"""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from images import debian
from tests.cluster import build
from tests.cluster import control_plane as programs_of
from tests.cluster.processes import PATIENCE, Daemon, wait_until

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class RunningControlPlane:
    """A started control plane. Nothing outside its own folder and its own processes is touched."""

    plane: programs_of.ControlPlane
    daemons: tuple[Daemon, ...]

    @property
    def kubeconfig(self) -> Path:
        return self.plane.kubeconfig

    @property
    def kubectl(self) -> Path:
        return self.plane.programs.kubectl

    @property
    def helm(self) -> Path:
        return self.plane.programs.helm

    @property
    def url(self) -> str:
        """Of the API server; it stays the same over a restart."""
        return self.plane.url

    def __getitem__(self, program: str) -> Daemon:
        """`etcd`, `kube-apiserver`, `kube-controller-manager` or `kube-scheduler`."""
        return next(daemon for daemon in self.daemons if daemon.name == program)

    def run_kubectl(self, *arguments: str, stdin: str | None = None, check: bool = True) -> str:
        """What kubectl prints. Raises RuntimeError with its error text when it fails and `check` is set."""
        command = [str(self.kubectl), "--kubeconfig", str(self.kubeconfig), *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=180, check=False)
        if check and done.returncode != 0:
            raise RuntimeError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def wait_ready(self, seconds: float = PATIENCE) -> None:
        """Waits until the API server is ready, as after a restart."""
        wait_until("the API server to be ready", self.plane.ready, seconds, [self["etcd"], self["kube-apiserver"]])

    def restart_controllers(self) -> None:
        """After the API server was away, and after a new kind: until then they look again twice a minute at most.

        Returns when they act: they make the ServiceAccount anew that is taken away while they are gone.
        """
        controllers = self["kube-controller-manager"]
        controllers.kill()
        self.run_kubectl("delete", "serviceaccount", "default", "--namespace=default")
        controllers.start()
        wait_until("the controllers to act", self.plane.service_account_exists, 60, [controllers])


@contextmanager
def control_plane(folder: Path, scheduler: bool = False) -> Iterator[RunningControlPlane]:
    """Starts etcd, the API server and the controller manager (and the scheduler) on free loopback ports.

    `folder` is empty and the caller's. Builds the programs first if this machine has not (minutes). Call it from the
    main thread: the programs end with the thread that started them.
    """
    debian.ensure({"openssl": "openssl", "setpriv": "util-linux"})
    plane = programs_of.ControlPlane(
        folder=folder,
        programs=build.programs(),
        address=LOOPBACK,
        ports=programs_of.ports(LOOPBACK),
        kubelets=False,
        dies_with_parent=True,
    )
    daemons = [plane.etcd(), plane.apiserver(), plane.controller_manager()]
    try:
        plane.start(scheduler)
        yield RunningControlPlane(plane, tuple(daemons + ([plane.scheduler()] if scheduler else [])))
    finally:
        for daemon in reversed([*daemons, plane.scheduler()]):
            daemon.stop(patience=2.0)
