"""Driver KEDA against KEDA's own CRDs and wire contract, with a client in KEDA's place that has what KEDA has."""

import base64
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_tools import protoc

from kvik_operator.keda import protocol
from tests.cluster.free_ports import free_ports
from tests.support.keda_module import crd, proto
from tests.support.kubectl import condition
from tests.support.operator_process import OperatorProcess
from tests.support.operator_rig import Rig, eventually, holds
from tests.support.running_operator import NAME, NAMESPACE, RELEASE, helm
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.timeout(600)

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "keda-prometheus.yaml"
CRDS = ("scaledobjects", "clustertriggerauthentications")
SCALED_OBJECTS = "scaledobjects.keda.sh"
CLIENT = f"{NAMESPACE}-{NAME}"
"""KEDA's Secret and the ClusterTriggerAuthentication."""
VALUES = "--set=keda.enabled={0},admissionPolicy.operator.enabled={0}"
SCALING = {"maxReplicas": 4, "driver": "KEDA", "scaleDownStabilization": "5s"}


def install_crds(rig: Rig) -> None:
    for plural in CRDS:
        rig.plane.run_kubectl("apply", "--server-side", f"--filename={crd(plural)}")
    for plural in CRDS:
        served = ("get", "--raw", f"/apis/keda.sh/v1alpha1/{plural}")
        eventually(f"{plural} to be served", lambda: rig.plane.run_kubectl(*served, check=False), 60)  # noqa: B023


def remove_crds(rig: Rig) -> None:
    for plural in CRDS:
        rig.plane.run_kubectl("delete", "--ignore-not-found", f"customresourcedefinition/{plural}.keda.sh")


@pytest.fixture
def with_keda(operated: Rig) -> Iterator[Rig]:
    """The chart with keda.enabled, beside KEDA's CRDs and namespace."""
    install_crds(operated)
    operated.plane.run_kubectl("create", "namespace", "keda")
    helm(operated.plane, "upgrade", RELEASE, "charts/kvik", VALUES.format("true"))
    try:
        yield operated
    finally:
        install_crds(operated)  # a test may have removed them, and helm asks for them
        helm(operated.plane, "upgrade", RELEASE, "charts/kvik", VALUES.format("false"))
        remove_crds(operated)
        operated.plane.run_kubectl("delete", "namespace", "keda")


def start(rig: Rig) -> tuple[OperatorProcess, int]:
    """A replica that serves the scaler, and its port."""
    (port,) = free_ports("127.0.0.1", 1)
    flags = (f"--keda-client-secret={CLIENT}", f"--keda-authentication={CLIENT}")
    return rig.operator("--keda=on", "--keda-host=127.0.0.1", f"--keda-port={port}", *flags), port


def known_to_keda(rig: Rig) -> dict[str, bytes]:
    """What KEDA reads by the ClusterTriggerAuthentication, by parameter."""
    authentication = json.loads(rig.plane.run_kubectl("get", f"clustertriggerauthentication/{CLIENT}", "-ojson"))
    known: dict[str, bytes] = {}
    for reference in authentication["spec"]["secretTargetRef"]:
        text = rig.plane.run_kubectl("get", f"secret/{reference['name']}", "--namespace=keda", "-ojson")
        data = json.loads(text).get("data") or {}
        known[reference["parameter"]] = base64.b64decode(data.get(reference["key"], ""))
    return known


@contextmanager
def as_keda(rig: Rig, port: int) -> Iterator[Any]:
    """A stub of the scaler, with KEDA's certificate."""
    eventually("KEDA to have a certificate", lambda: all(known_to_keda(rig).values()), 30, rig.explain)
    known = known_to_keda(rig)
    credentials = grpc.ssl_channel_credentials(known["caCert"], known["tlsClientKey"], known["tlsClientCert"])
    options = [("grpc.ssl_target_name_override", f"{NAME}.{NAMESPACE}.svc")]
    with grpc.secure_channel(f"127.0.0.1:{port}", credentials, options) as channel:
        yield protocol.services.ExternalScalerStub(channel)


def figure(stub: Any, rig: Rig, pool: str = "chat") -> int | grpc.StatusCode:
    """What KEDA would give its autoscaler, or the code of the error."""
    reference = protocol.messages.ScaledObjectRef(name=pool, namespace=rig.namespace)
    request = protocol.messages.GetMetricsRequest(scaledObjectRef=reference, metricName=protocol.METRIC)
    try:
        (found,) = stub.GetMetrics(request, timeout=PATIENCE).metricValues
    except grpc.RpcError as error:
        return error.code()
    replicas: int = found.metricValue
    return replicas


def say_ready(rig: Rig) -> None:
    """As KEDA would, in the ScaledObject's status."""
    ready = {"type": "Ready", "status": "True", "reason": "ScaledObjectReady", "message": "ready for scaling"}
    patch = json.dumps({"status": {"conditions": [ready]}})
    rig.kubectl("patch", f"{SCALED_OBJECTS}/chat", "--subresource=status", "--type=merge", f"--patch={patch}")


def scaled_objects(rig: Rig) -> list[Mapping[str, Any]]:
    return list(json.loads(rig.kubectl("get", SCALED_OBJECTS, "-ojson"))["items"])


def active(rig: Rig) -> Mapping[str, Any]:
    return condition(rig.pool(), "ScalingActive") or {"reason": "", "status": "", "message": ""}


def replicas(rig: Rig) -> int:
    found: int = (rig.pool() or {})["spec"]["replicas"]
    return found


