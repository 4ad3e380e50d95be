"""Each alert fires when it must and is quiet when it must be, as promtool evaluates the chart's rule file."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvik_operator.names import ConditionType, Reason
from tests.support.alert_rules import RULES, alerts
from tests.support.prometheus import promtool

ROOT = Path(__file__).resolve().parents[2]
POOL = 'namespace="demo",pool="chat"'
POD = f'{POOL},pod="chat-1",model_name="chat"'

Series = dict[str, str]


@dataclass(frozen=True)
class Case:
    """`series` in promtool's notation, a value a minute; asked for after `minutes`."""

    alert: str
    when: str
    series: Series
    fires: bool
    minutes: int = 60
    labels: str = POOL

    def __str__(self) -> str:
        return f"{self.alert}-{'fires' if self.fires else 'is-quiet'}-{self.when.replace(' ', '-')}"


def of_class(name: str) -> Series:
    return {f'kvik_operator_pool_info{{{POOL},slo_class="{name}"}}': "1x400"}


def first_tokens(a_minute: int, in_time: int, refused: int = 0) -> Series:
    return {
        f"kvik_requests_with_slo_total{{{POD}}}": f"0+{a_minute}x400",
        f"kvik_requests_within_slo_total{{{POD}}}": f"0+{in_time}x400",
        f"kvik_requests_refused_total{{{POD}}}": f"0+{refused}x400",
    }


def condition(type_: ConditionType, status: str, reason: Reason, times: str = "1x400") -> Series:
    named = f'type="{type_}",status="{status}",reason="{reason}"'
    return {f"kvik_operator_pool_condition{{{POOL},{named}}}": times}


def ready(count: str) -> Series:
    return {f'kvik_operator_pool_replicas{{{POOL},state="ready"}}': count}


def engine(name: str, times: str) -> Series:
    return {f"kvik_{name}{{{POD}}}": times}


def kv_and_queue(utilization: str, waiting: str) -> Series:
    return engine("kv_cache_utilization", utilization) | engine("num_requests_waiting", waiting)


def preempted_and_ended(preempted: str, ended: str) -> Series:
    return {
        f'kvik_preemptions_total{{{POD},mode="recompute"}}': preempted,
        f'kvik_requests_total{{{POD},finish_reason="stop"}}': ended,
    }


def refused_and_ended(refused: str, ended: str) -> Series:
    return engine("requests_refused_total", refused) | {f'kvik_requests_total{{{POD},finish_reason="stop"}}': ended}


def start_of(model: int, warm: int) -> Series:
    return {
        f"kvik_operator_pool_startup_timeout_seconds{{{POOL}}}": "1800x400",
        f'kvik_operator_pool_startup_seconds{{{POOL},phase="modelFetched"}}': f"{model}x400",
        f'kvik_operator_pool_startup_seconds{{{POOL},phase="warm"}}': f"{warm}x400",
    }


def registered(times: str) -> Series:
    return {f"kvik_operator_metrics_api_registered{{{OF_API_SERVICE}}}": times}


def certificate_of(days: int) -> Series:
    """One that ends so many days after promtool's time begins."""
    return {f"kvik_operator_certificate_expiration_timestamp_seconds{{{OF_CERTIFICATE}}}": f"{days * 86400}x400"}


OF_API_SERVICE = 'api_service="v1beta2.custom.metrics.k8s.io"'
OF_CERTIFICATE = 'certificate="metrics-api"'
INTERACTIVE, BALANCED = of_class("Interactive"), of_class("Balanced")
OF_INTERACTIVE, OF_BALANCED = f'{POOL},slo_class="Interactive"', f'{POOL},slo_class="Balanced"'
FAST, SLOW = "KvikTTFTBudgetBurnsFast", "KvikTTFTBudgetBurnsSlowly"
SCALING, ROLLOUT, READY = ConditionType.SCALING_ACTIVE, ConditionType.ROLLOUT_COMPLETE, ConditionType.READY

