"""What the demo takes away and what it leaves, on a cluster of its own and on one that others use too."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from scripts import demo, demo_ownership
from scripts.demo_ownership import MARK, US, ClaimError
from tests.support.kubectl import Kubectl

Object = dict[str, Any]


def namespace(name: str, *, ours: bool) -> Object:
    return {"metadata": {"name": name, "annotations": {MARK: US} if ours else {"owner": "team-a"}}}


OURS = namespace("kvik-system", ours=True)
THEIRS = namespace("kvik-system", ours=False)
CRD: Object = {"metadata": {"name": demo.POOLS}}
THEIR_POOL: Object = {"metadata": {"namespace": "team-a", "name": "chat"}}


@dataclass
class World:
    """A cluster as kubectl and helm see it; records what is done to it."""

    borrowed: bool
    objects: dict[str, Object] = field(default_factory=dict)
    """By kind/name."""
    pools: Sequence[Object] = ()
    done: list[str] = field(default_factory=list)
    kubeconfig = kubectl = helm = image_prefix = ""

    def in_namespace(self, name: str) -> "Hand":
        return Hand(self, name)

    def run_helm(self, *arguments: str) -> str:
        self.done.append(f"helm {arguments[0]} {arguments[1]}")
        return "[]"


@dataclass
class Hand:
    """A Kubectl in one namespace of the World."""

    world: World
    namespace: str

    def get(self, kind: str, name: str) -> Object | None:
        return self.world.objects.get(f"{kind}/{name}")

    def list(self, kinds: str, *, all_namespaces: bool) -> Sequence[Object]:
        assert (kinds, all_namespaces) == (demo.POOLS, True)
        return self.world.pools

    def run(self, *arguments: str, timeout: float = 0) -> str:
        self.world.done.append(" ".join(arguments[:3]))
        return ""

    def apply(self, manifest: str) -> str:
        self.world.done.append(f"apply namespace {self.namespace}")
        return ""


EVERYTHING = [
    "delete namespace kvik-demo",
    "helm uninstall kvik",
    "helm uninstall kvik-crds",
    f"delete crd {demo.POOLS}",
    "delete namespace kvik-system",
]


def taken_down(monkeypatch: pytest.MonkeyPatch, world: World) -> list[str]:
    monkeypatch.setattr(demo, "cluster_found", lambda: world)
    demo.down()
    return world.done


def test_without_a_cluster_there_is_nothing_to_remove_and_none_is_started(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []

    def run(*command: str) -> str:
        asked.append(command[-1])
        return ""

    monkeypatch.setattr(demo, "run", run)
    demo.down()
    assert asked == ["found"]
    assert "no demo to remove" in capsys.readouterr().out


def test_on_a_cluster_without_a_demo_nothing_is_done(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert taken_down(monkeypatch, World(borrowed=False)) == []
    assert "no demo to remove" in capsys.readouterr().out


def test_a_pool_that_is_replaced_says_why() -> None:
    assert demo.why_replace(None) == "the demo before did not get it ready"
    assert "another one" in demo.why_replace("sha256:old")


def test_on_a_cluster_of_its_own_the_demo_takes_everything_away(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(borrowed=False, objects={"namespace/kvik-system": THEIRS, f"crd/{demo.POOLS}": CRD})
    assert taken_down(monkeypatch, world) == EVERYTHING


def test_on_a_cluster_of_others_what_the_demo_made_goes_when_nobody_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(borrowed=True, objects={"namespace/kvik-system": OURS, f"crd/{demo.POOLS}": CRD})
    assert taken_down(monkeypatch, world) == EVERYTHING


@pytest.mark.parametrize(
    ("system", "pools"), [(THEIRS, []), (OURS, [THEIR_POOL]), (THEIRS, [THEIR_POOL]), (None, [THEIR_POOL])]
)
def test_on_a_cluster_of_others_their_operator_and_their_pools_stay(
    monkeypatch: pytest.MonkeyPatch, system: Object | None, pools: Sequence[Object]
) -> None:
    """Deleting the CRD once deleted every pool of every namespace."""
    objects = {f"crd/{demo.POOLS}": CRD} | ({} if system is None else {"namespace/kvik-system": system})
    world = World(borrowed=True, objects=objects, pools=pools)
    assert taken_down(monkeypatch, world) == ["delete namespace kvik-demo"]


def test_a_pool_that_the_reader_made_on_the_demos_own_cluster_stays(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    objects = {"namespace/kvik-system": OURS, f"crd/{demo.POOLS}": CRD}
    world = World(borrowed=False, objects=objects, pools=[THEIR_POOL])
    assert taken_down(monkeypatch, world) == ["delete namespace kvik-demo"]
    assert "The operator stays: it serves pools that the demo did not make: team-a/chat" in capsys.readouterr().out


def test_a_namespace_of_the_demos_name_that_somebody_else_made_is_not_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(borrowed=True, objects={"namespace/kvik-demo": namespace("kvik-demo", ours=False)})
    with pytest.raises(ClaimError, match="kvik-demo"):
        taken_down(monkeypatch, world)
    assert world.done == []


@pytest.mark.parametrize(
    "objects",
    [
        {"namespace/kvik-system": THEIRS, f"crd/{demo.POOLS}": CRD},
        {"namespace/kvik-system": THEIRS},
        {f"crd/{demo.POOLS}": CRD},
    ],
)
def test_nothing_is_installed_over_what_somebody_else_installed(objects: dict[str, Object]) -> None:
    """A second operator, or ours in the place of theirs, would roll all of their pools."""
    world = World(borrowed=True, objects=objects)
    with pytest.raises(ClaimError):
        demo.install(cast(demo.Cluster, world), {})
    assert world.done == []


@pytest.mark.parametrize("objects", [{}, {"namespace/kvik-system": OURS, f"crd/{demo.POOLS}": CRD}])
def test_an_empty_cluster_and_the_demos_own_installation_are_taken(objects: dict[str, Object]) -> None:
    demo.refuse_foreign_operator(cast(demo.Cluster, World(borrowed=True, objects=objects)))


@pytest.mark.parametrize("borrowed", [True, False])
def test_a_namespace_that_is_made_carries_the_mark(monkeypatch: pytest.MonkeyPatch, borrowed: bool) -> None:
    applied: list[str] = []
    hand = Hand(World(borrowed=borrowed), "kvik-demo")
    monkeypatch.setattr(hand, "apply", applied.append)
    demo_ownership.ensure_namespace(cast(Kubectl, hand), borrowed=borrowed)
    made: Mapping[str, Any] = json.loads(applied[0])
    assert demo_ownership.marked(made)
    assert made["metadata"]["labels"] == {"pod-security.kubernetes.io/enforce": "restricted"}


def pool_with(**conditions: tuple[str, int]) -> Object:
    """A pool of generation 2, whose conditions have a status and the generation that they speak of."""
    told = [
        {"type": kind, "status": status, "observedGeneration": seen, "reason": "R", "message": "m"}
        for kind, (status, seen) in conditions.items()
    ]
    return {"metadata": {"generation": 2}, "status": {"conditions": told}}


@pytest.mark.parametrize(
    ("pool", "waits"),
    [
        (None, "has not yet seen"),
        ({"metadata": {"generation": 2}}, "has not yet seen"),
        (pool_with(Ready=("True", 1), RolloutComplete=("True", 1)), "has not yet seen"),
        (pool_with(Ready=("False", 2), RolloutComplete=("True", 2)), "Ready=False R: m"),
        (pool_with(Ready=("True", 2), RolloutComplete=("False", 2)), "RolloutComplete=False R: m"),
        (pool_with(Ready=("True", 2), RolloutComplete=("True", 2)), None),
    ],
)
def test_the_demo_waits_until_its_pool_answers_and_no_roll_is_under_way(pool: Object | None, waits: str | None) -> None:
    """A second `make demo` during a roll said Done while the old pods still answered."""
    text = demo.waits_for(pool)
    assert text is None if waits is None else text is not None and waits in text
