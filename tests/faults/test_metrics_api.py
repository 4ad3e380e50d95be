"""The metrics API behind a real aggregator: what it lists and answers, to whom, and a real autoscaler that uses it."""

import base64
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvik_operator.certificates import LIFE, Held, make_pair
from tests.cluster.free_ports import free_ports
from tests.support.kubectl import condition
from tests.support.operator_process import OperatorProcess
from tests.support.operator_rig import AUTOSCALERS, Rig, eventually
from tests.support.running_operator import NAME, NAMESPACE, RELEASE, helm
from tests.support.service_stand_in import ServiceStandIn

pytestmark = pytest.mark.timeout(600)

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "hpa.yaml"
CUSTOM = "/apis/custom.metrics.k8s.io"
EXTERNAL = "/apis/external.metrics.k8s.io/v1beta1"
API_SERVICES = ("v1beta1.custom.metrics.k8s.io", "v1beta2.custom.metrics.k8s.io", "v1beta1.external.metrics.k8s.io")
OPERATOR = f"system:serviceaccount:{NAMESPACE}:{NAME}"
VALUES = "metricsAPI.enabled={0},metricsAPI.external={0},operator.replicas={1},admissionPolicy.operator.enabled={0}"


@dataclass(slots=True)
class Served:
    """A chart with the metrics API, and as many replicas behind its Service as a test starts."""

    rig: Rig
    service: ServiceStandIn
    replicas: list[OperatorProcess] = field(default_factory=list)

    def start(self) -> OperatorProcess:
        """One replica more, once it serves."""
        (port,) = free_ports("127.0.0.1", 1)
        flags = ("--metrics-api=custom-and-external", "--metrics-api-host=127.0.0.1", f"--metrics-api-port={port}")
        operator = self.rig.operator(*flags)
        self.service.backends.append(port)
        self.replicas.append(operator)
        eventually("the APIServices to be available", self.available, 60, self.explain)
        return operator

    def available(self) -> bool:
        found = json.loads(self.rig.plane.run_kubectl("get", "apiservices", *API_SERVICES, "-ojson"))["items"]
        return all(
            condition["status"] == "True"
            for item in found
            for condition in item.get("status", {}).get("conditions", [{"status": "False"}])
        )

    def get(self, path: str) -> Mapping[str, Any]:
        """Raises RuntimeError with what kubectl says."""
        answer: Mapping[str, Any] = json.loads(self.rig.plane.run_kubectl("get", "--raw", path))
        return answer

    def custom(self, about: str, version: str = "v1beta2") -> list[Mapping[str, Any]]:
        items: list[Mapping[str, Any]] = self.get(f"{CUSTOM}/{version}/namespaces/{self.rig.namespace}/{about}")[
            "items"
        ]
        return items

    def value(self, about: str) -> str | None:
        """None: it has none."""
        try:
            (item,) = self.custom(about)
        except RuntimeError as error:
            if "there is no fresh value" in str(error):
                return None
            raise
        return str(item["value"])

    def explain(self) -> str:
        services = self.rig.plane.run_kubectl("get", "apiservices", *API_SERVICES, "-oyaml")
        return services + "\n".join(replica.log_tail() for replica in self.replicas)


@pytest.fixture
def served(operated: Rig) -> Iterator[Served]:
    rig = operated
    helm(rig.plane, "upgrade", RELEASE, "charts/kvik", f"--set={VALUES.format('true', 2)}")
    try:
        with ServiceStandIn() as service:
            leads_here = {"type": "ExternalName", "externalName": "localhost", "clusterIP": None, "clusterIPs": None}
            patch = ("--type=merge", f"--patch={json.dumps({'spec': leads_here})}")
            rig.plane.run_kubectl("patch", f"service/{NAME}", f"--namespace={NAMESPACE}", *patch)
            port = json.dumps({"spec": {"service": {"port": service.port}}})
            for name in API_SERVICES:
                rig.plane.run_kubectl("patch", f"apiservice/{name}", "--type=merge", f"--patch={port}")
            yield Served(rig, service)
    finally:
        rig.plane.run_kubectl("delete", f"service/{NAME}", f"--namespace={NAMESPACE}")
        helm(rig.plane, "upgrade", RELEASE, "charts/kvik", f"--set={VALUES.format('false', 1)}")


