"""Who keeps what: certificates by the leader, APIServices that lead here, and nobody else's."""

import base64
import logging
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kvik_operator.certificates import LIFE, OVERLAP, Held, Pair
from kvik_operator.errors import Conflict, Unpresentable
from kvik_operator.metrics_api.keeper import Backend, Keeper
from tests.support.front_proxy import DATA

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
        self.ends: dict[str, datetime] = {}
        self.refuse_bundle: set[str] = set()
        """Names of APIServices."""
        self.unpresentable: Exception | None = None
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
        name = api_service["metadata"]["name"]
        if name in self.refuse_bundle:
            raise Conflict("patch APIService", 409, "Conflict", "changed")
        encoded = base64.b64encode(bundle.encode()).decode()
        self.api_services[name] = {**api_service, "spec": {**api_service["spec"], "caBundle": encoded}}
        self.writes.append(name)

    def present(self, pair: Pair, client_authority: str) -> None:
        if self.unpresentable is not None:
            raise self.unpresentable
        self.presented.append((pair, client_authority))

    def api_registered(self, api_service: str, ours: bool) -> None:
        self.registered[api_service] = ours

    def certificate_presented(self, certificate: str, end: datetime) -> None:
        self.ends[certificate] = end


async def message(world: World) -> str:
    """What a look finds wrong."""
    found = await world.keeper.look()
    assert found is not None
    return found.message


def api_service(name: str, service: str = "kvik-operator") -> dict[str, Any]:
    spec = {"service": {"name": service, "namespace": "kvik-system"}}
    return {"metadata": {"name": name, "resourceVersion": "1"}, "spec": spec}


async def test_the_leader_fills_the_secret_and_the_api_services_and_presents() -> None:
    world = World()
    assert await world.keeper.look() is None
    assert world.writes == ["secret", OURS, OTHER]
    assert world.bundle(OURS) == world.bundle(OTHER) == world.held.bundle
    assert world.presented == [(world.held.current, "PEM")]
    assert world.ends == {"metrics-api": START + LIFE}
    assert world.keeper.upkeep.problem() is None
    await world.keeper.look()
    assert len(world.writes) == 3


async def test_a_follower_presents_what_the_leader_made_and_writes_nothing() -> None:
    world = World()
    world.leader = False
    assert "the leader makes it" in await message(world)
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


async def test_an_api_service_that_cannot_be_written_keeps_no_other_from_its_bundle() -> None:
    world = World()
    world.refuse_bundle = {OURS}
    with pytest.raises(Conflict):
        await world.keeper.look()
    assert world.bundle(OTHER) == world.held.bundle


async def test_a_rotation_waits_until_the_api_services_have_known_the_new_authority_for_a_while() -> None:
    world = World()
    await world.keeper.look()
    first = world.held.current
    world.now, world.refuse_bundle = START + LIFE - timedelta(days=30), {OURS}
    for _ in range(2):
        with pytest.raises(Conflict):
            await world.keeper.look()
        world.now += 2 * OVERLAP
    world.refuse_bundle.clear()
    for _ in range(2):
        await world.keeper.look()
    assert world.held.next is not None
    world.now += OVERLAP
    await world.keeper.look()
    assert world.held.next is None
    assert [pair for pair, _ in world.presented[-2:]] == [first, world.held.current]


async def test_a_leader_that_may_not_write_serves_what_the_secret_holds() -> None:
    world = World()
    await world.keeper.look()
    world.presented.clear()
    world.api_services[OURS], world.refuse_bundle = api_service(OURS), {OURS}
    with pytest.raises(Conflict):
        await world.keeper.look()
    assert world.presented == [(world.held.current, "PEM")]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), Unpresentable("no certificate")])
async def test_a_certificate_that_cannot_be_presented_is_told_of_and_looked_at_again(error: Exception) -> None:
    """For want of a file or of disk, the whole operator ended, again and again."""
    world = World()
    world.unpresentable = error
    await world.keeper.upkeep.tend()
    assert "cannot be presented" in (world.keeper.upkeep.problem() or "")
    assert world.writes == ["secret", OURS, OTHER]
    assert world.keeper.proxy() is None
    world.unpresentable = None
    await world.keeper.upkeep.tend()
    assert world.keeper.upkeep.problem() is None
    assert world.presented == [(world.held.current, "PEM")]
    assert world.keeper.proxy() is not None


async def test_the_front_proxy_is_believed_by_the_names_of_the_authority_that_is_presented() -> None:
    world = World()
    await world.keeper.look()
    before = world.keeper.proxy()
    names = {"requestheader-client-ca-file": "other", "requestheader-allowed-names": "[]"}
    world.authentication, world.unpresentable = {"data": {**DATA, **names}}, Unpresentable("no certificate")
    assert "cannot be presented" in await message(world)
    assert world.keeper.proxy() == before


async def test_what_is_wrong_is_told_once_and_again_when_it_changes(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="kvik_operator.upkeep")
    world = World()
    world.leader = False
    for _ in range(2):
        await world.keeper.upkeep.tend()
    world.leader, world.refuse_bundle = True, {OURS}
    for _ in range(2):
        await world.keeper.upkeep.tend()
    world.refuse_bundle.clear()
    for _ in range(2):
        await world.keeper.upkeep.tend()
    told = [getattr(record, "problem", record.message) for record in caplog.records if "in order" in record.message]
    assert [text.partition(":")[0] for text in told] == [
        "the metrics API's Secret holds no certificate yet",
        "the metrics API could not be looked after",
        "an API is in order",
    ]


async def test_without_a_secret_or_a_front_proxy_it_says_so() -> None:
    world = World()
    world.authentication = None
    assert "names no front proxy" in await message(world)
    world.secret = None
    assert "the chart makes it" in await message(world)
    assert world.presented == []
    assert world.keeper.upkeep.problem() is not None


@pytest.mark.parametrize(("secret", "ready"), [({"metadata": {"name": "s"}}, True), (None, False)])
async def test_a_replica_is_ready_while_only_the_leader_is_missing_that_would_make_the_certificate(
    secret: dict[str, Any] | None, ready: bool
) -> None:
    """Switched on by a roll, it waited for a leader that had the API still off and was to end once it was ready."""
    world = World()
    world.leader, world.secret = False, secret
    await world.keeper.upkeep.tend()
    assert (world.keeper.upkeep.problem() is None) is ready
    assert not world.serving


async def test_a_replica_that_has_not_looked_yet_is_not_ready() -> None:
    assert World().keeper.upkeep.problem() is not None
