"""The store: what it keeps, for whom, and that late or stale news cannot undo fresh ones."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kvik_operator.kube.kinds import POD
from kvik_operator.kube.store import MAX_GONE, ObjectId, Store, is_newer_version
from kvik_operator.names import KIND, LABEL_POOL, ChildKind, PoolKey

KEY = PoolKey("demo", "chat")
OTHER = PoolKey("demo", "other")


def obj(name: str, *, uid: str = "u1", version: str = "1", pool: str | None = "chat", **more: Any) -> dict[str, Any]:
    labels = {} if pool is None else {LABEL_POOL: pool}
    metadata = {"namespace": "demo", "name": name, "uid": uid, "resourceVersion": version, "labels": labels}
    return {"apiVersion": "v1", "kind": "?", "metadata": metadata, **more}


def test_children_and_pods_are_found_by_the_label_of_their_pool() -> None:
    store = Store()
    store.upsert(ChildKind.DEPLOYMENT, obj("chat"))
    store.upsert(ChildKind.SERVICE_ACCOUNT, obj("chat-engine"))
    store.upsert(POD, obj("chat-1", uid="p1"))
    store.upsert(POD, obj("other-1", uid="p2", pool="other"))
    assert store.child(KEY, ChildKind.DEPLOYMENT) is not None
    assert store.child(KEY, ChildKind.SERVICE_ACCOUNT) is not None
    assert store.child(KEY, ChildKind.SERVICE) is None
    assert [pod["metadata"]["name"] for pod in store.pods(KEY)] == ["chat-1"]
    assert store.keys() == {KEY, OTHER}
    assert store.pool_keys() == set()
    assert store.counts() == (0, 2)


def test_an_object_without_the_label_is_nobodys() -> None:
    store = Store()
    assert store.upsert(POD, obj("stray", pool=None)) == frozenset()
    assert store.keys() == set()


def test_an_older_version_does_not_overwrite_a_newer_one() -> None:
    store = Store()
    store.upsert(KIND, obj("chat", version="10", spec={"replicas": 2}))
    store.upsert(KIND, obj("chat", version="9", spec={"replicas": 1}))
    pool = store.pool(KEY)
    assert pool is not None
    assert pool["spec"] == {"replicas": 2}


def test_a_recreated_object_replaces_its_predecessor_whatever_the_versions() -> None:
    store = Store()
    store.upsert(KIND, obj("chat", uid="old", version="10"))
    store.upsert(KIND, obj("chat", uid="new", version="9"))
    pool = store.pool(KEY)
    assert pool is not None
    assert pool["metadata"]["uid"] == "new"


def test_a_late_deletion_does_not_remove_the_successor_of_the_same_name() -> None:
    store = Store()
    store.upsert(KIND, obj("chat", uid="new"))
    assert store.remove(KIND, obj("chat", uid="old")) == {KEY}
    assert store.pool(KEY) is not None


def test_a_deletion_removes_the_object_and_the_empty_pool() -> None:
    store = Store()
    store.upsert(KIND, obj("chat"))
    store.upsert(POD, obj("chat-1"))
    assert store.remove(KIND, obj("chat")) == {KEY}
    assert store.keys() == {KEY}
    assert store.remove(POD, obj("chat-1")) == {KEY}
    assert store.keys() == set()


def test_the_answer_to_a_write_that_comes_after_the_deletion_brings_nothing_back() -> None:
    store = Store()
    store.upsert(KIND, obj("chat", version="5"))
    store.remove(KIND, obj("chat", version="8"))
    store.upsert(KIND, obj("chat", version="7"))
    assert store.pool(KEY) is None
    store.upsert(KIND, obj("chat", uid="u2", version="6"))
    assert store.pool(KEY) is not None, "a successor"


def test_an_object_that_lost_its_label_and_gets_it_back_is_kept() -> None:
    store = Store()
    store.upsert(POD, obj("p", version="5"))
    store.remove(POD, obj("p", version="6"))  # so the watch tells that it left the selector
    store.upsert(POD, obj("p", version="7"))
    assert len(store.pods(KEY)) == 1


def test_deletions_are_not_remembered_without_end() -> None:
    store = Store()
    for number in range(MAX_GONE + 1):
        store.remove(POD, obj("p", uid=f"u{number}", version="9"))
    store.upsert(POD, obj("p", uid="u0", version="5"))
    assert len(store.pods(KEY)) == 1


def test_a_pool_is_forgotten_by_its_uid() -> None:
    store = Store()
    store.upsert(KIND, obj("chat"))
    store.forget_pool(KEY, "another")
    assert store.pool(KEY) is not None
    store.forget_pool(KEY, "u1")
    assert store.pool(KEY) is None


def test_a_pod_whose_label_changes_moves_and_both_pools_hear_of_it() -> None:
    store = Store()
    store.upsert(POD, obj("p", version="1", pool="chat"))
    assert store.upsert(POD, obj("p", version="2", pool="other")) == {KEY, OTHER}
    assert store.pods(KEY) == []
    assert len(store.pods(OTHER)) == 1


def test_forgetting_names_the_pool_and_needs_the_uid() -> None:
    store = Store()
    store.upsert(ChildKind.SERVICE, obj("chat"))
    assert store.forget(ObjectId("Service", "demo", "chat", "else")) == frozenset()
    assert store.forget(ObjectId("Service", "demo", "chat", "u1")) == {KEY}
    assert store.child(KEY, ChildKind.SERVICE) is None


def test_versions_are_those_of_one_kind() -> None:
    store = Store()
    store.upsert(KIND, obj("chat", version="5"))
    store.upsert(POD, obj("chat-1", version="7"))
    assert store.versions(KIND) == {ObjectId(KIND, "demo", "chat", "u1"): "5"}
    assert store.versions(POD) == {ObjectId(POD, "demo", "chat-1", "u1"): "7"}


def test_versions_compare_as_numbers_and_not_as_text() -> None:
    assert is_newer_version("100", than="99")
    assert not is_newer_version("99", than="100")
    assert not is_newer_version("7", than="7")


def test_a_pod_is_trimmed_to_what_is_read() -> None:
    store = Store()
    pod = obj("chat-1", spec={"nodeName": "n1", "containers": [{"name": "engine", "image": "i", "env": ["much"]}]})
    pod["status"] = {"phase": "Running", "podIP": "10.0.0.1", "hostIP": "1.2.3.4"}
    pod["metadata"]["managedFields"] = ["much"]
    store.upsert(POD, pod)
    (kept,) = store.pods(KEY)
    assert kept["spec"] == {"nodeName": "n1"}
    assert kept["status"] == {"phase": "Running", "podIP": "10.0.0.1"}
    assert "managedFields" not in kept["metadata"]


def test_of_a_pools_labels_and_annotations_only_ours_are_kept() -> None:
    """Those of its user may be 256 KiB, and are nobody's business here."""
    store = Store()
    pool = obj("chat")
    pool["metadata"] |= {"annotations": {"kvik.dev/a": "1", "note": "much"}, "labels": {"team": "much"}}
    store.upsert(KIND, pool)
    kept = store.pool(KEY)
    assert kept is not None
    assert kept["metadata"]["annotations"] == {"kvik.dev/a": "1"}
    assert kept["metadata"]["labels"] == {}