@pytest.mark.long
def test_metrics_of_pools_and_pods_are_listed_and_read_from_each_replica(served: Served) -> None:
    rig = served.rig
    served.start()
    rig.create(scaling={"maxReplicas": 4})
    rig.wait_ready()
    rig.kubelet.set_load(waiting=3, waiting_prompt_tokens=500, kv_blocks_used=182, ttft_p90_seconds=0.125)
    pool = "inferencepools.kvik.dev/chat"
    eventually("the load to be read", lambda: served.value(f"{pool}/kvik_requests_waiting") == "3", 20, served.explain)
    assert served.value(f"{pool}/kvik_kv_cache_utilization") == "250m"
    assert served.value(f"{pool}/kvik_predicted_ttft_seconds") == "500m"
    assert served.value(f"{pool}/kvik_ttft_p90_seconds") == "125m"
    eventually("a decision", lambda: served.value(f"{pool}/kvik_desired_replicas") is not None, 20, served.explain)
    (pod,) = rig.pods()
    (item,) = served.custom("pods/*/kvik_requests_waiting?labelSelector=kvik.dev/pool=chat")
    assert (item["describedObject"]["name"], item["value"]) == (pod["metadata"]["name"], "3")
    assert served.custom("pods/*/kvik_requests_waiting?labelSelector=kvik.dev/pool=other") == []
    (old,) = served.custom(f"{pool}/kvik_requests_waiting", "v1beta1")
    assert (old["metricName"], old["value"]) == ("kvik_requests_waiting", "3")
    external = f"{EXTERNAL}/namespaces/{rig.namespace}/kvik_requests_waiting"
    assert served.get(f"{external}?labelSelector=pool%3Dchat")["items"][0]["value"] == "3"
    rig.kubectl("label", "inferencepools.kvik.dev/chat", "team=search")
    assert len(served.custom("inferencepools.kvik.dev/*/kvik_requests_waiting?labelSelector=team=search")) == 1
    assert served.custom("inferencepools.kvik.dev/*/kvik_requests_waiting?labelSelector=team=other") == []
    with pytest.raises(RuntimeError, match="there is no fresh value of kvik_requests_waiting for inferencepools"):
        served.custom("inferencepools.kvik.dev/other/kvik_requests_waiting")
    names = {resource["name"] for resource in served.get(f"{CUSTOM}/v1beta2")["resources"]}
    assert {f"{pool.partition('/')[0]}/kvik_desired_replicas", "pods/kvik_kv_cache_utilization"} <= names

    served.start()
    served.replicas[0].kill()
    eventually("the other to answer", lambda: served.value(f"{pool}/kvik_requests_waiting") == "3", 20, served.explain)


def test_who_is_not_the_front_proxy_or_may_not_read_is_refused(served: Served) -> None:
    rig = served.rig
    served.start()
    (port,) = served.service.backends
    path = f"{CUSTOM}/v1beta2/namespaces/{rig.namespace}/pods/*/kvik_requests_waiting"
    headers = {"X-Remote-User": "system:admin", "X-Remote-Group": "system:masters"}
    assert status_of(rig, port, path, None, headers) == 401
    assert status_of(rig, port, path, "admin", headers) == 403  # of the same authority
    assert status_of(rig, port, path, "front-proxy", {}) == 401
    assert status_of(rig, port, path, "front-proxy", {"X-Remote-User": "alice"}) == 403
    assert status_of(rig, port, path, "front-proxy", headers) == 200
    rule = {"apiGroups": ["custom.metrics.k8s.io"], "resources": ["pods/kvik_requests_waiting"], "verbs": ["get"]}
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "reader"}}
    rig.kubectl("create", "--filename=-", stdin=json.dumps(role | {"rules": [rule]}))
    rig.kubectl("create", "rolebinding", "reader", "--role=reader", "--user=bob")
    eventually(
        "bob to be let in", lambda: status_of(rig, port, path, "front-proxy", {"X-Remote-User": "bob"}) == 200, 20
    )
    with pytest.raises(RuntimeError, match="orbidden"):
        rig.plane.run_kubectl("get", "--raw", path, "--as=alice")


