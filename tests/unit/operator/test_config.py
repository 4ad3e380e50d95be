"""The operator's flags and variables: what wins, and which mistakes are named."""

import pytest

from kvik_operator.config import ConfigError, OperatorConfig, parse
from kvik_operator.objects.scaled_object import KedaTrigger

IMAGES = ["--engine-image-gpu=kvik/engine:1", "--engine-image-cpu=kvik/engine:1-cpu"]


def config(*flags: str, **environ: str) -> OperatorConfig:
    return parse([*IMAGES, *flags], environ)


def test_images_are_required_and_everything_else_has_a_default() -> None:
    got = config()
    assert (got.reconcile.images.gpu, got.reconcile.images.cpu) == ("kvik/engine:1", "kvik/engine:1-cpu")
    assert (got.namespaces, got.probe_port, got.lease_namespace) == ((), 8080, "kvik-system")
    assert (got.relist_period, got.deaf_after, got.watch_inactivity) == (60.0, 30.0, 70.0)
    assert got.feed_down_after == 120.0
    with pytest.raises(ConfigError, match="--engine-image-gpu is required"):
        parse([], {})


def test_a_flag_wins_over_the_environment_and_that_over_the_default() -> None:
    assert config(KVIK_OPERATOR_WORKERS="3").workers == 3
    assert config("--workers=5", KVIK_OPERATOR_WORKERS="3").workers == 5
    assert config(KVIK_OPERATOR_LOG_LEVEL="debug").log_level == "debug"


def test_namespaces_are_a_repeated_flag_or_a_list_in_the_environment() -> None:
    assert config("--watch-namespace=b", "--watch-namespace=a").namespaces == ("a", "b")
    assert config(KVIK_OPERATOR_WATCH_NAMESPACE="a,b").namespaces == ("a", "b")


def test_the_metrics_apis_are_off_unless_asked_for() -> None:
    assert config().metrics_api is None
    served = config("--metrics-api=custom-and-external", "--metrics-api-port=9443", "--lease-namespace=ns").metrics_api
    assert served is not None
    assert (served.groups, served.port, served.namespace) == (
        ("custom.metrics.k8s.io", "external.metrics.k8s.io"),
        9443,
        "ns",
    )
    assert (served.service, served.secret) == ("kvik-operator", "kvik-operator-metrics-api")
    assert served.backend.api_services == (
        "v1beta2.custom.metrics.k8s.io",
        "v1beta1.custom.metrics.k8s.io",
        "v1beta1.external.metrics.k8s.io",
    )
    with pytest.raises(ConfigError, match="KVIK_OPERATOR_METRICS_API: 'all' is none of off, custom"):
        config(KVIK_OPERATOR_METRICS_API="all")


def test_there_is_no_scaler_for_keda_unless_asked_for() -> None:
    assert (config().keda, config().reconcile.keda) == (None, None)
    served = config("--keda=on", "--lease-namespace=ns", "--keda-service=scaler", "--keda-authentication=a").reconcile
    assert served.keda == KedaTrigger("scaler.ns.svc:9443", "a")
    with pytest.raises(ConfigError, match="--keda-port must be above 0"):
        config("--keda=on", "--keda-port=0")


def test_the_network_policy_is_handed_through_from_the_chart() -> None:
    peer = '{"podSelector": {}}'
    got = config(f'--network-policy={{"apiFrom": [{peer}], "operatorPeer": {peer}}}').reconcile.network_policy
    assert got.enabled
    assert got.api_from == ({"podSelector": {}},)
    assert got.metrics_from == ()
    assert got.operator_peer == {"podSelector": {}}
    assert got.egress == "Open"
    assert not config('--network-policy={"enabled": false}').reconcile.network_policy.enabled
    assert config('--network-policy={"egress": "Restricted"}').reconcile.network_policy.egress == "Restricted"


@pytest.mark.parametrize(
    ("flags", "environ", "named"),
    [
        (["--network-policy=no"], {}, "--network-policy: not JSON"),
        (['--network-policy={"allow": []}'], {}, "allow is not known"),
        (['--network-policy={"apiFrom": {}}'], {}, "apiFrom must be a list"),
        (['--network-policy={"egress": "Closed"}'], {}, "egress must be Open or Restricted"),
        (
            ['--network-policy={"enabled": false, "apiFrom": [{}], "egress": "Restricted"}'],
            {},
            "apiFrom, egress would restrict nothing",
        ),
        (['--network-policy={"enabled": false, "metricsFrom": [{}]}'], {}, "metricsFrom would restrict nothing"),
        (["--workers=0"], {}, "--workers must be above 0"),
        (["--relist-period=nan"], {}, "--relist-period must be above 0, and finite"),
        (["--request-timeout=inf"], {}, "--request-timeout must be above 0, and finite"),
        ([], {"KVIK_OPERATOR_DEAF_AFTER": "-inf"}, "--deaf-after must be above 0, and finite"),
        (["--feed-down-after=0"], {}, "--feed-down-after must be above 0, and finite"),
        ([], {"KVIK_OPERATOR_WORKERS": "many"}, "KVIK_OPERATOR_WORKERS: 'many' is not a number"),
        ([], {"KVIK_OPERATOR_IMAGE_PULL_POLICY": "Sometimes"}, "none of Always, IfNotPresent, Never"),
    ],
)
def test_a_mistake_is_named(flags: list[str], environ: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        config(*flags, **environ)


def test_the_identity_differs_between_two_processes_of_one_pod() -> None:
    one, two = (config("--pod-name=kvik-0").identity for _ in range(2))
    assert one != two
    assert one.startswith("kvik-0_")
