"""O20: many pools at once. Memory stays small, all settle, and nobody's write rate runs away."""

import json
import time

import pytest

from tests.support.operator_process import POD_GRACE
from tests.support.operator_rig import Rig, eventually

POOLS = 200
PODS_EACH = 10
MEMORY_LIMIT = 150 * 1024 * 1024

MANIFEST = """
apiVersion: kvik.dev/v1alpha1
kind: InferencePool
metadata: {{name: pool-{number}}}
spec:
  model: {{source: "file:///models/x/model.gguf"}}
  resources: {{device: CPU}}
  replicas: {replicas}
"""


def seen(rig: Rig, pods_each: int) -> int:
    """Pools whose status speaks of their present generation and of at least so many pods."""
    pools = json.loads(rig.kubectl("get", "inferencepools.kvik.dev", "-ojson"))["items"]
    return sum(
        pool.get("status", {}).get("observedGeneration") == pool["metadata"]["generation"]
        and pool["status"].get("replicas", 0) >= pods_each
        for pool in pools
    )


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_two_hundred_pools_of_ten_pods_settle_in_little_memory(operated: Rig) -> None:
    rig = operated
    rig.kubelet.starts = lambda _: False  # pods exist, and stay Pending
    proxy = rig.proxy()
    operator = rig.operator(proxy=proxy)
    rig.kubectl(
        "create", "-f", "-", stdin="---".join(MANIFEST.format(number=n, replicas=PODS_EACH) for n in range(POOLS))
    )
    eventually("all pools to be seen with all pods", lambda: seen(rig, PODS_EACH) == POOLS, 900, rig.explain)
    assert operator.metric("kvik_operator_engine_pods") == POOLS * PODS_EACH
    memory = operator.metric("process_resident_memory_bytes")
    assert memory is not None
    assert memory < MEMORY_LIMIT

    begin, before = time.monotonic(), len(proxy.writes())
    rig.kubectl(
        *("patch", "inferencepools.kvik.dev", "--type=merge", '--patch={"spec": {"batching": {"maxRequests": 8}}}'),
        *(f"pool-{n}" for n in range(POOLS)),
    )
    eventually("all pools to be seen anew", lambda: seen(rig, PODS_EACH) == POOLS, 300, rig.explain)
    rate = (len(proxy.writes()) - before) / (time.monotonic() - begin)
    assert rate <= 60
    assert operator.probe("/live")[0] == 200
    begin = time.monotonic()
    assert operator.terminate() == 0
    assert time.monotonic() - begin < POD_GRACE