def status_of(rig: Rig, port: int, path: str, client: str | None, headers: Mapping[str, str]) -> int:
    """By a connection of our own, with a certificate of the cluster's PKI."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if client is not None:
        context.load_cert_chain(rig.plane.plane.pki / f"{client}.crt", rig.plane.plane.pki / f"{client}.key")
    request = urllib.request.Request(f"https://127.0.0.1:{port}{path}", headers=dict(headers))
    try:
        with urllib.request.urlopen(request, context=context, timeout=60) as answer:
            status: int = answer.status
            return status
    except urllib.error.HTTPError as refused:
        refused.close()
        return refused.code


@pytest.mark.long
def test_somebody_elses_api_service_is_left_alone_and_told_of(served: Served) -> None:
    rig, name = served.rig, API_SERVICES[0]
    elsewhere = {"spec": {"service": {"name": "adapter", "namespace": "monitoring"}, "caBundle": None}}
    rig.plane.run_kubectl("patch", f"apiservice/{name}", "--type=merge", f"--patch={json.dumps(elsewhere)}")
    (port,) = free_ports("127.0.0.1", 1)
    operator = rig.operator("--metrics-api=custom", "--metrics-api-host=127.0.0.1", f"--metrics-api-port={port}")
    series = 'kvik_operator_metrics_api_registered{{api_service="{}"}}'
    eventually("ours to be registered", lambda: operator.metric(series.format(API_SERVICES[1])) == 1.0, 40)

    def bundle(api_service: str) -> str:
        return rig.plane.run_kubectl("get", f"apiservice/{api_service}", "-ojsonpath={.spec.caBundle}")

    eventually("ours to have the authority", lambda: bundle(API_SERVICES[1]) != "", 40, operator.log_tail)
    assert operator.metric(series.format(name)) == 0.0
    assert bundle(name) == ""
    told = [line for line in operator.log_lines() if line["message"].startswith("an APIService does not lead here")]
    assert [(line["api_service"], line["service"]) for line in told] == [(name, "monitoring/adapter")]


def test_the_operators_own_policy_lets_it_write_a_bundle_and_nothing_else_of_an_api_service(served: Served) -> None:
    """With its token, `insecureSkipTLSVerify` would let anybody answer in its place."""
    rig = served.rig
    service, as_operator = f"apiservice/{API_SERVICES[0]}", (f"--as={OPERATOR}", "--dry-run=server", "--type=merge")

    def refusal(patch: Mapping[str, Any]) -> str:
        try:
            rig.plane.run_kubectl("patch", service, *as_operator, f"--patch={json.dumps(patch)}")
        except RuntimeError as error:
            return str(error)
        return ""

    eventually("the policy to be in force", lambda: refusal({"spec": {"versionPriority": 7}}), 30)
    owner = {"apiVersion": "v1", "kind": "Namespace", "name": "default", "uid": "1"}
    for patch in (
        {"spec": {"insecureSkipTLSVerify": True}},
        {"spec": {"service": {"name": "other"}}},
        {"spec": {"service": {"port": 1}}},
        {"spec": {"groupPriorityMinimum": 7}},
        {"metadata": {"labels": {"a": "b"}}},
        {"metadata": {"annotations": {"a": "b"}}},
        {"metadata": {"ownerReferences": [owner]}},
        {"metadata": {"finalizers": ["kvik.dev/x"]}},
    ):
        assert "only the caBundle of APIServices that lead to the operator" in refusal(patch), patch
    _, authority = make_pair(["x"], datetime.now(UTC))
    assert refusal({"spec": {"caBundle": base64.b64encode(authority.encode()).decode()}}) == ""


@pytest.mark.long
def test_a_certificate_that_ends_soon_is_replaced_and_no_reader_notices(served: Served) -> None:
    """The new authority is announced a minute before the new certificate is presented."""
    rig = served.rig
    pair, authority = make_pair([f"{NAME}.{NAMESPACE}.svc"], datetime.now(UTC) - LIFE + timedelta(days=20))
    secret = ("--type=merge", f"--patch={json.dumps({'data': Held(pair, (authority,)).secret_data()})}")
    rig.plane.run_kubectl("patch", f"secret/{NAME}-metrics-api", f"--namespace={NAMESPACE}", *secret)
    served.start()
    served.start()
    rig.create()
    rig.wait_ready()
    pool = "inferencepools.kvik.dev/chat/kvik_requests_waiting"
    eventually("a value", lambda: served.value(pool) == "0", 20, served.explain)

    def replaced() -> bool:
        assert served.value(pool) == "0"
        return all(presented(port) != pair.certificate for port in served.service.backends)

    assert [presented(port) for port in served.service.backends] == [pair.certificate] * 2
    eventually("both replicas to present the new certificate", replaced, 240, served.explain)
    eventually("the APIServices to stay available", served.available, 30, served.explain)
    bundle = rig.plane.run_kubectl("get", f"apiservice/{API_SERVICES[0]}", "-ojsonpath={.spec.caBundle}")
    assert base64.b64decode(bundle).decode().endswith(authority)


def presented(port: int) -> str:
    return ssl.get_server_certificate(("127.0.0.1", port), timeout=60)


@pytest.mark.long
def test_a_hand_written_autoscaler_scales_a_pool_up_and_down(served: Served) -> None:
    rig = served.rig
    served.start()
    hpa = yaml.safe_load(EXAMPLE.read_text())
    name = hpa["spec"]["scaleTargetRef"]["name"]
    rig.create(name)
    rig.wait_ready(name)
    hpa["spec"]["behavior"] = {"scaleDown": {"stabilizationWindowSeconds": 0}}
    rig.kubectl("apply", "--filename=-", stdin=json.dumps(hpa))
    rig.kubelet.set_load(waiting=6)
    eventually("three replicas", lambda: (rig.pool(name) or {})["spec"]["replicas"] == 3, 60, lambda: hpa_status(rig))
    rig.kubelet.set_load(waiting=0)
    eventually("one replica", lambda: (rig.pool(name) or {})["spec"]["replicas"] == 1, 60, lambda: hpa_status(rig))


def test_driver_hpa_scales_by_kubernetes_own_autoscaler_which_goes_with_the_driver(served: Served) -> None:
    rig = served.rig
    served.start()
    rig.create(scaling={"maxReplicas": 3, "driver": "HPA", "scaleDownStabilization": "5s"})
    rig.wait_ready()
    rig.kubelet.set_load(waiting=8)
    eventually("two replicas", lambda: (rig.pool() or {})["spec"]["replicas"] >= 2, 60, lambda: hpa_status(rig))
    first = "from 1 to 2 replicas by driver HPA: 160 % of full x 1 pod / 75 % -> 3, at most doubling in 15 s: 2"

    def told() -> bool:
        return any(event["message"] == first for event in rig.events("ScaledUp"))

    eventually("the Event of the first step", told, 20, rig.explain)
    active = condition(rig.pool(), "ScalingActive") or {}
    assert (active["status"], active["message"].startswith("driver HPA: ")) == ("True", True)
    (autoscaler,) = rig.listed(AUTOSCALERS)
    assert autoscaler["metadata"]["ownerReferences"][0]["kind"] == "InferencePool"

    rig.patch({"scaling": {"driver": "External"}})
    eventually("no autoscaler", lambda: not rig.listed(AUTOSCALERS), 20, rig.explain)
    eventually("External to be told", lambda: scaling_message(rig).startswith("driver External: "), 20, rig.explain)


@pytest.mark.long
def test_every_switch_of_driver_leaves_the_right_objects_and_native_goes_on(served: Served) -> None:
    rig = served.rig
    served.start()
    rig.create(scaling={"maxReplicas": 3, "driver": "HPA", "scaleDownStabilization": "5s"}, replicas=3)
    rig.wait_ready()
    for driver, autoscalers in (("HPA", 1), ("Native", 0), ("External", 0), ("HPA", 1), ("Native", 0)):
        rig.patch({"scaling": {"driver": driver}})
        eventually(driver, lambda: len(rig.listed(AUTOSCALERS)) == autoscalers, 20, rig.explain)  # noqa: B023
    eventually("one replica", lambda: (rig.pool() or {})["spec"]["replicas"] == 1, 90, rig.explain)


@pytest.mark.long
def test_a_foreign_autoscaler_is_told_of_and_nobody_fights_it(served: Served) -> None:
    rig = served.rig
    served.start()
    rig.create(scaling={"maxReplicas": 3})
    rig.wait_ready()
    hpa = yaml.safe_load(EXAMPLE.read_text().replace("name: smollm2", "name: chat"))
    rig.kubectl("apply", "--filename=-", stdin=json.dumps(hpa))
    reason = "the HorizontalPodAutoscaler chat scales this pool, too"
    eventually("it to be told of", lambda: scaling_message(rig).startswith(reason), 100, rig.explain)
    eventually("the Warning", lambda: rig.events("Contested"), 20, rig.explain)
    rig.kubectl("delete", "horizontalpodautoscaler/chat")
    eventually("scaling to go on", lambda: not scaling_message(rig).startswith(reason), 160, rig.explain)


@pytest.mark.long
def test_driver_hpa_without_the_metrics_api_is_a_condition(operated: Rig) -> None:
    rig = operated
    rig.operator()
    rig.create(scaling={"maxReplicas": 3, "driver": "HPA"})
    rig.wait_ready()
    eventually("it to be said", lambda: "set metricsAPI.enabled of the chart" in scaling_message(rig), 40, rig.explain)
    assert rig.listed(AUTOSCALERS) == []


def scaling_message(rig: Rig) -> str:
    return (condition(rig.pool(), "ScalingActive") or {}).get("message", "")


def hpa_status(rig: Rig) -> str:
    return rig.kubectl("get", "horizontalpodautoscalers", "-oyaml") + rig.explain()
