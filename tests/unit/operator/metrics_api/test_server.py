"""The metrics APIs over TLS: paths, documents, refusals, and a certificate that changes under way."""

import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from kvik_operator.autoscale.board import Board
from kvik_operator.autoscale.types import EngineState, LoadReading
from kvik_operator.certificates import Pair, make_pair
from kvik_operator.errors import Refused, Unavailable, Unpresentable
from kvik_operator.metrics_api.access import Access
from kvik_operator.metrics_api.callers import FrontProxy
from kvik_operator.metrics_api.documents import CUSTOM, EXTERNAL
from kvik_operator.metrics_api.listener import Listener
from kvik_operator.metrics_api.server import MetricsApi
from kvik_operator.metrics_api.source import Source
from kvik_operator.names import PoolKey, Reason
from kvik_operator.reconcile.types import ScalingReport
from tests.support.client_certificates import client_pair
from tests.support.waiting import PATIENCE, until

KEY = PoolKey("demo", "chat")
NAME = "kvik-operator.kvik-system.svc"
READING = LoadReading(0.0, EngineState.READY, 250, 1000, 1, 4, 0, 500, 1000.0, "2026-01-01T00:00:00Z")
ALICE = {"X-Remote-User": "alice", "X-Remote-Group": "people"}
POOL = "/apis/custom.metrics.k8s.io/v1beta2/namespaces/demo/inferencepools.kvik.dev/chat"


