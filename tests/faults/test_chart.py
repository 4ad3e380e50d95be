"""The chart as helm renders it: what it refuses, and that the operator understands every flag it is given."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from kvik_operator import config
from kvik_operator.reconcile.types import EngineImages
from tests.support.rendered_chart import helm_template, of_kind, render

ROOT = Path(__file__).resolve().parents[2]
VERSION = (ROOT / "VERSION").read_text().strip()


def operator_config(documents: list[dict[str, Any]]) -> config.OperatorConfig:
    """What the operator makes of its command line."""
    (deployment,) = of_kind(documents, "Deployment")
    args = [arg.replace("$(POD_NAME)", "pod") for arg in container(deployment)["args"]]
    return config.parse(args, {})


def container(deployment: dict[str, Any]) -> dict[str, Any]:
    item: dict[str, Any] = deployment["spec"]["template"]["spec"]["containers"][0]
    return item


def test_the_defaults_are_understood_by_the_operator() -> None:
    settings = operator_config(render())
    assert settings.reconcile.images == EngineImages(f"kvik/engine:{VERSION}", f"kvik/engine:{VERSION}-cpu")
    assert settings.reconcile.image_pull_policy == "IfNotPresent"
    assert settings.reconcile.hf_endpoint is None
    assert settings.namespaces == ()
    assert (settings.lease_namespace, settings.lease_name) == ("kvik-system", "kvik-operator")
    assert settings.probe_port == 8080
    policy = settings.reconcile.network_policy
    assert (policy.enabled, policy.api_from, policy.metrics_from, policy.egress) == (True, (), (), "Open")


def test_every_value_reaches_the_operator() -> None:
    settings = operator_config(
        render(
            "--set=image.engine.gpu.repository=registry.local:5000/gpu",
            "--set=image.engine.gpu.tag=v7",
            "--set=image.engine.cpu.tag=v8",
            "--set=image.pullPolicy=Always",
            "--set=operator.logLevel=debug",
            "--set=watch.namespaces={b,a}",
            "--set=huggingFace.endpoint=http://mirror.local",
            "--set=networkPolicy.egress=Restricted",
            '--set-json=networkPolicy.apiFrom=[{"podSelector":{"matchLabels":{"a":"b"}}}]',
            '--set-json=networkPolicy.metricsFrom=[{"ipBlock":{"cidr":"10.0.0.0/8"}}]',
        )
    )
    assert settings.reconcile.images == EngineImages("registry.local:5000/gpu:v7", "kvik/engine:v8")
    assert settings.reconcile.image_pull_policy == "Always"
    assert settings.reconcile.hf_endpoint == "http://mirror.local"
    assert settings.namespaces == ("a", "b")
    assert settings.log_level == "debug"
    assert settings.reconcile.network_policy.api_from == ({"podSelector": {"matchLabels": {"a": "b"}}},)
    assert settings.reconcile.network_policy.metrics_from == ({"ipBlock": {"cidr": "10.0.0.0/8"}},)
    assert settings.reconcile.network_policy.egress == "Restricted"


def test_the_local_clusters_values_name_images_that_are_built_here_and_never_pulled() -> None:
    settings = operator_config(render("--values=examples/local-values.yaml"))
    assert settings.reconcile.images.cpu == f"localhost/kvik/engine:{VERSION}-demo"
    assert settings.reconcile.image_pull_policy == "Never"


def test_the_operators_way_to_the_metrics_port_leads_to_its_own_pods() -> None:
    documents = render()
    peer = operator_config(documents).reconcile.network_policy.operator_peer
    assert peer is not None
    assert peer["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "kvik-system"}
    labels = of_kind(documents, "Deployment")[0]["spec"]["template"]["metadata"]["labels"]
    assert set(peer["podSelector"]["matchLabels"].items()) <= set(labels.items())


def test_network_policies_can_be_switched_off() -> None:
    documents = render("--set=networkPolicy.enabled=false")
    assert of_kind(documents, "NetworkPolicy") == []
    assert operator_config(documents).reconcile.network_policy.enabled is False


def test_the_metrics_api_is_served_under_the_names_that_its_objects_have() -> None:
    documents = render("--set=metricsAPI.enabled=true,metricsAPI.external=true,operator.replicas=2")
    served = operator_config(documents).metrics_api
    assert served is not None
    api_services = {item["metadata"]["name"]: item["spec"] for item in of_kind(documents, "APIService")}
    assert api_services.keys() == set(served.backend.api_services)
    assert all(served.backend.owns({"spec": spec}) for spec in api_services.values())
    (service,) = of_kind(documents, "Service")
    assert (443, served.port) in {(port["port"], port["targetPort"]) for port in service["spec"]["ports"]}
    (policy,) = of_kind(documents, "NetworkPolicy")
    assert served.port in {port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]}
    assert [item["metadata"]["name"] for item in of_kind(documents, "Secret")] == [served.secret]
    rules = {rule["resources"][0]: rule for role in of_kind(documents, "ClusterRole") for rule in role["rules"]}
    assert set(rules["apiservices"]["resourceNames"]) == api_services.keys()
    (budget,) = of_kind(documents, "PodDisruptionBudget")
    assert budget["spec"]["maxUnavailable"] == 1


def test_the_metrics_api_is_off_and_needs_two_replicas() -> None:
    documents = render()
    assert of_kind(documents, "APIService") == of_kind(documents, "Secret") == []
    assert operator_config(documents).metrics_api is None
    for values, words in (
        ("metricsAPI.enabled=true", "needs operator.replicas of 2 or more"),
        ("metricsAPI.external=true", "metricsAPI.external needs metricsAPI.enabled"),
    ):
        refused = helm_template(f"--set={values}")
        assert refused.returncode != 0
        assert words in refused.stderr


def test_the_scaler_for_keda_is_reached_under_the_names_that_its_objects_have() -> None:
    documents = render("--set=keda.enabled=true,keda.namespace=scaling")
    options = operator_config(documents).keda
    assert options is not None
    (service,) = of_kind(documents, "Service")
    assert service["metadata"]["name"] == options.service
    assert (options.service_port, options.port) in {
        (one["port"], one["targetPort"]) for one in service["spec"]["ports"]
    }
    (policy,) = of_kind(documents, "NetworkPolicy")
    (rule,) = [rule for rule in policy["spec"]["ingress"] if options.port in [port["port"] for port in rule["ports"]]]
    assert rule["from"] == [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "scaling"}}}]
    secrets = {(one["metadata"]["namespace"], one["metadata"]["name"]) for one in of_kind(documents, "Secret")}
    theirs = ("scaling", options.client_secret)
    assert secrets == {(options.namespace, options.secret), theirs}
    assert (options.client_namespace, options.client_secret) == theirs
    (deployment,) = of_kind(documents, "Deployment")
    assert {"name": "GRPC_VERBOSITY", "value": "NONE"} in container(deployment)["env"]
    (authentication,) = of_kind(documents, "ClusterTriggerAuthentication")
    assert authentication["metadata"]["name"] == options.authentication
    assert {one["name"] for one in authentication["spec"]["secretTargetRef"]} == {options.client_secret}
    (role,) = of_kind(documents, "ClusterRole")
    assert ["scaledobjects"] in [rule["resources"] for rule in role["rules"]]


def test_nothing_of_keda_is_there_until_asked_for() -> None:
    documents = render()
    assert operator_config(documents).keda is None
    assert "keda" not in yaml.safe_dump_all(documents)


def test_a_list_of_namespaces_needs_no_cluster_wide_right() -> None:
    documents = render("--set=watch.namespaces={a,b}")
    assert of_kind(documents, "ClusterRole") == of_kind(documents, "ClusterRoleBinding") == []
    assert sorted(role["metadata"]["namespace"] for role in of_kind(documents, "Role")) == ["a", "b", "kvik-system"]
    (cluster_role,) = of_kind(render(), "ClusterRole")
    role = next(role for role in of_kind(documents, "Role") if role["metadata"]["namespace"] == "a")
    assert role["rules"] == cluster_role["rules"]


def test_names_that_look_like_numbers_stay_names() -> None:
    documents = render("--set-string=watch.namespaces={123}", "--namespace=0", release="7")
    metadata = [document["metadata"] for document in documents]
    assert {item["namespace"] for item in metadata if "namespace" in item} == {"0", "123"}
    assert {item["labels"]["app.kubernetes.io/instance"] for item in metadata} == {"7"}
    subjects = [subject for document in of_kind(documents, "RoleBinding") for subject in document["subjects"]]
    assert {subject["namespace"] for subject in subjects} == {"0"}
    settings = operator_config(documents)
    assert (settings.namespaces, settings.lease_namespace, settings.lease_name) == (("123",), "0", "7-operator")
    peer = settings.reconcile.network_policy.operator_peer
    assert peer is not None
    assert peer["podSelector"]["matchLabels"]["app.kubernetes.io/instance"] == "7"


def test_the_operators_pod_satisfies_the_restricted_standard() -> None:
    (deployment,) = of_kind(render(), "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    security = container(deployment)["securityContext"]
    assert security == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_two_operators_get_a_disruption_budget() -> None:
    assert of_kind(render(), "PodDisruptionBudget") == []
    assert len(of_kind(render("--set=operator.replicas=2"), "PodDisruptionBudget")) == 1


POLICY = "ValidatingAdmissionPolicy"


def test_admission_policies_are_off_until_asked_for() -> None:
    assert of_kind(render(), POLICY) == of_kind(render(), f"{POLICY}Binding") == []


@pytest.mark.parametrize(("value", "name"), [("pools", "7-operator-pools"), ("operator", "7-operator-own-writes")])
def test_each_admission_policy_has_a_switch_and_a_binding_that_denies(value: str, name: str) -> None:
    documents = render(f"--set=admissionPolicy.{value}.enabled=true", release="7")
    (policy,), (binding,) = of_kind(documents, POLICY), of_kind(documents, f"{POLICY}Binding")
    assert policy["metadata"]["name"] == binding["spec"]["policyName"] == name
    assert policy["spec"]["failurePolicy"] == "Fail"
    assert binding["spec"]["validationActions"] == ["Deny"]


def test_the_policy_of_pools_says_only_what_was_asked_for_where_pools_are_served() -> None:
    on = "--set=admissionPolicy.pools.enabled=true"
    (policy,) = of_kind(render(on), POLICY)
    (only,) = policy["spec"]["validations"]
    assert only["expression"] == "variables.replicas <= 1000"
    documents = render(on, "--set=admissionPolicy.pools.allowedDevices={CPU}", "--set-string=watch.namespaces={123}")
    (policy,), (binding,) = of_kind(documents, POLICY), of_kind(documents, f"{POLICY}Binding")
    assert len(policy["spec"]["validations"]) == 2
    (expression,) = binding["spec"]["matchResources"]["namespaceSelector"]["matchExpressions"]
    assert expression == {"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["123"]}


def test_the_policy_of_the_operator_is_about_its_own_service_account() -> None:
    (policy,) = of_kind(render("--set=admissionPolicy.operator.enabled=true"), POLICY)
    (condition,) = policy["spec"]["matchConditions"]
    assert condition["expression"] == 'request.userInfo.username == "system:serviceaccount:kvik-system:kvik-operator"'


@pytest.mark.parametrize(
    ("value", "where"),
    [
        ("image.operator.repository=", "/image/operator/repository"),
        ("image.pullPolicy=Sometimes", "/image/pullPolicy"),
        ("operator.replicas=-1", "/operator/replicas"),
        ("operator.loglevel=debug", "/operator"),
        ("watch.namespaces={A}", "/watch/namespaces/0"),
        ("networkPolicy.apiFrom={x}", "/networkPolicy/apiFrom/0"),
        ("networkPolicy.egress=Closed", "/networkPolicy/egress"),
        ("networkPolicy.egress=Restricted,networkPolicy.enabled=false", "need networkPolicy.enabled"),
        ("networkPolicy.apiFrom[0].podSelector.a=b,networkPolicy.enabled=false", "need networkPolicy.enabled"),
        ("huggingFace.endpoint=ftp://x", "/huggingFace/endpoint"),
        ("metricsApi.custom.enabled=true", "metricsApi"),
        ("admissionPolicy.pools.allowedSources={http://x}", "/admissionPolicy/pools/allowedSources/0"),
        ("admissionPolicy.pools.allowedDevices={TPU}", "/admissionPolicy/pools/allowedDevices/0"),
        ("admissionPolicy.pools.allowedAccelerators={gpu}", "/admissionPolicy/pools/allowedAccelerators/0"),
        ("admissionPolicy.pools.maxReplicas=0", "/admissionPolicy/pools/maxReplicas"),
    ],
)
def test_a_wrong_value_is_refused_and_named(value: str, where: str) -> None:
    done = helm_template(f"--set={value}")
    assert done.returncode != 0
    assert where in done.stderr