def described(file: Path, folder: Path) -> FileDescriptor:
    """A .proto file in a pool of its own: in the common one its names are taken, by ours."""
    compiled = folder / "descriptors"
    assert protoc.main(["protoc", f"--proto_path={file.parent}", f"--descriptor_set_out={compiled}", file.name]) == 0
    (only,) = FileDescriptorSet.FromString(compiled.read_bytes()).file
    pool = DescriptorPool()
    pool.Add(only)
    return pool.FindFileByName(file.name)


def test_our_contract_is_kedas(tmp_path: Path) -> None:
    """Names, numbers and types of all messages and calls that we have, against the file in KEDA's own module."""
    theirs = described(proto(), tmp_path)
    ours = protocol.messages.DESCRIPTOR
    assert ours.message_types_by_name
    for name, message in ours.message_types_by_name.items():
        want = {field.name: (field.number, field.type) for field in theirs.message_types_by_name[name].fields}
        assert {field.name: (field.number, field.type) for field in message.fields} == want, name
    (our_calls,), (their_calls,) = ours.services_by_name.values(), theirs.services_by_name.values()
    assert our_calls.full_name == their_calls.full_name
    for call in our_calls.methods:
        other = their_calls.methods_by_name[call.name]
        one, two = ((it.input_type.name, it.output_type.name, it.server_streaming) for it in (call, other))
        assert one == two, call.name


def test_driver_keda_makes_a_scaled_object_and_serves_the_formulas_figure(with_keda: Rig) -> None:
    rig = with_keda
    _, port = start(rig)
    rig.create(scaling=SCALING)
    rig.wait_ready()
    (made,) = scaled_objects(rig)
    assert made["spec"]["triggers"][0]["metadata"] == {"scalerAddress": f"{NAME}.{NAMESPACE}.svc:9443"}
    assert made["spec"]["triggers"][0]["authenticationRef"]["name"] == CLIENT
    assert made["metadata"]["ownerReferences"][0]["kind"] == "InferencePool"
    with as_keda(rig, port) as stub:
        eventually("a figure", lambda: figure(stub, rig) == 1, 30, rig.explain)
        assert figure(stub, rig, "other") is grpc.StatusCode.NOT_FOUND
        say_ready(rig)
        eventually("it to be told", lambda: active(rig)["message"].startswith("driver KEDA: "), 30, rig.explain)
        rig.kubelet.set_load(waiting=8)
        eventually("a higher figure", lambda: figure(stub, rig) == 2, 30, rig.explain)
        holds("nobody but KEDA writes", lambda: replicas(rig) == 1, 6)
        rig.patch({"replicas": 2})  # as KEDA's autoscaler does
        eventually("the Event", lambda: rig.events("ScaledUp"), 30, rig.explain)
        assert rig.events("ScaledUp")[0]["message"].startswith("from 1 to 2 replicas by driver KEDA: ")
        rig.patch({"replicas": 0})
        eventually("no ScaledObject", lambda: not scaled_objects(rig), 30, rig.explain)
        assert figure(stub, rig) is grpc.StatusCode.FAILED_PRECONDITION


@pytest.mark.long
def test_kedas_schema_takes_the_example_of_scaling_by_prometheus(with_keda: Rig) -> None:
    told = with_keda.kubectl("create", "--dry-run=server", "--validate=strict", f"--filename={EXAMPLE}")
    assert told.strip() == "scaledobject.keda.sh/smollm2 created (server dry run)"


@pytest.mark.long
def test_native_goes_on_when_keda_has_let_go_of_the_scaled_object(with_keda: Rig) -> None:
    rig = with_keda
    start(rig)
    rig.create(scaling=SCALING, replicas=3)
    rig.wait_ready()
    eventually("a ScaledObject", lambda: scaled_objects(rig), 30, rig.explain)
    hold = ("--type=merge", '--patch={"metadata": {"finalizers": ["finalizer.keda.sh"]}}')
    rig.kubectl("patch", f"{SCALED_OBJECTS}/chat", *hold)
    rig.patch({"scaling": {"driver": "Native"}})
    eventually("it to be deleted", lambda: "deletionTimestamp" in scaled_objects(rig)[0]["metadata"], 30, rig.explain)
    eventually("Native to wait", lambda: active(rig)["reason"] == "SwitchingDriver", 30, rig.explain)
    holds("nobody scales", lambda: replicas(rig) == 3, 10)
    rig.kubectl("patch", f"{SCALED_OBJECTS}/chat", "--type=merge", '--patch={"metadata": {"finalizers": null}}')
    eventually("Native to go on", lambda: replicas(rig) == 1, 60, rig.explain)


@pytest.mark.long
def test_keda_that_comes_later_is_found_and_one_that_goes_is_told_of(with_keda: Rig) -> None:
    rig = with_keda
    remove_crds(rig)
    operator, _ = start(rig)
    rig.create(scaling=SCALING)
    rig.wait_ready()
    eventually("it to be told", lambda: active(rig)["reason"] == "KEDANotServed", 30, rig.explain)
    install_crds(rig)
    eventually("a ScaledObject", lambda: scaled_objects(rig), 60, rig.explain)
    remove_crds(rig)
    eventually("it to be told again", lambda: active(rig)["reason"] == "KEDANotServed", 90, rig.explain)
    assert operator.probe("/live")[0] == 200
    rig.patch({"scaling": {"driver": "Native"}})
    eventually("Native to go on", lambda: active(rig)["status"] == "True", 60, rig.explain)


@pytest.mark.long
def test_driver_keda_without_the_scaler_is_a_condition(operated: Rig) -> None:
    rig = operated
    rig.operator()
    rig.create(scaling=SCALING)
    rig.wait_ready()
    eventually("it to be said", lambda: active(rig)["reason"] == "KEDAOff", 40, rig.explain)
    assert "set keda.enabled of the chart" in active(rig)["message"]