Action = tuple[str, int, int, int]


@given(st.lists(st.tuples(st.sampled_from(["upsert", "remove"]), *[st.integers(0, 2)] * 3), max_size=40))
def test_whatever_happens_an_object_is_with_one_pool_and_no_entry_is_empty(actions: list[Action]) -> None:
    store = Store()
    for number, (what, name, pool, uid) in enumerate(actions):
        change = obj(f"pod-{name}", uid=f"u{uid}", version=str(number), pool=f"pool-{pool}")
        if what == "upsert":
            store.upsert(POD, change)
        else:
            store.remove(POD, change)
    keys = sorted(store.keys())
    names = [pod["metadata"]["name"] for key in keys for pod in store.pods(key)]
    assert len(names) == len(set(names)) == store.counts()[1]
    assert all(store.pods(key) for key in keys)


def test_nothing_is_kept_of_a_kind_that_is_not_served_any_more() -> None:
    store = Store()
    assert store.serve(frozenset({ChildKind.SCALED_OBJECT})) == frozenset()
    store.upsert(KIND, obj("chat"))
    store.upsert(ChildKind.SCALED_OBJECT, obj("chat", uid="s1"))
    assert store.served() == {ChildKind.SCALED_OBJECT}
    assert store.serve(frozenset()) == {KEY}
    assert store.served() == frozenset()
    assert store.child(KEY, ChildKind.SCALED_OBJECT) is None
    assert store.pool(KEY) is not None
