"""The scaler as KEDA calls it: over TLS both ways, with values for pools that have one and errors for all others."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import grpc
import pytest

from kvik_operator.autoscale.board import Board
from kvik_operator.certificates import Pair, Use, make_pair
from kvik_operator.errors import Unpresentable
from kvik_operator.keda.answers import Answers
from kvik_operator.keda.listener import BOUNDS, Bounds, Listener
from kvik_operator.keda.protocol import messages, services
from kvik_operator.keda.scaler import ExternalScaler
from kvik_operator.names import PoolKey, Reason
from kvik_operator.reconcile.types import ScalingReport
from tests.support.waiting import PATIENCE

KEY = PoolKey("demo", "chat")
NAME = "kvik-operator.kvik-system.svc"
OK = grpc.StatusCode.OK
SHORT = 0.2
"""Seconds."""


class World:
    """A pool, what was decided on it, and the certificates of scaler and KEDA."""

    def __init__(self, bounds: Bounds = BOUNDS) -> None:
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        self.spec: dict[str, Any] = {"replicas": 1}
        self.paused = asyncio.Event()
        self.board = Board(lambda: 0.0)
        self.decide(3)
        self.server, self.authority = make_pair([NAME], datetime.now(UTC), Use.KEDA_SCALER)
        self.keda, self.keda_authority = make_pair(["keda"], datetime.now(UTC), Use.KEDA_CLIENT)
        self.scaler = ExternalScaler(Answers(self, self.board, lambda: self.now), self._pause)
        self.listener = Listener(self.scaler, "127.0.0.1", 0, bounds)

    def decide(self, desired: int | None) -> None:
        self.board.report(KEY, "pool-1", ScalingReport(True, Reason.SCALING_ON_LOAD, "", desired, self.now))

    def pool(self, key: PoolKey) -> Mapping[str, Any] | None:
        return {"metadata": {"uid": "pool-1"}, "spec": self.spec} if key == KEY else None

    async def present(self) -> None:
        await self.listener.present(self.server, self.keda_authority)

    @asynccontextmanager
    async def stub(self, client: Pair | None, authority: str) -> AsyncIterator[Any]:
        """A client's, whose certificate is `client` (None: it has none) and who believes `authority`."""
        key, chain = (None, None) if client is None else (client.key.encode(), client.certificate.encode())
        credentials = grpc.ssl_channel_credentials(authority.encode(), key, chain)
        options = [("grpc.ssl_target_name_override", NAME)]
        async with grpc.aio.secure_channel(f"127.0.0.1:{self.listener.port}", credentials, options) as channel:
            yield services.ExternalScalerStub(channel)

    async def call(
        self, method: str, request: Any, *, client: Pair | None = None, authority: str | None = None
    ) -> tuple[grpc.StatusCode, Any]:
        """Code and answer, or code and details of an error."""
        async with self.stub(client or self.keda, authority or self.authority) as stub:
            try:
                return OK, await getattr(stub, method)(request, timeout=PATIENCE)
            except grpc.aio.AioRpcError as error:
                return error.code(), error.details()

    async def _pause(self, seconds: float) -> None:
        await self.paused.wait()
        self.paused.clear()


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    async with made.listener:
        await made.present()
        yield made


def scaled_object(name: str = "chat") -> Any:
    return messages.ScaledObjectRef(name=name, namespace="demo", scalerMetadata={"scalerAddress": "x:1"})


def metrics(name: str = "chat", metric: str = "kvik_desired_replicas") -> Any:
    return messages.GetMetricsRequest(scaledObjectRef=scaled_object(name), metricName=metric)


async def test_the_value_is_the_decided_number_of_replicas_and_its_target_is_one(world: World) -> None:
    code, answer = await world.call("GetMetrics", metrics())
    (value,) = answer.metricValues
    assert (code, value.metricName, value.metricValue, value.metricValueFloat) == (OK, "kvik_desired_replicas", 3, 3.0)
    code, answer = await world.call("GetMetricSpec", scaled_object())
    (spec,) = answer.metricSpecs
    assert (code, spec.metricName, spec.targetSize, spec.targetSizeFloat) == (OK, "kvik_desired_replicas", 1, 1.0)
    code, answer = await world.call("IsActive", scaled_object())
    assert (code, answer.result) == (OK, True)


@pytest.mark.parametrize("method", ["GetMetrics", "IsActive"])
async def test_missing_and_old_data_are_errors_and_never_zero(world: World, method: str) -> None:
    def request(name: str = "chat") -> Any:
        return metrics(name) if method == "GetMetrics" else scaled_object(name)

    code, details = await world.call(method, request("other"))
    assert (code, details) == (grpc.StatusCode.NOT_FOUND, "there is no InferencePool demo/other")
    world.now += timedelta(seconds=31)
    assert (await world.call(method, request()))[0] is grpc.StatusCode.UNAVAILABLE
    world.decide(None)
    assert (await world.call(method, request()))[0] is grpc.StatusCode.UNAVAILABLE
    world.decide(2)
    assert (await world.call(method, request()))[0] is OK
    world.spec = {"replicas": 0}
    code, details = await world.call(method, request())
    assert (code, "was stopped" in details) == (grpc.StatusCode.FAILED_PRECONDITION, True)


async def test_a_metric_of_another_name_is_refused(world: World) -> None:
    code, details = await world.call("GetMetrics", metrics(metric="queue"))
    assert (code, "only kvik_desired_replicas" in details) == (grpc.StatusCode.INVALID_ARGUMENT, True)


