"""What a LIST says about the watches: objects that vanished unnoticed, and watches that have gone deaf."""

import asyncio
from collections.abc import Callable

from kvik_operator.errors import ClusterError, NotFound, Refused, Unavailable
from kvik_operator.kube.kinds import WatchedKind, watched
from kvik_operator.kube.store import ObjectId, Store
from kvik_operator.names import KIND, OPTIONAL_KINDS, PoolKey
from kvik_operator.watch.relist import DeafWatch, Relister, Versions, vanished

ONE = ObjectId("Pod", "demo", "one", "u1")
TWO = ObjectId("Pod", "demo", "two", "u2")
ELSEWHERE = ObjectId("Pod", "else", "one", "u3")


def test_what_the_store_has_and_the_list_has_not_has_vanished() -> None:
    assert vanished({ONE: "1", TWO: "2"}, {TWO: "2"}, {ONE: "1", TWO: "2"}) == [ONE]


def test_what_came_during_the_list_has_not_vanished() -> None:
    assert vanished({}, {}, {ONE: "5"}) == []


def test_what_changed_or_went_during_the_list_is_left_to_the_watch() -> None:
    assert vanished({ONE: "1", TWO: "1"}, {}, {ONE: "2"}) == []


class Rig:
    """A relister of namespaces a and b, whose store still has a Service of each that is gone."""

    def __init__(self, refuse: Callable[[str, str | None], ClusterError | None]) -> None:
        self.refuse = refuse
        self.expected = True
        self.now = 7.0
        self.newer: dict[tuple[str, str | None], Versions] = {}
        """What is listed of a kind in a namespace; nothing of all others."""
        self.asked: list[str | None] = []
        self.enqueued: set[PoolKey] = set()
        store = Store()
        for namespace in ("a", "b"):
            labels = {"kvik.dev/pool": "chat"}
            store.upsert(
                "Service", {"metadata": {"namespace": namespace, "name": "chat", "uid": "u", "labels": labels}}
            )
        self.relister = Relister(
            store=store,
            watched=lambda: watched(OPTIONAL_KINDS),
            namespaces=["a", "b"],
            enqueue=self.enqueued.update,
            period=3600.0,
            patience=30.0,
            watches_expected=lambda: self.expected,
            clock=lambda: self.now,
        )

    async def lister(self, watched: WatchedKind, namespace: str | None) -> Versions:
        self.asked.append(namespace)
        error = self.refuse(watched.kind, namespace)
        if error is not None:
            raise error
        return self.newer.get((watched.kind, namespace), {})

    async def run_once(self, now: float = 7.0) -> None:
        self.now = now
        task = asyncio.create_task(self.relister.run(self.lister))
        for _ in range(5):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_namespace_that_refuses_keeps_no_other_from_being_checked() -> None:
    """It was deleted, and the Role that let us list went with it."""
    denied = Refused("list pods in a", 403, "Forbidden", 'User "kvik" cannot list resource "pods"')
    rig = Rig(lambda _, namespace: denied if namespace == "a" else None)
    await rig.run_once()
    assert rig.enqueued == {PoolKey("b", "chat")}
    assert rig.relister.last_success == 7.0


async def test_a_kind_that_may_not_be_listed_keeps_no_other_from_being_checked() -> None:
    denied = Refused("list", 403, "Forbidden", "no")
    rig = Rig(lambda kind, _: denied if kind in ("InferencePool", "Pod") else None)
    await rig.run_once()
    assert rig.enqueued == {PoolKey("a", "chat"), PoolKey("b", "chat")}


async def test_a_server_that_does_not_answer_is_asked_once_a_period() -> None:
    """Else each of a hundred namespaces would wait for the time limit of seven kinds."""
    rig = Rig(lambda *_: Unavailable("list", None, "TimeoutError", "no answer"))
    await rig.run_once()
    assert (len(rig.asked), rig.relister.last_success) == (1, None)


SHARED = ObjectId("Pod", "b", "one", "u4")


async def test_an_empty_namespace_that_is_listed_first_takes_no_time_from_a_large_one() -> None:
    rig = Rig(lambda *_: None)
    rig.newer["Pod", "b"] = {SHARED: "9"}
    for now in (0.0, 290.0):
        await rig.run_once(now)
        assert rig.relister.deaf_since is None
    await rig.run_once(300.0)
    assert rig.relister.deaf_since == 300.0


async def test_a_namespace_that_may_be_listed_only_later_gets_the_same_time_then() -> None:
    denied = Refused("list", 403, "Forbidden", "no")
    rig = Rig(lambda _, namespace: denied if namespace == "b" and rig.now < 60.0 else None)
    rig.newer["Pod", "b"] = {SHARED: "9"}
    for now in (0.0, 60.0, 350.0):
        await rig.run_once(now)
        assert rig.relister.deaf_since is None
    await rig.run_once(360.0)
    assert rig.relister.deaf_since == 360.0


