"""The operator's settings, from flags and `KVIK_OPERATOR_...` in the environment: built and checked once, passed down.

A flag wins over the environment, the environment over the default. The chart sets flags; JSON is used where a value is
a Kubernetes structure, so that the chart can hand it through as it is.
"""

import argparse
import json
import math
import os
import socket
import sys
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar, cast

from kvik_operator.keda.options import KedaOptions
from kvik_operator.metrics_api.documents import CUSTOM, EXTERNAL
from kvik_operator.metrics_api.service import MetricsApiOptions
from kvik_operator.reconcile.types import EngineImages, NetworkPolicyOptions, ReconcileOptions
from kvik_operator.watch.leader import LeaseTimes

_ENV_PREFIX: Final = "KVIK_OPERATOR_"
_METRICS_APIS: Final[Mapping[str, tuple[str, ...]]] = {
    "off": (),
    "custom": (CUSTOM,),
    "custom-and-external": (CUSTOM, EXTERNAL),
}
_Number = TypeVar("_Number", int, float)


@dataclass(frozen=True, slots=True)
class OperatorConfig:
    """Times are in seconds."""

    reconcile: ReconcileOptions
    namespaces: tuple[str, ...]
    """Where pools are served; empty: everywhere."""
    lease_namespace: str
    lease_name: str
    identity: str
    """Unique per process, also when a pod's container starts again."""
    lease_times: LeaseTimes
    probe_host: str
    probe_port: int
    workers: int
    """Pools that are reconciled at once."""
    relist_period: float
    deaf_after: float
    """How long an object may be newer on the server than in the store."""
    feed_down_after: float
    """How long nothing may be watched while the API server answers."""
    watch_inactivity: float
    request_timeout: float
    metrics_api: MetricsApiOptions | None
    """None: it is not served."""
    keda: KedaOptions | None
    """None: there is no scaler for KEDA."""
    log_level: str


class ConfigError(ValueError):
    """A flag or variable is wrong; the message names it."""


def parse(argv: Sequence[str], environ: Mapping[str, str]) -> OperatorConfig:
    """Raises ConfigError; prints and exits on --help or an unknown flag."""
    options = _parser(environ).parse_args(list(argv))
    keda = _keda(options)
    return OperatorConfig(
        reconcile=ReconcileOptions(
            images=EngineImages(gpu=_required(options, "engine_image_gpu"), cpu=_required(options, "engine_image_cpu")),
            image_pull_policy=cast(Literal["Always", "IfNotPresent", "Never"], options.image_pull_policy),
            network_policy=_network_policy(options.network_policy),
            hf_endpoint=options.hf_endpoint or None,
            metrics_api=bool(_METRICS_APIS[options.metrics_api]),
            keda=None if keda is None else keda.trigger,
        ),
        namespaces=_namespaces(options.watch_namespace, environ),
        lease_namespace=options.lease_namespace,
        lease_name=options.lease_name,
        identity=f"{options.pod_name or socket.gethostname()}_{uuid.uuid4().hex[:8]}",
        lease_times=LeaseTimes(),
        probe_host=options.probe_host,
        probe_port=options.probe_port,
        workers=_positive(options.workers, "--workers"),
        relist_period=_positive(options.relist_period, "--relist-period"),
        deaf_after=_positive(options.deaf_after, "--deaf-after"),
        feed_down_after=_positive(options.feed_down_after, "--feed-down-after"),
        watch_inactivity=_positive(options.watch_inactivity, "--watch-inactivity"),
        request_timeout=_positive(options.request_timeout, "--request-timeout"),
        metrics_api=_metrics_api(options),
        keda=keda,
        log_level=options.log_level,
    )