async def test_the_stream_tells_when_a_pool_is_first_decided_on_and_ends_with_the_pool(world: World) -> None:
    world.decide(None)
    async with world.stub(world.keda, world.authority) as stub:
        stream = stub.StreamIsActive(scaled_object(), timeout=PATIENCE)
        first = asyncio.ensure_future(stream.read())
        world.paused.set()
        world.decide(2)
        world.paused.set()
        assert (await first).result is True
        world.pool = lambda key: None  # type: ignore[method-assign]
        world.paused.set()
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await stream.read()
    assert ended.value.code() is grpc.StatusCode.NOT_FOUND


async def test_who_has_no_certificate_or_one_of_another_authority_is_cut_off(world: World) -> None:
    credentials = grpc.ssl_channel_credentials(world.authority.encode())
    options = [("grpc.ssl_target_name_override", NAME)]
    async with grpc.aio.secure_channel(f"127.0.0.1:{world.listener.port}", credentials, options) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await services.ExternalScalerStub(channel).IsActive(scaled_object(), timeout=PATIENCE)
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    stranger, foreign = make_pair(["keda"], datetime.now(UTC), Use.KEDA_CLIENT)
    assert (await world.call("IsActive", scaled_object(), client=stranger))[0] is grpc.StatusCode.UNAVAILABLE
    assert (await world.call("IsActive", scaled_object(), authority=foreign))[0] is grpc.StatusCode.UNAVAILABLE
    # The scaler's own certificate is of an authority that it does not believe as a client's, and for servers.
    assert (await world.call("IsActive", scaled_object(), client=world.server))[0] is grpc.StatusCode.UNAVAILABLE
    assert (await world.call("IsActive", scaled_object()))[0] is OK


async def test_new_certificates_hold_from_the_next_connection_on_and_break_no_other(world: World) -> None:
    async with world.stub(world.keda, world.authority) as stub:
        assert (await stub.IsActive(scaled_object(), timeout=PATIENCE)).result
        old_authority, old_keda = world.authority, world.keda
        world.server, world.authority = make_pair([NAME], datetime.now(UTC), Use.KEDA_SCALER)
        world.keda, world.keda_authority = make_pair(["keda"], datetime.now(UTC), Use.KEDA_CLIENT)
        await world.present()
        assert (await stub.IsActive(scaled_object(), timeout=PATIENCE)).result
    assert (await world.call("IsActive", scaled_object()))[0] is OK
    assert (await world.call("IsActive", scaled_object(), authority=old_authority))[0] is grpc.StatusCode.UNAVAILABLE
    assert (await world.call("IsActive", scaled_object(), client=old_keda))[0] is grpc.StatusCode.UNAVAILABLE


async def test_a_port_that_is_taken_is_an_error(world: World) -> None:
    assert world.listener.port is not None
    async with Listener(world.scaler, "127.0.0.1", world.listener.port) as second:
        with pytest.raises(OSError, match="cannot be had"):
            await second.present(world.server, world.keda_authority)
        assert not second.serving


async def test_a_port_that_is_taken_is_tried_again_and_served_once_it_is_free(world: World) -> None:
    assert world.listener.port is not None
    async with Listener(world.scaler, "127.0.0.1", world.listener.port) as second:
        for _ in range(2):
            with pytest.raises(OSError, match="cannot be had"):
                await second.present(world.server, world.keda_authority)
        await world.listener.__aexit__(None, None, None)
        await second.present(world.server, world.keda_authority)
        assert (await world.call("IsActive", scaled_object()))[0] is OK


async def test_what_tls_cannot_use_is_told_at_every_look_and_what_was_presented_stays(world: World) -> None:
    broken = Pair(world.server.certificate, "no key")
    async with Listener(world.scaler, "127.0.0.1", 0) as second:
        for listener in (second, second, world.listener):
            with pytest.raises(Unpresentable, match="certificate and key"):
                await listener.present(broken, world.keda_authority)
            with pytest.raises(Unpresentable, match="authority"):
                await listener.present(world.server, "no certificate")
        assert not second.serving
    assert (await world.call("IsActive", scaled_object()))[0] is OK


async def test_half_a_handshake_is_cut_off(world: World) -> None:
    """400 connections that said nothing stayed open for two minutes."""
    async with Listener(world.scaler, "127.0.0.1", 0, Bounds(handshake_seconds=SHORT)) as listener:
        await listener.present(world.server, world.keda_authority)
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        assert await asyncio.wait_for(reader.read(), PATIENCE) == b""
        writer.close()
        await writer.wait_closed()


async def test_one_connection_too_many_is_cut_off_and_there_is_room_again_when_another_ends() -> None:
    world = World(Bounds(connections=1))
    async with world.listener:
        await world.present()
        async with world.stub(world.keda, world.authority) as first:
            assert (await first.IsActive(scaled_object(), timeout=PATIENCE)).result
            reader, writer = await asyncio.open_connection("127.0.0.1", world.listener.port)
            assert await asyncio.wait_for(reader.read(), PATIENCE) == b""
            writer.close()
            await writer.wait_closed()
            assert (await first.IsActive(scaled_object(), timeout=PATIENCE)).result
        async with world.stub(world.keda, world.authority) as second:
            assert (await second.IsActive(scaled_object(), timeout=PATIENCE, wait_for_ready=True)).result


async def test_a_connection_that_was_let_in_long_ago_ends_with_its_calls() -> None:
    """Else one whose authority was withdrawn could go on for ever."""
    world = World(Bounds(age_seconds=SHORT, grace_seconds=SHORT))
    async with world.listener:
        await world.present()
        world.decide(None)
        async with world.stub(world.keda, world.authority) as stub:
            with pytest.raises(grpc.aio.AioRpcError) as ended:
                await stub.StreamIsActive(scaled_object(), timeout=PATIENCE).read()
    assert ended.value.code() is grpc.StatusCode.UNAVAILABLE
