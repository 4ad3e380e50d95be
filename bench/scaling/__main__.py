"""Compares ways to decide on replicas, on all traces: `make scaling-report`; `--only TRACE ...` prints some.

One JSON line for each trace and policy goes into bench/results/scaling.jsonl, and the page docs/scaling-compared.md and
its picture are made from them. Seeded, without a clock: the same code and calibration give the same page.
"""

import argparse
import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from bench.scaling.calibration import read
from bench.scaling.page import PAGE, PICTURE, RESULTS, page
from bench.scaling.plot import picture
from bench.scaling.pod import PodReport
from bench.scaling.policies import (
    KV_FULL,
    QUEUE_FULL,
    AibrixKpa,
    Hpa,
    HpaOnTtft,
    Kthena,
    KubeAi,
    Kvik,
    Stabilized,
    Wva,
)
from bench.scaling.traces import TARGET, scenarios
from bench.scaling.world import Bounds, Policy, Scenario, run
from bench.scaling.yardstick import ROWS, TTFT_OBJECTIVE
from kvik_operator.autoscale.types import ScalePolicy


def kvik(bounds: Bounds) -> Kvik:
    """The class Balanced."""
    return Kvik(ScalePolicy(bounds.least, bounds.most, TARGET, KV_FULL, QUEUE_FULL, TTFT_OBJECTIVE, 300.0))


POLICIES: Final[Mapping[str, Callable[[Bounds], Policy]]] = {
    "kvik": kvik,
    "HPA on KV": lambda _: Hpa(_kv, TARGET * KV_FULL),
    "HPA on queue": lambda _: Hpa(_queue, TARGET * QUEUE_FULL),
    "HPA on mean TTFT": lambda _: HpaOnTtft(TTFT_OBJECTIVE / 2),
    "WVA": lambda _: Wva(),
    "production-stack": lambda _: Hpa(_active, 5.0, Stabilized(down_step=1, down_period=60.0)),
    "KubeAI": lambda _: KubeAi(TARGET * ROWS),
    "Kthena": lambda _: Kthena(((_kv, TARGET * KV_FULL), (_queue, TARGET * QUEUE_FULL))),
    "AIBrix KPA": lambda _: AibrixKpa(_kv, 0.5),
}


def _kv(report: PodReport) -> float:
    return report.kv


def _queue(report: PodReport) -> float:
    return float(report.waiting)


def _active(report: PodReport) -> float:
    return float(report.running + report.waiting)


def compared(scenario: Scenario) -> list[dict[str, Any]]:
    """A line for each policy."""
    lines = []
    for name, make in POLICIES.items():
        outcome = run(scenario, make(scenario.bounds))
        lines.append(
            {
                "trace": scenario.name,
                "what": scenario.what,
                "policy": name,
                "requests": outcome.requests,
                "slo_misses": outcome.slo_misses,
                "pod_hours": round(outcome.pod_hours, 3),
                "changes": outcome.changes,
                "replicas": [(round(at), replicas) for at, replicas in outcome.replicas],
                "seconds": scenario.seconds,
            }
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.scaling", description=__doc__)
    measured = read()
    every = {scenario.name: scenario for scenario in scenarios(measured)}
    parser.add_argument("--only", nargs="+", metavar="TRACE", choices=list(every), help="print these, write nothing")
    only = parser.parse_args().only
    lines = [line for name in only or every for line in compared(every[name])]
    for line in lines:
        share = 100 * line["slo_misses"] / line["requests"]
        print(
            f"{line['trace']:<28} {line['policy']:<17} {share:5.1f} % missed {line['pod_hours']:6.2f} pod hours "
            f"{line['changes']:>3} changes"
        )
    if only is None:
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text("".join(json.dumps(line) + "\n" for line in lines))
        PAGE.write_text(page(lines, measured))
        PICTURE.write_text(picture(lines))


if __name__ == "__main__":
    main()