def _parser(environ: Mapping[str, str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="kvik-operator",
        description="Runs InferencePools (inferencepools.kvik.dev): pods, Services and scaling.",
        epilog=f"Each flag can also be set by {_ENV_PREFIX}NAME, as in {_ENV_PREFIX}LOG_LEVEL=debug; the flag wins.",
    )

    def flag(name: str, default: str | float, text: str, choices: Sequence[str] | None = None) -> None:
        variable = _ENV_PREFIX + name.replace("-", "_").upper()
        kind: type[Any] = type(default)
        raw = environ.get(variable)
        try:
            value = default if raw is None else kind(raw)
        except ValueError as error:
            raise ConfigError(f"{variable}: {raw!r} is not a number") from error
        if choices and value not in choices:
            raise ConfigError(f"{variable}: {raw!r} is none of {', '.join(choices)}")
        shown = "" if value == "" else " (default: %(default)s)"
        parser.add_argument(f"--{name}", default=value, type=kind, choices=choices, help=text + shown)

    flag("engine-image-gpu", "", "image of engine pods with resources.device GPU; required")
    flag("engine-image-cpu", "", "image of engine pods with resources.device CPU; required")
    flag("image-pull-policy", "IfNotPresent", "of engine pods", ("Always", "IfNotPresent", "Never"))
    flag("hf-endpoint", "", "base URL of a Hugging Face hub mirror for hf:// models")
    flag(
        "network-policy",
        "{}",
        'as JSON: {"enabled": true, "apiFrom": [], "metricsFrom": [], "operatorPeer": {}, "egress": "Open"}',
    )
    parser.add_argument("--watch-namespace", action="append", help="a namespace to serve, repeatable; none: all")
    flag("lease-namespace", "kvik-system", "namespace of the Lease by which replicas elect a leader")
    flag("lease-name", "kvik-operator", "name of that Lease")
    flag("pod-name", "", "name of this pod, in the Lease and in Events; empty: the host name")
    flag("probe-host", "0.0.0.0", "address of /live, /ready and /metrics")
    flag("probe-port", 8080, "port of /live, /ready and /metrics")
    flag("workers", 8, "pools that are reconciled at once")
    flag("relist-period", 60.0, "seconds between two checks of the watches against a metadata list")
    flag("deaf-after", 30.0, "seconds that an object may be newer on the server before the watch counts as deaf")
    flag("feed-down-after", 120.0, "seconds without watches, though the API server answers, before liveness fails")
    flag("watch-inactivity", 70.0, "seconds without event or bookmark after which a watch is opened anew")
    flag("request-timeout", 10.0, "seconds that a request to the API server may take")
    flag("metrics-api", "off", "metrics APIs that are served for HorizontalPodAutoscalers", tuple(_METRICS_APIS))
    flag("metrics-api-host", "0.0.0.0", "address of the metrics APIs")
    flag("metrics-api-port", 8443, "port of the metrics APIs")
    flag("metrics-api-service", "kvik-operator", "Service of that port, in the namespace of the Lease")
    flag("metrics-api-secret", "kvik-operator-metrics-api", "Secret there for its serving certificate")
    flag("keda", "off", "external scaler for KEDA", ("off", "on"))
    flag("keda-host", "0.0.0.0", "address of the scaler for KEDA")
    flag("keda-port", 9443, "port of the scaler for KEDA")
    flag("keda-service", "kvik-operator", "Service that leads there, in the namespace of the Lease")
    flag("keda-service-port", 9443, "port of that Service")
    flag("keda-secret", "kvik-operator-keda", "Secret there for the scaler's certificates")
    flag("keda-client-namespace", "keda", "where KEDA runs")
    flag("keda-client-secret", "kvik-operator-client", "Secret there for the certificate that KEDA presents")
    flag("keda-authentication", "kvik-operator", "ClusterTriggerAuthentication that points to that Secret")
    flag("log-level", "info", "least level that is logged", ("debug", "info", "warning", "error"))
    return parser


def from_process() -> OperatorConfig:
    """From this process's arguments and environment."""
    return parse(sys.argv[1:], os.environ)


def _required(options: argparse.Namespace, name: str) -> str:
    value: str = getattr(options, name)
    if not value:
        raise ConfigError(f"--{name.replace('_', '-')} is required")
    return value


def _positive(value: _Number, name: str) -> _Number:
    if not 0 < value < math.inf:  # nan is neither
        raise ConfigError(f"{name} must be above 0, and finite")
    return value


def _metrics_api(options: argparse.Namespace) -> MetricsApiOptions | None:
    groups = _METRICS_APIS[options.metrics_api]
    if not groups:
        return None
    return MetricsApiOptions(
        groups=groups,
        host=options.metrics_api_host,
        port=_positive(options.metrics_api_port, "--metrics-api-port"),
        service=options.metrics_api_service,
        secret=options.metrics_api_secret,
        namespace=options.lease_namespace,
    )


def _keda(options: argparse.Namespace) -> KedaOptions | None:
    if options.keda == "off":
        return None
    return KedaOptions(
        host=options.keda_host,
        port=_positive(options.keda_port, "--keda-port"),
        service=options.keda_service,
        service_port=_positive(options.keda_service_port, "--keda-service-port"),
        secret=options.keda_secret,
        namespace=options.lease_namespace,
        client_secret=options.keda_client_secret,
        client_namespace=options.keda_client_namespace,
        authentication=options.keda_authentication,
    )


def _namespaces(flags: Sequence[str] | None, environ: Mapping[str, str]) -> tuple[str, ...]:
    """The variable holds several, separated by commas."""
    names = flags if flags is not None else environ.get(f"{_ENV_PREFIX}WATCH_NAMESPACE", "").split(",")
    return tuple(sorted({name for name in names if name}))


def _network_policy(text: str) -> NetworkPolicyOptions:
    name, given = "--network-policy", _json(text or "{}", "--network-policy")
    if not isinstance(given, dict):
        raise ConfigError(f"{name} must be a JSON object")
    if unknown := set(given) - {"enabled", "apiFrom", "metricsFrom", "operatorPeer", "egress"}:
        raise ConfigError(f"{name}: {', '.join(sorted(unknown))} is not known")
    enabled, peer = given.get("enabled", True), given.get("operatorPeer") or None
    if not isinstance(enabled, bool) or not isinstance(peer, dict | None):
        raise ConfigError(f"{name}: enabled must be a boolean and operatorPeer an object")
    egress = given.get("egress", "Open")
    if egress not in ("Open", "Restricted"):
        raise ConfigError(f"{name}: egress must be Open or Restricted")
    restricting = [field for field in ("apiFrom", "metricsFrom") if given.get(field)]
    restricting += ["egress"] if egress == "Restricted" else []
    if restricting and not enabled:
        raise ConfigError(f"{name}: {', '.join(restricting)} would restrict nothing: enabled is false")
    return NetworkPolicyOptions(
        enabled=enabled,
        api_from=_peers(given.get("apiFrom"), f"{name}: apiFrom"),
        metrics_from=_peers(given.get("metricsFrom"), f"{name}: metricsFrom"),
        operator_peer=peer,
        egress=egress,
    )


def _peers(peers: object, name: str) -> tuple[Mapping[str, Any], ...]:
    """Null, as an empty chart value is printed, is none."""
    if peers is None:
        return ()
    if not isinstance(peers, list) or not all(isinstance(peer, dict) for peer in peers):
        raise ConfigError(f"{name} must be a list of objects")
    return tuple(peers)


def _json(text: str, name: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{name}: not JSON: {error}") from error