CASES = [
    Case(FAST, "a third is late", INTERACTIVE | first_tokens(60, 40), True, labels=OF_INTERACTIVE),
    Case(FAST, "a third is refused", INTERACTIVE | first_tokens(40, 40, 20), True, labels=OF_INTERACTIVE),
    Case(FAST, "all are in time", INTERACTIVE | first_tokens(60, 60), False),
    Case(FAST, "a tenth is late", INTERACTIVE | first_tokens(60, 54), False),
    Case(FAST, "a third is late of a class that may miss more", BALANCED | first_tokens(60, 40), False),
    Case(FAST, "nobody asks", INTERACTIVE | first_tokens(0, 0), False),
    Case(
        FAST,
        "ten requests are late",
        INTERACTIVE | first_tokens(0, 0) | {f"kvik_requests_with_slo_total{{{POD}}}": "0x30 1+1x9 10x60"},
        False,
        minutes=41,
    ),
    Case(FAST, "it is over", INTERACTIVE | {
        f"kvik_requests_with_slo_total{{{POD}}}": "0+60x90",
        f"kvik_requests_within_slo_total{{{POD}}}": "0x40 0+60x50",
        f"kvik_requests_refused_total{{{POD}}}": "0x90",
    }, False, minutes=50),
    Case(SLOW, "a tenth is late for hours", INTERACTIVE | first_tokens(60, 54), True, 380, OF_INTERACTIVE),
    Case(SLOW, "a third is late of Balanced", BALANCED | first_tokens(60, 40), True, 380, OF_BALANCED),
    Case(SLOW, "one in fifty is late", INTERACTIVE | first_tokens(50, 49), False, 380),
    Case("KvikKVCacheSaturated", "requests wait for blocks", kv_and_queue("0.99x60", "3x60"), True, 20),
    Case("KvikKVCacheSaturated", "it is well used and nobody waits", kv_and_queue("0.99x60", "0x60"), False, 20),
    Case("KvikKVCacheSaturated", "the queue waits for compute", kv_and_queue("0.3x60", "40x60"), False, 20),
    Case("KvikQueueGrowing", "it grows", engine("num_requests_waiting", "5+3x60"), True, 40),
    Case("KvikQueueGrowing", "it is long and steady", engine("num_requests_waiting", "80x60"), False, 40),
    Case("KvikQueueGrowing", "it comes and goes", engine("num_requests_waiting", "0 9 " * 30), False, 40),
    Case("KvikQueueGrowing", "it shrinks", engine("num_requests_waiting", "90-2x40"), False, 40),
    Case("KvikRequestsRefused", "one in four", refused_and_ended("0+10x60", "0+30x60"), True, 20),
    Case("KvikRequestsRefused", "all", refused_and_ended("0+10x60", "0x60"), True, 20),
    Case("KvikRequestsRefused", "one in a hundred", refused_and_ended("0+1x60", "0+99x60"), False, 20),
    Case("KvikRequestsRefused", "none, and nothing comes", refused_and_ended("7x60", "9x60"), False, 20),
    Case("KvikPreemptionStorm", "each gives way once", preempted_and_ended("0+30x60", "0+30x60"), True, 20),
    Case("KvikPreemptionStorm", "none ends for all the giving way", preempted_and_ended("0+30x60", "0x60"), True, 20),
    Case("KvikPreemptionStorm", "one in twenty gives way", preempted_and_ended("0+5x60", "0+100x60"), False, 20),
    Case("KvikPreemptionStorm", "a rare one of few", preempted_and_ended("0+1x60", "0+1x60"), False, 20),
    Case("KvikNoLoadData", "pods are ready", condition(SCALING, "False", Reason.NO_LOAD_DATA) | ready("2x400"), True),
    Case("KvikNoLoadData", "none is ready", condition(SCALING, "False", Reason.NO_LOAD_DATA) | ready("0x400"), False),
    Case("KvikNoLoadData", "load is read", condition(SCALING, "True", Reason.SCALING_ON_LOAD) | ready("2x400"), False),
    Case("KvikEngineNotScraped", "no pod is", ready("2x60"), True),
    Case("KvikEngineNotScraped", "one of two pods is", ready("2x60") | engine("core_ready", "1x60"), True),
    Case("KvikEngineNotScraped", "all are", ready("1x60") | engine("core_ready", "1x60"), False),
    Case("KvikEngineNotScraped", "there is none", ready("0x60"), False),
    Case("KvikOperatorGone", "nobody has the lease", {'kvik_operator_leader{pod="a"}': "0x60"}, True, labels=""),
    Case("KvikOperatorGone", "nothing is scraped", {"up": "0x60"}, True, labels=""),
    Case(
        "KvikOperatorGone",
        "one of two leads",
        {'kvik_operator_leader{pod="a"}': "0x60", 'kvik_operator_leader{pod="b"}': "1x60"},
        False,
    ),
    Case(
        "KvikPoolNotReady",
        "its model is not there",
        condition(READY, "False", Reason.MODEL_NOT_FOUND),
        True,
        labels=f'{POOL},reason="{Reason.MODEL_NOT_FOUND}"',
    ),
    Case("KvikPoolNotReady", "it loads", condition(READY, "False", Reason.MODEL_LOADING), False),
    Case("KvikPoolNotReady", "it was stopped", condition(READY, "False", Reason.STOPPED), False),
    Case("KvikPoolNotReady", "it serves", condition(READY, "True", Reason.PODS_READY), False),
    Case("KvikRolloutStuck", "nothing moves", condition(ROLLOUT, "False", Reason.ROLLING_OUT) | ready("3x400"), True),
    Case(
        "KvikRolloutStuck",
        "the reason changes and nothing moves",
        condition(ROLLOUT, "False", Reason.ROLLING_OUT, "1x20 stale")
        | condition(ROLLOUT, "False", Reason.UNSCHEDULABLE, "_x21 1x60")
        | ready("3x400"),
        True,
    ),
    Case(
        "KvikRolloutStuck",
        "a pod comes every few minutes",
        condition(ROLLOUT, "False", Reason.ROLLING_OUT) | ready("3 3 3 4 4 4 " * 20),
        False,
    ),
    Case("KvikRolloutStuck", "it is done", condition(ROLLOUT, "True", Reason.ROLLOUT_COMPLETE) | ready("3x400"), False),
    Case("KvikSlowStart", "it takes more than half of the time", start_of(700, 300), True),
    Case("KvikSlowStart", "it takes a minute", start_of(30, 30), False),
    Case("KvikScalingContested", "somebody else scales", condition(SCALING, "False", Reason.CONTESTED), True),
    Case("KvikScalingContested", "nobody does", condition(SCALING, "True", Reason.SCALING_ON_LOAD), False),
    *(
        Case(
            "KvikAutoscalerFailed",
            f"of {reason}",
            condition(SCALING, "False", reason),
            True,
            labels=f'{POOL},reason="{reason}"',
        )
        for reason in (Reason.AUTOSCALER_FAILED, Reason.METRICS_API_OFF, Reason.KEDA_OFF, Reason.KEDA_NOT_SERVED)
    ),
    Case("KvikAutoscalerFailed", "it scales", condition(SCALING, "True", Reason.SCALING_ON_LOAD), False),
    Case("KvikAutoscalerFailed", "it is switched", condition(SCALING, "False", Reason.SWITCHING_DRIVER), False),
    Case("KvikAutoscalerFailed", "it was", condition(SCALING, "False", Reason.AUTOSCALER_FAILED, "1x4 stale"), False),
    Case("KvikMetricsAPINotRegistered", "it is somebody else's", registered("0x60"), True, labels=OF_API_SERVICE),
    Case("KvikMetricsAPINotRegistered", "it is ours", registered("1x60"), False),
    Case("KvikMetricsAPINotRegistered", "the leader has just begun", registered("0x3 1x60"), False, 4),
    Case("KvikMetricsAPINotRegistered", "the API is off", {"up": "1x60"}, False),
    Case("KvikCertificateEnds", "nobody renews it", certificate_of(days=19), True, labels=OF_CERTIFICATE),
    Case("KvikCertificateEnds", "it is to be renewed", certificate_of(days=29), False),
    Case("KvikAPIKeysOutdated", "the file is broken", engine("api_keys_outdated", "1x60"), True),
    Case("KvikAPIKeysOutdated", "it was for a moment", engine("api_keys_outdated", "0x10 1x3 0x60"), False, 12),
    Case("KvikAPIKeysOutdated", "all is well", engine("api_keys_outdated", "0x60"), False),
]  # fmt: skip


