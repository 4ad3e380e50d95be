"""Stands in for the kubelets of a control plane without any: pods of pools run, are Ready, and end when deleted.

Each pod gets a loopback address of its own, on which a stub engine's metrics port answers the operator.
"""

import asyncio
import contextlib
import itertools
import os
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from aiohttp import web
from kubernetes.client import CoreV1Api
from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

from tests.support.ended_server import end, listen
from tests.support.stub_engine.engine import Overrides, StubEngine, StubOptions
from tests.support.stub_engine.http import metrics_app
from tests.support.waiting import PATIENCE

T = TypeVar("T")
METRICS_PORT = 8001
DRAINS = "tests.kvik.dev/drains"
"""A finalizer."""
_OPTIONS = StubOptions("stub", 32, 256, 728, 16, 50.0, 1000.0, 0.0, 0.0, 1.0)


@dataclass(slots=True)
class _Running:
    address: str
    engine: StubEngine
    runner: web.AppRunner
    listening: socket.socket


class FakeKubelet:
    """A context manager. `starts` says whether a pod may start (default: all may); set it at any time.

    `crashes` says whose engine ends again and again once it was started (default: nobody's).
    `room` is the number of pods of a namespace that there are nodes for (default: any number). What is beyond it is
    told to be unschedulable, as by a scheduler that has said so for `waited` seconds.
    `drains` is how many seconds a deleted pod goes on, as one whose streams are still open; set it before pods start,
    since a pod without a node has no grace: the API server keeps it for a finalizer of ours.
    """

    def __init__(self, api: CoreV1Api, period: float = 0.2) -> None:
        self._api = api
        self._period = period
        self.starts: Callable[[Mapping[str, Any]], bool] = lambda _: True
        self.crashes: Callable[[Mapping[str, Any]], bool] = lambda _: False
        self.room: int | None = None
        self.waited = 0.0
        self.drains = 0.0
        self._ending: dict[str, float] = {}
        self._load: dict[str, Any] = {}
        self._pods: dict[str, _Running] = {}
        # A pod that starts while the load changes must not keep the old one.
        self._changing_load = threading.Lock()
        self._loop = asyncio.new_event_loop()
        self._server = threading.Thread(target=self._loop.run_forever, name="stub-engines", daemon=True)
        self._watcher = threading.Thread(target=self._run, name="fake-kubelet", daemon=True)
        self._stopping = threading.Event()
        pid = os.getpid()
        self._addresses = (f"127.{100 + pid // 250 % 100}.{pid % 250}.{n}" for n in itertools.count(1))

    def __enter__(self) -> Self:
        self._server.start()
        self._watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._watcher.join(PATIENCE)
        for running in self._pods.values():
            self._call(end(running.runner, running.listening))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._server.join(10)
        self._loop.close()

    def set_load(self, **figures: Any) -> None:
        """What every engine's `/load` says from now on, over its own figures."""
        with self._changing_load:
            self._load = figures
            for running in self._pods.values():
                running.engine.overrides = Overrides(load=figures)

    def _run(self) -> None:
        while not self._stopping.wait(self._period):
            # The API server may be down on purpose, and pods go while we look at them.
            with contextlib.suppress(ApiException, HTTPError):
                self._round()

    def _round(self) -> None:
        pods = self._api.list_pod_for_all_namespaces(label_selector="kvik.dev/pool", _request_timeout=30).items
        for pod in pods:
            if pod.metadata.deletion_timestamp is not None:
                self._end(pod)
            elif not pod.status.pod_ip:
                self._schedule(pod, pods)
        for uid in set(self._pods) - {pod.metadata.uid for pod in pods}:
            with self._changing_load:
                gone = self._pods.pop(uid)
            self._call(end(gone.runner, gone.listening))

    def _end(self, pod: Any) -> None:
        since = self._ending.setdefault(pod.metadata.uid, time.monotonic())
        if time.monotonic() - since < self.drains:
            return
        if pod.metadata.finalizers:
            self._patch(pod, {"finalizers": None})
        else:
            self._api.delete_namespaced_pod(
                pod.metadata.name, pod.metadata.namespace, grace_period_seconds=0, _request_timeout=30
            )

    def _schedule(self, pod: Any, pods: Sequence[Any]) -> None:
        neighbours = [other for other in pods if other.metadata.namespace == pod.metadata.namespace]
        if self.room is not None and sum(bool(other.status.pod_ip) for other in neighbours) >= self.room:
            if not pod.status.conditions:
                self._patch_status(pod, {"conditions": [no_room(self.waited)]})
        elif self.starts(self._api.api_client.sanitize_for_serialization(pod)):
            self._start(pod)
            pod.status.pod_ip = "of this round"  # it takes room from now on

    def _start(self, pod: Any) -> None:
        """Until the API server has taken the pod's status, which may need another round."""
        running = self._pods.get(pod.metadata.uid) or self._run_engine(pod.metadata.uid)
        if self.drains:
            self._patch(pod, {"finalizers": [DRAINS]})
        crashes = self.crashes(self._api.api_client.sanitize_for_serialization(pod))
        self._patch_status(pod, (crashing_status if crashes else ready_status)(pod, running.address))

    def _patch(self, pod: Any, metadata: Mapping[str, Any]) -> None:
        self._api.patch_namespaced_pod(
            pod.metadata.name, pod.metadata.namespace, {"metadata": metadata}, _request_timeout=30
        )

    def _patch_status(self, pod: Any, status: Mapping[str, Any]) -> None:
        self._api.patch_namespaced_pod_status(
            pod.metadata.name, pod.metadata.namespace, {"status": status}, _request_timeout=30
        )

    def _run_engine(self, uid: str) -> _Running:
        engine = StubEngine(_OPTIONS)
        runner = web.AppRunner(metrics_app(engine), access_log=None, shutdown_timeout=0.1)
        address = next(self._addresses)
        running = _Running(address, engine, runner, self._call(listen(runner, address, METRICS_PORT)))
        with self._changing_load:
            engine.overrides = Overrides(load=self._load)
            self._pods[uid] = running
        return running

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(PATIENCE)


