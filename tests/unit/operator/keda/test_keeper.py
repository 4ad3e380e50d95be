"""Which Secret holds what, and when: both certificates in the operator's own, and KEDA's part in KEDA's."""

import base64
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from kvik_operator.certificates import LIFE, OVERLAP, RENEW_BEFORE, Held, Pair
from kvik_operator.errors import Conflict, Unpresentable
from kvik_operator.keda.keeper import CLIENT, Certificates, Keeper

HOST = "kvik-operator.kvik-system.svc"
START = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)


class Secret:
    """One Secret on the API server."""

    def __init__(self) -> None:
        self.object: dict[str, Any] | None = {"metadata": {"name": "s"}}
        self.writes = 0
        self.conflicts = False

    async def read(self) -> Mapping[str, Any] | None:
        return self.object

    async def replace(self, secret: Mapping[str, Any], data: Mapping[str, str]) -> None:
        assert secret is self.object
        if self.conflicts:
            raise Conflict("replace Secret", 409, "Conflict", "changed")
        self.object = {**secret, "data": dict(data)}
        self.writes += 1

    def text(self, name: str) -> str:
        return base64.b64decode((self.object or {})["data"][name]).decode()


class World:
    """Both Secrets, the gRPC port and the time."""

    def __init__(self) -> None:
        self.now = START
        self.leader = True
        self.ours, self.theirs = Secret(), Secret()
        self.presented: list[tuple[Pair, str]] = []
        self.ends: dict[str, datetime] = {}
        self.unpresentable: Exception | None = None
        self.keeper = Keeper(self.ours, self.theirs, self, HOST, self, lambda: self.leader, lambda: self.now)

    @property
    def serving(self) -> bool:
        return bool(self.presented)

    async def present(self, pair: Pair, client_authorities: str) -> None:
        if self.unpresentable is not None:
            raise self.unpresentable
        self.presented.append((pair, client_authorities))

    def certificate_presented(self, certificate: str, end: datetime) -> None:
        self.ends[certificate] = end

    @property
    def held(self) -> tuple[Held, Held]:
        held = Certificates.from_secret(self.ours.object or {})
        assert held.server is not None
        assert held.client is not None
        return held.server, held.client


async def test_the_leader_makes_both_certificates_and_gives_keda_its_own() -> None:
    world = World()
    assert await world.keeper.look() is None
    server, client = world.held
    assert Pair(world.theirs.text("tls.crt"), world.theirs.text("tls.key")) == client.current
    assert world.theirs.text("ca.crt") == server.bundle
    assert set((world.theirs.object or {})["data"]) == {"tls.crt", "tls.key", "ca.crt"}
    assert world.presented == [(server.current, client.bundle)]
    await world.keeper.look()
    assert (world.ours.writes, world.theirs.writes) == (1, 1)


async def test_a_follower_presents_what_it_reads_and_writes_nothing() -> None:
    world = World()
    world.leader = False
    assert "the leader makes them" in str(await world.keeper.look())
    assert world.keeper.upkeep.problem() is not None
    world.leader = True
    await world.keeper.look()
    world.leader = False
    world.theirs.object = {"metadata": {}}
    await world.keeper.look()
    assert (len(world.presented), world.theirs.writes) == (2, 1)


async def test_what_somebody_did_to_kedas_secret_is_mended() -> None:
    world = World()
    await world.keeper.look()
    assert world.theirs.object is not None
    world.theirs.object = {**world.theirs.object, "data": {"tls.crt": "x"}}
    await world.keeper.look()
    assert world.theirs.text("tls.crt") == world.held[1].current.certificate


async def test_both_certificates_are_announced_before_they_are_used() -> None:
    world = World()
    await world.keeper.look()
    old_server, old_client = world.held
    world.now = START + LIFE - RENEW_BEFORE
    await world.keeper.look()
    server, client = world.held
    assert (server.current, client.current) == (old_server.current, old_client.current)
    assert world.theirs.text("ca.crt") == server.bundle != old_server.bundle
    assert world.presented[-1] == (old_server.current, client.bundle)
    assert client.bundle.endswith(old_client.bundle)
    assert client.bundle != old_client.bundle
    await world.keeper.look()  # sees that KEDA's Secret has it
    world.now += OVERLAP
    await world.keeper.look()
    assert world.presented[-1][0] != old_server.current
    assert world.theirs.text("tls.crt") == world.held[1].current.certificate != old_client.current.certificate
    assert world.presented[-1][1].endswith(old_client.bundle)  # KEDA may still hold the old one


async def test_the_ends_of_both_certificates_are_told_of() -> None:
    world = World()
    await world.keeper.look()
    server, client = world.held
    assert world.ends == {"keda-scaler": server.current.end, "keda-client": client.current.end}


async def test_a_certificate_of_kedas_that_cannot_be_read_is_made_anew() -> None:
    world = World()
    await world.keeper.look()
    assert world.ours.object is not None
    world.ours.object["data"]["client-tls.crt"] = base64.b64encode(b"no certificate").decode()
    assert await world.keeper.look() is None
    assert world.ends["keda-client"] == world.held[1].current.end


async def test_a_new_certificate_waits_while_kedas_secret_cannot_be_written() -> None:
    world = World()
    await world.keeper.look()
    old_server, _ = world.held
    world.now = START + LIFE - RENEW_BEFORE
    world.theirs.conflicts = True
    for _ in range(3):
        with pytest.raises(Conflict):
            await world.keeper.look()
        world.now += OVERLAP
    assert world.held[0].current == old_server.current


async def test_a_leader_that_may_not_write_serves_what_the_secret_holds() -> None:
    world = World()
    await world.keeper.look()
    world.presented.clear()
    world.theirs.object, world.theirs.conflicts = {"metadata": {}}, True
    with pytest.raises(Conflict):
        await world.keeper.look()
    assert world.presented == [(world.held[0].current, world.held[1].bundle)]


@pytest.mark.parametrize("why", [OSError("taken"), Unpresentable("taken")])
async def test_what_cannot_be_presented_keeps_nobody_from_writing_and_is_told_of(why: Exception) -> None:
    world = World()
    world.unpresentable = why
    await world.keeper.upkeep.tend()
    assert "cannot be presented: taken" in str(world.keeper.upkeep.problem())
    assert (world.ours.writes, world.theirs.writes) == (1, 1)
    world.unpresentable = None
    await world.keeper.upkeep.tend()
    assert world.keeper.upkeep.problem() is None


async def test_secrets_that_the_chart_did_not_make_are_told_of() -> None:
    world = World()
    world.theirs.object = None
    assert "KEDA's certificate" in str(await world.keeper.look())
    assert world.presented
    world.ours.object = None
    assert "the chart makes it" in str(await world.keeper.look())


def test_each_part_of_the_secret_is_read_by_its_own_names() -> None:
    pair = Pair("a certificate", "a key")
    found = Certificates.from_secret({"data": Held(pair, ()).secret_data(CLIENT) | {"ca.crt": "eA=="}})
    assert (found.server, found.client) == (None, None)  # a bundle is missing on one side, all else on the other
