"""From the results' lines to the page that compares ways to scale."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.scaling.calibration import Calibration
from bench.scaling.yardstick import MISSES_OF_A_PODS_WORTH

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "bench/results/scaling.jsonl"
PAGE = ROOT / "docs/scaling-compared.md"
PICTURE = ROOT / "docs/scaling-compared.svg"
OURS = "kvik"
LEVEL = 0.005
"""Fraction of all requests: policies whose misses differ by less are level."""
AT_MOST = 1.1
"""Of the pod hours of the policy with the fewest misses."""

Line = Mapping[str, Any]


def page(lines: Sequence[Line], measured: Calibration) -> str:
    """Two tables (misses, pod hours), then for each trace what our pool did."""
    traces: dict[str, list[Line]] = {}
    for line in lines:
        traces.setdefault(line["trace"], []).append(line)
    return "\n".join([_head(measured), *_misses(traces), *_pod_hours(traces), *_verdicts(traces)]) + "\n"


def beaten_by(trace: Sequence[Line]) -> list[str]:
    """Policies that had as few misses or fewer with as few pod hours or fewer than ours, and one of them fewer."""
    ours = _ours(trace)
    mine = (ours["slo_misses"], ours["pod_hours"])
    return [
        line["policy"]
        for line in trace
        if line["slo_misses"] <= mine[0]
        and line["pod_hours"] <= mine[1]
        and (line["slo_misses"], line["pod_hours"]) != mine
    ]


def reaches_aim(trace: Sequence[Line]) -> bool:
    """Best or level on misses, for at most AT_MOST of the pod hours that the best one took."""
    ours, best = _ours(trace), _best(trace)
    level = ours["slo_misses"] - best["slo_misses"] <= LEVEL * ours["requests"]
    return bool(level and ours["pod_hours"] <= AT_MOST * best["pod_hours"])


def _best(trace: Sequence[Line]) -> Line:
    """The fewest misses, of several the one with the fewest pod hours."""
    return min(trace, key=lambda line: (line["slo_misses"], line["pod_hours"]))


def _ours(trace: Sequence[Line]) -> Line:
    return next(line for line in trace if line["policy"] == OURS)


def _head(measured: Calibration) -> str:
    return _HEAD.format(
        machine=measured.machine,
        load=measured.load_average,
        prefill=measured.prefill_tokens_per_second,
        step=1000 * measured.step_seconds,
        row=1000 * measured.row_seconds,
        worth=100 * MISSES_OF_A_PODS_WORTH,
    )


_HEAD = """\
# Scaling, compared

The operator's own deciders against Kubernetes' HPA on one metric and against the published formulas of others, in a
simulator: at most eight pods behind a Service that picks one at random. `make scaling-report` makes this page; it is
seeded, so the same code gives the same figures. How each policy was read, and what was assumed, is in
[decision 91](decisions/0091-how-scaling-is-compared.md). No pod of a real cluster was scaled for it.

A simulated pod is as fast as the real engine was with the embedded model in one thread of {machine}, at a load
average of {load:g}: {prefill:,.0f} prompt tokens a second, and decode steps of {step:.1f} ms and {row:.1f} ms a row.
`python -m bench.scaling.calibrate` measures that again, into `bench/results/pod_calibration.json`.

Traces are stated by what one such pod can serve, so on another machine they stay what they are. Numbers in their
descriptions are *pods' worths*: one is the rate at which a pod alone misses {worth:g} % of its requests, which is what
pools of the class Balanced may. Lengths are parts of what a pod computes or decodes within the objective of two
seconds. Why so is in [decision 94](decisions/0094-traces-by-what-a-pod-serves.md).

A *miss* is a request whose first token came later than two seconds, or never. *Pod hours* count from a pod's creation
to its end, start and drain included. Few of one cost many of the other, so both tables belong together.

![Misses against pod hours, one panel a trace and one dot a policy](scaling-compared.svg)
"""


def _table(traces: Mapping[str, Sequence[Line]], figure: str) -> Iterator[str]:
    names = [line["policy"] for line in next(iter(traces.values()))]
    yield f"| Trace | {' | '.join(names)} |"
    yield "|---" * (len(names) + 1) + "|"
    for name, trace in traces.items():
        yield f"| {name} | {' | '.join(_figure(line, figure) for line in trace)} |"
    yield ""


def _figure(line: Line, figure: str) -> str:
    if figure == "slo_misses":
        return f"{100 * line['slo_misses'] / line['requests']:.1f} %"
    return f"{line['pod_hours']:.2f}"


def _misses(traces: Mapping[str, Sequence[Line]]) -> Iterator[str]:
    yield "## Misses"
    yield ""
    yield from _table(traces, "slo_misses")


def _pod_hours(traces: Mapping[str, Sequence[Line]]) -> Iterator[str]:
    yield "## Pod hours"
    yield ""
    yield from _table(traces, "pod_hours")


def _verdicts(traces: Mapping[str, Sequence[Line]]) -> Iterator[str]:
    yield "## What ours did"
    yield ""
    yield f"*Aim*: the fewest misses, or within {100 * LEVEL:g} % of all requests of them, for at most {AT_MOST:g}"
    yield "times the pod hours of the policy that had them. *Beaten by*: who was better in one and no worse"
    yield "in the other."
    yield ""
    yield "| Trace | What comes | Replicas (minute: number) | Changes | Aim | Beaten by |"
    yield "|---|---|---|---|---|---|"
    for name, trace in traces.items():
        ours = _ours(trace)
        path = ", ".join(f"{at / 60:.0f}: {replicas}" for at, replicas in ours["replicas"])
        beaten = ", ".join(beaten_by(trace)) or "nobody"
        yield f"| {name} | {ours['what']} | {path} | {ours['changes']} | {_aim(trace)} | {beaten} |"


def _aim(trace: Sequence[Line]) -> str:
    if reaches_aim(trace):
        return "reached"
    best = _best(trace)
    return f"**missed**: {best['policy']} had {_figure(best, 'slo_misses')} for {_figure(best, 'pod_hours')}"