async def test_no_watch_is_deaf_while_the_api_is_not_installed() -> None:
    """Pods of an earlier installation may still be there, and nothing is watched that could bring them."""
    rig = Rig(lambda kind, _: NotFound("list", 404, "NotFound", "404 page not found") if kind == KIND else None)
    rig.newer["Pod", "b"] = {SHARED: "9"}
    rig.expected = False
    for now in (0.0, 600.0, 1200.0):
        await rig.run_once(now)
        assert rig.relister.deaf_since is None
    rig.expected = True
    for now in (1210.0, 1500.0):
        await rig.run_once(now)
        assert rig.relister.deaf_since is None, "the watches have just begun"
    await rig.run_once(1510.0)
    assert rig.relister.deaf_since == 1510.0


def synced(patience: float = 30.0) -> DeafWatch:
    """Of a store that has caught up once."""
    deaf = DeafWatch(patience)
    for namespace in (None, "demo", "else"):
        deaf.listed("Pod", namespace, {}, {}, now=0.0)
    deaf.passed()
    return deaf


def test_a_large_cluster_may_take_minutes_to_be_read_for_the_first_time() -> None:
    deaf = DeafWatch(patience=30.0, first_patience=300.0)
    deaf.listed("Pod", None, {ONE: "9", TWO: "9"}, {ONE: "9"}, now=0.0)
    deaf.listed("Pod", None, {ONE: "9", TWO: "9"}, {ONE: "9"}, now=290.0)
    assert deaf.deaf_since is None
    deaf.passed()
    deaf.caught_up("Pod", {ONE: "9", TWO: "9"})
    deaf.listed("Pod", None, {ONE: "10"}, {ONE: "9"}, now=300.0)
    deaf.listed("Pod", None, {ONE: "10"}, {ONE: "9"}, now=330.0)
    assert deaf.deaf_since == 330.0


def test_watches_that_bring_nothing_at_all_are_deaf_in_the_end() -> None:
    deaf = DeafWatch(patience=30.0, first_patience=300.0)
    deaf.listed("Pod", None, {ONE: "9"}, {}, now=0.0)
    deaf.listed("Pod", None, {ONE: "9"}, {}, now=301.0)
    assert deaf.deaf_since == 301.0


def test_a_watch_is_deaf_when_a_second_list_still_shows_a_newer_object() -> None:
    """kopf #996, #1276: watching stops and nothing says so."""
    deaf = synced()
    deaf.listed("Pod", None, {ONE: "9"}, {ONE: "5"}, now=0.0)
    assert not deaf.overdue(29.0)
    assert deaf.deaf_since is None
    assert deaf.overdue(30.0)
    deaf.listed("Pod", None, {ONE: "9"}, {ONE: "5"}, now=31.0)
    assert deaf.deaf_since == 31.0


def test_a_watch_that_catches_up_hears() -> None:
    deaf = synced()
    deaf.listed("Pod", None, {ONE: "9"}, {ONE: "5"}, now=0.0)
    deaf.caught_up("Pod", {ONE: "10"})
    deaf.listed("Pod", None, {ONE: "12"}, {ONE: "10"}, now=60.0)
    assert deaf.deaf_since is None
    assert not deaf.overdue(89.0)


def test_a_deaf_watch_that_hears_again_is_forgiven() -> None:
    deaf = synced()
    deaf.listed("Pod", None, {ONE: "9"}, {}, now=0.0)
    deaf.listed("Pod", None, {ONE: "9"}, {}, now=60.0)
    assert deaf.deaf_since == 60.0
    deaf.caught_up("Pod", {ONE: "9"})
    assert deaf.deaf_since is None


def test_an_object_that_was_deleted_before_the_watch_told_of_it_proves_nothing() -> None:
    deaf = synced()
    deaf.listed("Pod", None, {ONE: "9"}, {}, now=0.0)
    deaf.caught_up("Pod", {})
    deaf.listed("Pod", None, {}, {}, now=60.0)
    assert deaf.deaf_since is None
    assert list(deaf.suspects()) == []


def test_a_list_of_one_namespace_says_nothing_about_another() -> None:
    deaf = synced()
    deaf.listed("Pod", "else", {ELSEWHERE: "9"}, {}, now=0.0)
    deaf.listed("Pod", "demo", {}, {}, now=10.0)
    assert list(deaf.suspects()) == [ELSEWHERE]


def test_an_object_that_keeps_changing_does_not_reset_the_patience() -> None:
    deaf = synced()
    deaf.listed("Pod", None, {ONE: "9"}, {ONE: "5"}, now=0.0)
    deaf.listed("Pod", None, {ONE: "11"}, {ONE: "5"}, now=40.0)
    assert deaf.deaf_since == 40.0


def test_a_kind_that_is_not_watched_any_more_makes_no_watch_deaf() -> None:
    deaf = synced()
    deaf.listed("Pod", "demo", {ONE: "2"}, {}, now=100.0)
    deaf.keep({"InferencePool"})
    assert not deaf.overdue(200.0)
    assert deaf.suspects() == []
