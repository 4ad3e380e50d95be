"""What a LIST says about the watches: objects that vanished unnoticed, and watches that have gone deaf."""

from kvik_operator.kube.store import ObjectId
from kvik_operator.watch.relist import DeafWatch, vanished

ONE = ObjectId("Pod", "demo", "one", "u1")
TWO = ObjectId("Pod", "demo", "two", "u2")
ELSEWHERE = ObjectId("Pod", "else", "one", "u3")


def test_what_the_store_has_and_the_list_has_not_has_vanished() -> None:
    assert vanished({ONE: "1", TWO: "2"}, {TWO: "2"}, {ONE: "1", TWO: "2"}) == [ONE]


def test_what_came_during_the_list_has_not_vanished() -> None:
    assert vanished({}, {}, {ONE: "5"}) == []


def test_what_changed_or_went_during_the_list_is_left_to_the_watch() -> None:
    assert vanished({ONE: "1", TWO: "1"}, {}, {ONE: "2"}) == []


def synced(patience: float = 30.0) -> DeafWatch:
    """Of a store that has caught up once."""
    deaf = DeafWatch(patience)
    deaf.caught_up("Pod", {})
    return deaf


def test_a_large_cluster_may_take_minutes_to_be_read_for_the_first_time() -> None:
    deaf = DeafWatch(patience=30.0, first_patience=300.0)
    deaf.listed("Pod", None, {ONE: "9", TWO: "9"}, {ONE: "9"}, now=0.0)
    deaf.listed("Pod", None, {ONE: "9", TWO: "9"}, {ONE: "9"}, now=290.0)
    assert deaf.deaf_since is None
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
