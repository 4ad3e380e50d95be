"""The demo on a cluster where somebody else has installed Kvik, with a real kubectl and API server."""

import pytest

from scripts import demo
from scripts.demo_ownership import ClaimError, ensure_namespace
from tests.support.operator_rig import Rig

pytestmark = pytest.mark.timeout(600)


def test_the_demo_takes_away_its_own_namespace_and_nobodys_operator_or_pools(
    operated: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    plane = operated.plane
    cluster = demo.Cluster(str(plane.kubeconfig), str(plane.kubectl), str(plane.helm), "example.org/", borrowed=True)
    monkeypatch.setattr(demo, "cluster_found", lambda: cluster)
    operated.create()
    before = cluster.run_helm("list", "--short")
    with pytest.raises(ClaimError, match="namespace kvik-system is there already"):
        demo.install(cluster, {})
    ensure_namespace(cluster.in_namespace(demo.NAMESPACE), borrowed=True)
    ensure_namespace(cluster.in_namespace(demo.NAMESPACE), borrowed=True)  # its own may be taken again
    demo.down()
    assert cluster.in_namespace(demo.NAMESPACE).get("namespace", demo.NAMESPACE) is None
    assert operated.pool() is not None
    assert cluster.run_helm("list", "--short") == before != ""


def test_a_namespace_of_somebody_else_is_not_touched(operated: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    plane = operated.plane
    cluster = demo.Cluster(str(plane.kubeconfig), str(plane.kubectl), str(plane.helm), "example.org/", borrowed=True)
    monkeypatch.setattr(demo, "NAMESPACE", operated.namespace)
    monkeypatch.setattr(demo, "cluster_found", lambda: cluster)
    for act in (demo.down, lambda: ensure_namespace(cluster.in_namespace(operated.namespace), borrowed=True)):
        with pytest.raises(ClaimError, match=operated.namespace):
            act()
