from kvik_operator.kube.paths import path, pool_path
from kvik_operator.names import PoolKey


def test_core_and_grouped_resources_live_under_different_roots() -> None:
    assert path("v1", "pods", "demo", "a") == "/api/v1/namespaces/demo/pods/a"
    assert path("apps/v1", "deployments", None) == "/apis/apps/v1/deployments"


def test_a_name_cannot_reach_another_path() -> None:
    assert path("v1", "pods", "demo", "../secrets/x") == "/api/v1/namespaces/demo/pods/..%2Fsecrets%2Fx"


def test_subresources_come_last() -> None:
    want = "/apis/kvik.dev/v1alpha1/namespaces/demo/inferencepools/chat/status"
    assert pool_path(PoolKey("demo", "chat"), "status") == want
