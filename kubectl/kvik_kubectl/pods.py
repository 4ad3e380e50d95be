"""Reads the load of a pool's pods, each from the pod itself."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from kvik_kubectl.cluster import Cluster, Object
from kvik_kubectl.load import PodLoad

_ENDED: Final = frozenset({"Succeeded", "Failed"})
_AT_ONCE: Final = 16


def loads_of(cluster: Cluster, pool: str) -> Sequence[PodLoad]:
    """Of all pods that have not ended, by name. One that does not answer is listed with what came instead."""
    pods = sorted(cluster.pods(pool), key=lambda pod: str(pod["metadata"]["name"]))
    living = [pod for pod in pods if (pod.get("status") or {}).get("phase") not in _ENDED]
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        return list(threads.map(lambda pod: _load_of(cluster, pod), living))


def _load_of(cluster: Cluster, pod: Object) -> PodLoad:
    name = str(pod["metadata"]["name"])
    phase = (pod.get("status") or {}).get("phase")
    if phase != "Running":
        return PodLoad(name, str(phase or "Pending").lower(), None)
    answer = cluster.load(name)
    if isinstance(answer, str):
        return PodLoad(name, f"does not answer: {answer}", None)
    return PodLoad(name, str(answer.get("state", "unknown")), answer)