def ready_status(pod: Any, address: str) -> dict[str, Any]:
    """What a kubelet reports of a pod whose containers all run and are ready."""
    now = _before(0)
    container = pod.spec.containers[0]
    return {
        "phase": "Running",
        "podIP": address,
        "podIPs": [{"ip": address}],
        "startTime": now,
        "conditions": [
            {"type": kind, "status": "True", "lastTransitionTime": now}
            for kind in ("PodScheduled", "Initialized", "ContainersReady", "Ready")
        ],
        "containerStatuses": [
            {
                "name": container.name,
                "ready": True,
                "started": True,
                "restartCount": 0,
                "image": container.image,
                "imageID": container.image,
                "containerID": "stub://1",
                "state": {"running": {"startedAt": now}},
            }
        ],
    }


def crashing_status(pod: Any, address: str) -> dict[str, Any]:
    """The same of a pod whose engine has ended with an error and waits to be started again."""
    status = ready_status(pod, address)
    for condition in status["conditions"]:
        condition["status"] = str(condition["type"] not in ("ContainersReady", "Ready"))
    ended = {"exitCode": 1, "reason": "Error", "startedAt": _before(2), "finishedAt": _before(1)}
    status["containerStatuses"][0] |= {
        "ready": False,
        "started": False,
        "restartCount": 3,
        "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s"}},
        "lastState": {"terminated": ended},
    }
    return status


def no_room(waited: float) -> dict[str, Any]:
    """What a scheduler reports of a pod that it has tried to place for so many seconds."""
    preemption = "preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod."
    return {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": f"0/1 nodes are available: 1 Insufficient memory. no new claims to deallocate, {preemption}",
        "lastTransitionTime": _before(waited),
    }


def _before(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - seconds))
