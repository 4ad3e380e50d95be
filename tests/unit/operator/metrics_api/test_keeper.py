"""Who keeps what: certificates by the leader, APIServices that lead here, and nobody else's."""

import asyncio
import base64
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kvik_operator.certificates import LIFE, OVERLAP, Held, Pair
from kvik_operator.errors import Conflict
from kvik_operator.metrics_api.keeper import Backend, Keeper
from tests.unit.operator.metrics_api.test_callers import DATA

START = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)
OURS, OTHER = "v1beta2.custom.metrics.k8s.io", "v1beta1.custom.metrics.k8s.io"


class World:
    """API server, TLS port and meter in one."""

    def __init__(self) -> None:
        self.now = START
        self.leader = True
        self.secret: dict[str, Any] | None = {"metadata": {"name": "s"}}
        self.authentication: dict[str, Any] | None = {"data": DATA}
        self.api_services = {name: api_service(name) for name in (OURS, OTHER)}
        self.writes: list[str] = []
        self.presented: list[tuple[Pair, str]] = []
        self.registered: dict[str, bool] = {}
        self.refuse_bundle = False
        backend = Backend("kvik-operator", "kvik-system", (OURS, OTHER))
        self.keeper = Keeper(self, self, backend, self, lambda: self.leader, lambda: self.now)

    @property
    def serving(self) -> bool:
        return bool(self.presented)

    @property
    def held(self) -> Held:
        held = Held.from_secret(self.secret or {})
        assert held is not None
        return held

    def bundle(self, name: str) -> str:
        return base64.b64decode(self.api_services[name]["spec"].get("caBundle", "")).decode()

    async def read_secret(self) -> Mapping[str, Any] | None:
        return self.secret

    async def replace_secret(self, secret: Mapping[str, Any], data: Mapping[str, str]) -> None:
        assert secret is self.secret
        self.secret = {**secret, "data": dict(data)}
        self.writes.append("secret")

    async def read_authentication(self) -> Mapping[str, Any] | None:
        return self.authentication

    async def read_api_service(self, name: str) -> Mapping[str, Any] | None:
        return self.api_services.get(name)

    async def set_ca_bundle(self, api_service: Mapping[str, Any], bundle: str) -> None:
        if self.refuse_bundle:
            raise Conflict("patch APIService", 409, "Conflict", "changed")
        encoded = base64.b64encode(bundle.encode()).decode()
        name = api_service["metadata"]["name"]
        self.api_services[name] = {**api_service, "spec": {**api_service["spec"], "caBundle": encoded}}
        self.writes.append(name)

    async def present(self, pair: Pair, client_authority: str) -> None:
        self.presented.append((pair, client_authority))

    def api_registered(self, api_service: str, ours: bool) -> None:
        self.registered[api_service] = ours


def api_service(name: str, service: str = "kvik-operator") -> dict[str, Any]:
    spec = {"service": {"name": service, "namespace": "kvik-system"}}
    return {"metadata": {"name": name, "resourceVersion": "1"}, "spec": spec}


async def test_the_leader_fills_the_secret_and_the_api_services_and_presents() -> None:
    world = World()
    assert await world.keeper.look() is None
    assert world.writes == ["secret", OURS, OTHER]
    assert world.bundle(OURS) == world.bundle(OTHER) == world.held.bundle
    assert world.presented == [(world.held.current, "PEM")]
    assert world.keeper.problem() is None
    await world.keeper.look()
    assert len(world.writes) == 3


async def test_a_follower_presents_what_the_leader_made_and_writes_nothing() -> None:
    world = World()
    world.leader = False
    assert "the leader makes it" in (await world.keeper.look() or "")
    assert (world.writes, world.presented) == ([], [])
    world.leader = True
    await world.keeper.look()
    world.leader, world.writes, world.api_services = False, [], {}
    await world.keeper.look()
    assert world.writes == []
    assert world.presented[-1] == (world.held.current, "PEM")


async def test_somebody_elses_api_service_is_left_alone() -> None:
    world = World()
    world.api_services[OTHER] = api_service(OTHER, "adapter")
    await world.keeper.look()
    assert world.writes == ["secret", OURS]
    assert world.registered == {OURS: True, OTHER: False}
    del world.api_services[OTHER]
    await world.keeper.look()
    assert world.registered == {OURS: True, OTHER: False}


async def test_a_bundle_that_somebody_changed_is_put_right() -> None:
    world = World()
    await world.keeper.look()
    world.api_services[OURS] = api_service(OURS)
    await world.keeper.look()
    assert world.bundle(OURS) == world.held.bundle


async def test_a_rotation_waits_until_the_api_services_know_the_new_authority() -> None:
    world = World()
    await world.keeper.look()
    first = world.held.current
    world.now, world.refuse_bundle = START + LIFE - timedelta(days=30), True
    with pytest.raises(Conflict):
        await world.keeper.look()
    world.now += 2 * OVERLAP
    with pytest.raises(Conflict):
        await world.keeper.look()
    assert world.held.current == first
    world.refuse_bundle = False
    await world.keeper.look()
    assert world.presented[-1][0] == first
    await world.keeper.look()
    assert world.held.next is None
    assert world.presented[-1][0] == world.held.current != first


async def test_without_a_secret_or_a_front_proxy_it_says_so() -> None:
    world = World()
    world.authentication = None
    assert "names no front proxy" in (await world.keeper.look() or "")
    world.secret = None
    assert "the chart makes it" in (await world.keeper.look() or "")
    assert world.presented == []
    assert world.keeper.problem() is not None


@pytest.mark.parametrize(("secret", "ready"), [({"metadata": {"name": "s"}}, True), (None, False)])
async def test_a_replica_is_ready_while_only_the_leader_is_missing_that_would_make_the_certificate(
    secret: dict[str, Any] | None, ready: bool
) -> None:
    """Switched on by a roll, it waited for a leader that had the API still off and was to end once it was ready."""
    world = World()
    world.leader, world.secret = False, secret
    task = asyncio.create_task(world.keeper.run())
    await asyncio.sleep(0)
    assert (world.keeper.problem() is None) is ready
    assert not world.serving
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
