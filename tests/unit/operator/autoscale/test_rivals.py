"""Autoscalers on pools that are not the pools' own."""

from collections.abc import Sequence
from typing import Any

from kvik_operator.autoscale.rivals import LOOK_EVERY_SECONDS, Rival, Rivals, is_the_operators, target
from kvik_operator.errors import Refused
from kvik_operator.names import PoolKey

CHAT = PoolKey("demo", "chat")


OURS = "kvik.dev/v1alpha1"
GATEWAYS = "inference.networking.k8s.io/v1"


def autoscaler(
    name: str = "by-hand",
    kind: str = "InferencePool",
    owner: str | None = None,
    owner_api: str = OURS,
    **metadata: Any,
) -> Any:
    references = []
    if owner is not None:
        references.append({"apiVersion": owner_api, "kind": owner, "controller": True, "uid": "owner-1"})
    return {
        "metadata": {"name": name, "namespace": "demo", "ownerReferences": references, **metadata},
        "spec": {"scaleTargetRef": {"apiVersion": OURS, "kind": kind, "name": "chat"}},
    }


class Listing:
    def __init__(self, *, everywhere: bool = False) -> None:
        self.now = 0.0
        self.items: list[Any] = []
        self.asked: list[str | None] = []
        self.refuses = False
        self.rivals = Rivals(self._list, lambda: self.now, everywhere=everywhere)

    async def _list(self, namespace: str | None) -> Sequence[Any]:
        self.asked.append(namespace)
        if self.refuses:
            raise Refused("list", 403, "Forbidden", "no")
        return [item for item in self.items if namespace in (None, item["metadata"]["namespace"])]


def test_the_target_is_a_pool_of_ours_or_none() -> None:
    assert target(autoscaler()) == CHAT
    assert target(autoscaler(kind="Deployment")) is None
    gateway = autoscaler()
    gateway["spec"]["scaleTargetRef"]["apiVersion"] = GATEWAYS
    assert target(gateway) is None


def test_a_pools_own_autoscaler_is_owned_by_it() -> None:
    assert is_the_operators(autoscaler(owner="InferencePool"))
    assert not is_the_operators(autoscaler(owner="Application"))
    assert not is_the_operators(autoscaler(owner="InferencePool", owner_api=GATEWAYS))
    assert not is_the_operators(autoscaler(labels={"kvik.dev/pool": "chat"}))


async def test_rivals_are_looked_for_once_a_minute_and_forgotten_when_they_go() -> None:
    listing = Listing()
    listing.items = [autoscaler(), autoscaler("chat", owner="InferencePool"), autoscaler("other", kind="Deployment")]
    await listing.rivals.look(["demo", "empty"])
    await listing.rivals.look(["demo", "empty"])
    assert listing.rivals.of(CHAT) == (Rival("by-hand"),)
    assert sorted(map(str, listing.asked)) == ["demo", "empty"]
    listing.items.clear()
    listing.now = LOOK_EVERY_SECONDS
    await listing.rivals.look(["demo"])
    assert listing.rivals.of(CHAT) == ()


async def test_a_list_that_is_refused_leaves_what_was_known() -> None:
    listing = Listing()
    listing.items = [autoscaler()]
    await listing.rivals.look(["demo"])
    listing.refuses, listing.now = True, LOOK_EVERY_SECONDS
    await listing.rivals.look(["demo"])
    assert listing.rivals.of(CHAT) == (Rival("by-hand"),)
    await listing.rivals.look([])
    assert listing.rivals.of(CHAT) == ()


async def test_all_namespaces_are_one_list_a_minute_where_all_are_watched() -> None:
    listing = Listing(everywhere=True)
    listing.items = [autoscaler()]
    await listing.rivals.look([])
    assert listing.asked == []
    await listing.rivals.look(["demo", *(f"team-{number}" for number in range(200))])
    assert (listing.asked, listing.rivals.of(CHAT)) == ([None], (Rival("by-hand"),))
    listing.refuses, listing.now = True, LOOK_EVERY_SECONDS
    await listing.rivals.look(["demo"])
    assert (listing.asked, listing.rivals.of(CHAT)) == ([None, None], (Rival("by-hand"),))
    listing.items.clear()
    listing.refuses, listing.now = False, 2 * LOOK_EVERY_SECONDS
    await listing.rivals.look(["demo"])
    assert listing.rivals.of(CHAT) == ()


async def test_all_of_a_pools_rivals_are_known_with_what_made_them() -> None:
    listing = Listing(everywhere=True)
    listing.items = [autoscaler(), autoscaler("keda-hpa-chat", owner="ScaledObject")]
    await listing.rivals.look(["demo"])
    assert listing.rivals.of(CHAT) == (Rival("by-hand"), Rival("keda-hpa-chat", "owner-1"))