def test_the_rule_file_is_one_by_itself() -> None:
    done = promtool("check", "rules", RULES)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("fires", [True, False], ids=["fires-when-it-must", "is-quiet-when-it-must-be"])
def test_each_alert(fires: bool, tmp_path: Path) -> None:
    """One run of promtool for all cases, which names those that fail."""
    tests = [promtool_test(case) for case in CASES if case.fires is fires]
    file = {"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests}
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(file))
    done = promtool("test", "rules", tmp_path / "test.yaml")
    assert done.returncode == 0, done.stdout + done.stderr


def promtool_test(case: Case) -> dict[str, Any]:
    severity = alerts()[case.alert]["labels"]["severity"]
    labels = f'alertname="{case.alert}",alertstate="firing",severity="{severity}"'
    firing = {"labels": f"ALERTS{{{labels}{',' if case.labels else ''}{case.labels}}}", "value": 1}
    asked = {
        "expr": f'ALERTS{{alertname="{case.alert}",alertstate="firing"}}',
        "eval_time": f"{case.minutes}m",
        "exp_samples": [firing] if case.fires else [],
    }
    inputs = [{"series": name, "values": values} for name, values in case.series.items()]
    return {"name": str(case), "interval": "1m", "input_series": inputs, "promql_expr_test": [asked]}


def test_every_alert_is_tried_both_ways() -> None:
    assert {case.alert for case in CASES if case.fires} == set(alerts()) == {c.alert for c in CASES if not c.fires}


def test_every_alert_names_what_to_do_about_it() -> None:
    page = (ROOT / "docs" / "monitoring.md").read_text()
    anchors = {f"docs/monitoring.md#{heading.lower()}" for heading in re.findall(r"^#+ (\w+)$", page, re.MULTILINE)}
    for name, rule in alerts().items():
        assert rule["annotations"]["runbook"] == f"docs/monitoring.md#{name.lower()}"
        assert rule["annotations"]["runbook"] in anchors