class World:
    """A pool with two pods, the API server's answers about access, and the time."""

    def __init__(self, folder: Path) -> None:
        self.now = 0.0
        self.reviews: list[Mapping[str, Any]] = []
        self.allowed: bool | None = True
        """None: nobody says."""
        self.labelled: list[str] | None = []
        """Pools that the API server finds by their labels; None: it calls the selector none."""
        self.board = Board(lambda: self.now)
        self.board.record({"p0": READING, "p1": replace(READING, waiting=1)})
        self.decide(3)
        self.certificate, self.authority = make_pair([NAME], datetime.now(UTC))
        self.client, client_authority = client_pair("front-proxy", datetime.now(UTC))
        self.proxy = FrontProxy(
            client_authority,
            frozenset({"front-proxy"}),
            ("x-remote-user",),
            ("x-remote-group",),
            ("x-remote-extra-",),
        )
        self._files = folder
        source = Source(self, self.board, self._pools_matching, lambda: self.now, self._utcnow)
        access = Access(self._review, lambda: self.now)
        api = MetricsApi(source, access, (CUSTOM, EXTERNAL), lambda: self.proxy)
        self.listener = Listener(api.application(), "127.0.0.1", 0)

    def decide(self, desired: int | None) -> None:
        report = ScalingReport(True, Reason.SCALING_ON_LOAD, "", desired, self._utcnow())
        self.board.report(KEY, "pool-1", report)

    def pool_keys(self) -> set[PoolKey]:
        return {KEY}

    def pool(self, key: PoolKey) -> Mapping[str, Any] | None:
        return {"metadata": {"uid": "pool-1"}} if key == KEY else None

    def pods(self, key: PoolKey) -> Sequence[Mapping[str, Any]]:
        labels = {"kvik.dev/pool": "chat"}
        return [{"metadata": {"uid": f"p{n}", "name": f"chat-{n}", "labels": labels}, "status": {}} for n in range(2)]

    def present(self) -> None:
        self.listener.present(self.certificate, self.proxy.authority)

    def session(self, client: Pair | None, *, keep: bool = False) -> aiohttp.ClientSession:
        """One of the front proxy, or (None) of somebody without a certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(cadata=self.authority)
        if client is not None:
            certificate, key = self._files / "c.crt", self._files / "c.key"
            certificate.write_text(client.certificate)
            key.write_text(client.key)
            context.load_cert_chain(certificate, key)
        kept: dict[str, Any] = {"keepalive_timeout": 2 * PATIENCE} if keep else {"force_close": True}
        connector = aiohttp.TCPConnector(ssl=context, **kept)  # so that it is the server who ends a connection
        timeout = aiohttp.ClientTimeout(total=PATIENCE)
        return aiohttp.ClientSession(f"https://127.0.0.1:{self.listener.port}", connector=connector, timeout=timeout)

    async def get(self, path: str, headers: Mapping[str, str] = ALICE, *, certified: bool = True) -> tuple[int, Any]:
        async with (
            self.session(self.client if certified else None) as session,
            session.get(path, headers=headers, server_hostname=NAME) as answer,
        ):
            return answer.status, await answer.json()

    async def _review(self, spec: Mapping[str, Any]) -> bool:
        self.reviews.append(spec)
        if self.allowed is None:
            raise Unavailable("review access", 500, "InternalError", "no")
        return self.allowed

    async def _pools_matching(self, namespace: str, selector: str) -> Sequence[str]:
        assert (namespace, selector) == ("demo", "team=search")
        if self.labelled is None:
            raise Refused("list inferencepools in demo", 400, "BadRequest", "unable to parse requirement")
        return self.labelled

    def _utcnow(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.now)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    world = World(tmp_path)
    async with world.listener:
        world.present()
        yield world


async def test_discovery_names_every_metric_of_a_version(world: World) -> None:
    assert (await world.get("/apis"))[0] == 404  # so the API server asks for each version
    status, found = await world.get(f"/apis/{CUSTOM}/v1beta1")
    assert (status, found["kind"], found["groupVersion"]) == (200, "APIResourceList", f"{CUSTOM}/v1beta1")
    names = {resource["name"] for resource in found["resources"]}
    assert len(names) == 9
    assert "inferencepools.kvik.dev/kvik_desired_replicas" in names
    assert "pods/kvik_desired_replicas" not in names
    _, external = await world.get(f"/apis/{EXTERNAL}/v1beta1")
    assert "kvik_requests_waiting" in {resource["name"] for resource in external["resources"]}


async def test_a_pools_metric_is_a_list_with_one_value(world: World) -> None:
    world.now = 7.0
    status, found = await world.get(f"{POOL}/kvik_requests_waiting")
    described = {"kind": "InferencePool", "namespace": "demo", "name": "chat", "apiVersion": "kvik.dev/v1alpha1"}
    value = {
        "describedObject": described,
        "metric": {"name": "kvik_requests_waiting", "selector": None},
        "timestamp": "2026-01-01T00:00:00Z",
        "value": "5",
    }
    assert (status, found["kind"], found["items"]) == (200, "MetricValueList", [value])
    _, old = await world.get(f"{POOL}/kvik_requests_waiting".replace("v1beta2", "v1beta1"))
    assert old["items"][0]["metricName"] == "kvik_requests_waiting"
    assert "metric" not in old["items"][0]


async def test_the_decision_is_a_metric_for_half_a_minute_and_only_if_there_is_one(world: World) -> None:
    path = f"{POOL}/kvik_desired_replicas"
    assert (await world.get(path))[1]["items"][0]["value"] == "3"
    world.now = 31.0
    status, said = await world.get(path)
    assert (status, said["reason"]) == (404, "NotFound")
    world.decide(None)
    assert (await world.get(path))[0] == 404


async def test_old_readings_are_no_value(world: World) -> None:
    world.now = 16.0
    status, said = await world.get(f"{POOL}/kvik_requests_waiting")
    assert (status, said["kind"]) == (404, "Status")
    assert "no fresh value of kvik_requests_waiting" in said["message"]
    pods = POOL.replace("inferencepools.kvik.dev/chat", "pods/*")
    assert (await world.get(f"{pods}/kvik_requests_waiting"))[1]["items"] == []


async def test_pods_are_chosen_by_name_and_by_label(world: World) -> None:
    pods = POOL.replace("inferencepools.kvik.dev/chat", "pods")
    _, found = await world.get(f"{pods}/*/kvik_requests_waiting?labelSelector=kvik.dev/pool%3Dchat")
    assert [(item["describedObject"]["name"], item["value"]) for item in found["items"]] == [
        ("chat-0", "4"),
        ("chat-1", "1"),
    ]
    _, found = await world.get(f"{pods}/*/kvik_requests_waiting?labelSelector=kvik.dev/pool%20in%20(other)")
    assert found["items"] == []
    _, found = await world.get(f"{pods}/chat-1/kvik_requests_waiting")
    assert [item["value"] for item in found["items"]] == ["1"]
    assert (await world.get(f"{pods}/other/kvik_requests_waiting"))[0] == 404
    assert (await world.get(f"{pods}/*/kvik_desired_replicas"))[0] == 404
    status, said = await world.get(f"{pods}/*/kvik_requests_waiting?labelSelector=a%3Db%2C")
    assert (status, said["reason"]) == (400, "BadRequest")


async def test_pools_are_chosen_by_their_own_labels(world: World) -> None:
    path = f"{POOL.replace('chat', '*')}/kvik_requests_waiting"
    assert len((await world.get(path))[1]["items"]) == 1
    assert (await world.get(f"{path}?labelSelector=team%3Dsearch"))[1]["items"] == []
    world.labelled = ["chat", "elsewhere"]
    assert len((await world.get(f"{path}?labelSelector=team%3Dsearch"))[1]["items"]) == 1
    assert (await world.get(f"{path}?metricLabelSelector=pool%3Dother"))[1]["items"] == []


async def test_a_selector_that_the_api_server_cannot_read_is_the_callers(world: World) -> None:
    world.labelled = None
    status, said = await world.get(f"{POOL.replace('chat', '*')}/kvik_requests_waiting?labelSelector=team%3Dsearch")
    assert (status, said["reason"], said["message"]) == (400, "BadRequest", "unable to parse requirement")


async def test_an_external_metric_is_of_the_pools_that_its_label_names(world: World) -> None:
    path = f"/apis/{EXTERNAL}/v1beta1/namespaces/demo/kvik_desired_replicas"
    _, found = await world.get(f"{path}?labelSelector=pool%3Dchat")
    (item,) = found["items"]
    assert (found["kind"], item["value"]) == ("ExternalMetricValueList", "3")
    assert item["metricLabels"] == {"pool": "chat"}
    assert (await world.get(f"{path}?labelSelector=pool%3Dother"))[0] == 404


@pytest.mark.parametrize(
    "path",
    [
        f"{POOL}/kvik_unknown",
        "/apis/custom.metrics.k8s.io/v1",
        "/",
        "/apis/custom.metrics.k8s.io/v1beta2/namespaces/demo/services/chat/kvik_requests_waiting",
        "/apis/custom.metrics.k8s.io/v1beta2/namespaces/other/inferencepools.kvik.dev/chat/kvik_requests_waiting",
    ],
)
async def test_what_there_is_not_is_not_found(world: World, path: str) -> None:
    status, said = await world.get(path)
    assert (status, said["kind"], said["code"]) == (404, "Status", 404)


async def test_who_has_no_certificate_is_told_so_and_nothing_else(world: World) -> None:
    status, said = await world.get(f"{POOL}/kvik_requests_waiting", certified=False)
    assert (status, said["reason"]) == (401, "Unauthorized")
    assert world.reviews == []


async def test_a_certificate_of_another_authority_is_cut_off(world: World) -> None:
    world.client, _ = client_pair("front-proxy", datetime.now(UTC))
    with pytest.raises((aiohttp.ClientError, OSError)):
        await world.get(f"{POOL}/kvik_requests_waiting")


async def test_a_caller_that_may_not_read_is_refused_and_asked_about_as_the_api_server_would(world: World) -> None:
    world.allowed = False
    status, said = await world.get(f"{POOL}/kvik_requests_waiting")
    assert (status, said["reason"]) == (403, "Forbidden")
    await world.get(f"{POOL}/kvik_requests_waiting")
    (review,) = world.reviews
    assert (review["user"], review["groups"]) == ("alice", ["people"])
    assert review["resourceAttributes"] == {
        "group": CUSTOM,
        "version": "v1beta2",
        "namespace": "demo",
        "resource": "inferencepools.kvik.dev",
        "name": "chat",
        "subresource": "kvik_requests_waiting",
        "verb": "get",
    }
    world.now = 11.0
    world.allowed = True
    assert (await world.get(f"{POOL}/kvik_requests_waiting"))[0] == 200


async def test_masters_are_let_in_though_nobody_answers_about_others(world: World) -> None:
    world.allowed = None
    assert (await world.get(f"{POOL}/kvik_requests_waiting"))[0] == 503
    assert (await world.get(f"{POOL}/kvik_requests_waiting", {**ALICE, "X-Remote-Group": "system:masters"}))[0] == 200


async def test_discovery_is_for_every_caller_of_the_front_proxy_and_for_nobody_else(world: World) -> None:
    """Kubernetes 1.34 asks for it as system:kube-aggregator without any group: an autoscaler never saw the API."""
    world.allowed = False
    assert (await world.get(f"/apis/{CUSTOM}/v1beta2", {"X-Remote-User": "system:kube-aggregator"}))[0] == 200
    assert (await world.get(f"/apis/{CUSTOM}/v1beta2", certified=False))[0] == 401
    assert (await world.get("/openapi/v2", certified=False))[0] == 401


async def test_a_servers_certificate_proves_no_client(world: World) -> None:
    world.client, authority = make_pair(["front-proxy"], datetime.now(UTC))
    world.proxy = replace(world.proxy, authority=authority, allowed_names=frozenset())
    world.present()
    with pytest.raises((aiohttp.ClientError, OSError)):
        await world.get(f"{POOL}/kvik_requests_waiting")


async def test_a_new_certificate_is_presented_and_open_connections_go_on(world: World) -> None:
    async with world.session(world.client, keep=True) as before:
        assert await status_over(before) == 200
        world.certificate, world.authority = make_pair([NAME], datetime.now(UTC))
        world.present()
        assert await status_over(before) == 200
        assert world.listener.connections == 1
    assert (await world.get(f"{POOL}/kvik_requests_waiting"))[0] == 200


async def test_an_authority_that_is_believed_no_more_leaves_no_connection_that_it_vouched_for(world: World) -> None:
    async with world.session(world.client, keep=True) as before:
        assert await status_over(before) == 200
        world.client, authority = client_pair("front-proxy", datetime.now(UTC))
        world.proxy = replace(world.proxy, authority=authority)
        world.present()
        await until(lambda: world.listener.connections == 0)
        with pytest.raises((aiohttp.ClientError, OSError)):
            await status_over(before)
    assert (await world.get(f"{POOL}/kvik_requests_waiting"))[0] == 200


async def test_a_stranger_keeps_no_connection(world: World) -> None:
    async with world.session(None, keep=True) as stranger:
        assert await status_over(stranger) == 401
        await until(lambda: world.listener.connections == 0)


@pytest.mark.parametrize("authority", ["", "no certificate", "-----BEGIN CERTIFICATE-----\nÄ", "Ä"])
async def test_an_authority_that_cannot_be_read_leaves_everything_as_it_was(world: World, authority: str) -> None:
    with pytest.raises(Unpresentable, match="the front proxy's authority"):
        world.listener.present(world.certificate, authority)
    assert (await world.get(f"{POOL}/kvik_requests_waiting"))[0] == 200


async def test_a_pair_that_cannot_be_read_leaves_everything_as_it_was(world: World) -> None:
    other, _ = make_pair([NAME], datetime.now(UTC))
    for pair in (Pair("x", "y"), Pair(world.certificate.certificate, other.key)):
        with pytest.raises(Unpresentable, match="the Secret's certificate and key"):
            world.listener.present(pair, world.proxy.authority)
    assert (await world.get(f"{POOL}/kvik_requests_waiting"))[0] == 200


async def status_over(session: aiohttp.ClientSession) -> int:
    async with session.get(f"{POOL}/kvik_requests_waiting", headers=ALICE, server_hostname=NAME) as answer:
        await answer.read()
        return answer.status
