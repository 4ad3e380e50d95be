"""LLMs stream for minutes: the pod that a scale-down takes should be the one with the least to finish."""

from typing import Any

from kvik_operator.reconcile.victims import deletion_costs
from tests.support.pools import make_pod, terminating

COST = "controller.kubernetes.io/pod-deletion-cost"


def pods(*names: str, marked: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    made = [make_pod(name, ready=True) for name in names]
    for pod in made:
        if pod["metadata"]["name"] in marked:
            pod["metadata"]["annotations"] = {COST: "-100"}
    return made


def work(**in_flight: int) -> Any:
    return lambda uid: in_flight.get(uid.removeprefix("uid-"))


def test_nothing_is_marked_while_the_deployment_keeps_its_size() -> None:
    assert deletion_costs(pods("a", "b"), 2, 2, work(a=1, b=0)) == {}
    assert deletion_costs(pods("a", "b"), 2, 3, work(a=1, b=0)) == {}


def test_pods_that_are_not_there_yet_are_not_counted_as_victims() -> None:
    assert deletion_costs(pods("a"), 7, 1, work(a=3)) == {}


def test_a_pool_that_stops_needs_no_marks() -> None:
    assert deletion_costs(pods("a", "b"), 2, 0, work(a=1, b=0)) == {}


def test_the_pods_with_the_least_work_are_marked() -> None:
    """kthena #1589: scaling down took away whichever pod, however many requests it had."""
    assert deletion_costs(pods("a", "b", "c"), 3, 1, work(a=5, b=1, c=2)) == {"b": "-100", "c": "-100"}


def test_a_pod_that_says_nothing_is_spared() -> None:
    assert deletion_costs(pods("a", "b"), 2, 1, work(b=9)) == {"b": "-100"}


def test_an_unready_pod_goes_first_whatever_it_says() -> None:
    both = [*pods("a"), make_pod("b")]
    assert deletion_costs(both, 2, 1, work(a=0)) == {"b": "-100"}


def test_a_terminating_pod_is_no_victim() -> None:
    assert deletion_costs([terminating(pods("a")[0]), *pods("b", "c")], 2, 1, work(a=0, b=2, c=1)) == {"c": "-100"}


def test_a_mark_is_written_once() -> None:
    assert deletion_costs(pods("a", "b", marked=("a",)), 2, 1, work(a=0, b=5)) == {}


def test_a_mark_of_an_earlier_shrink_is_taken_back() -> None:
    assert deletion_costs(pods("a", "b", marked=("a",)), 2, 1, work(a=9, b=1)) == {"a": None, "b": "-100"}


def test_a_cost_that_somebody_else_set_stays() -> None:
    two = pods("a", "b")
    two[0]["metadata"]["annotations"] = {COST: "50"}
    assert deletion_costs(two, 2, 1, work(a=9, b=1)) == {"b": "-100"}
