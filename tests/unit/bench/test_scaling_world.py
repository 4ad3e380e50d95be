"""The closed loop on which ways to scale are compared, and what ours keeps on its traces."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest

from bench.scaling.__main__ import POLICIES, kvik
from bench.scaling.calibration import Calibration
from bench.scaling.page import beaten_by, page, reaches_aim
from bench.scaling.pod import PodReport, Request
from bench.scaling.policies import Hpa, Stabilized
from bench.scaling.traces import constant, scenarios
from bench.scaling.world import Bounds, Outcome, PodView, Scenario, Span, run
from bench.scaling.yardstick import demo_pod

CPU = Calibration("two old cores", 0.0, prefill_tokens_per_second=489, step_seconds=0.0189, row_seconds=0.00191)
GPU = Calibration("made up", 0.0, prefill_tokens_per_second=30_000, step_seconds=0.008, row_seconds=0.0001)
DEMO_POD = demo_pod(CPU)
TRACES = {scenario.name: scenario for scenario in scenarios(CPU)}
QUIET = Scenario("quiet", "", [], 600.0, DEMO_POD, ttft_objective=2.0)


@dataclass
class Script:
    """Wants what it is told to, by time; keeps what it was shown."""

    steps: Sequence[tuple[float, int]] = ()
    shown: list[tuple[float, Sequence[PodView]]] = field(default_factory=list)

    def wants(self, now: float, pods: Sequence[PodView], current: int) -> int:
        self.shown.append((now, pods))
        return next((wanted for at, wanted in reversed(self.steps) if now >= at), current)


def busy(seconds: float = 600.0) -> list[Request]:
    return [Request(float(at), 100, 20) for at in range(int(seconds))]


def test_pod_hours_count_from_creation_to_the_end_of_a_drain() -> None:
    stream = replace(QUIET, requests=[Request(98.0, 100, 1000)])
    outcome = run(stream, Script([(0.0, 2), (100.0, 1)]))
    assert outcome.changes == 2
    without = run(QUIET, Script([(0.0, 2), (100.0, 1)]))
    assert without.pod_hours == pytest.approx((600 + 105) / 3600)
    assert outcome.pod_hours >= without.pod_hours


def test_the_bounds_hold_whatever_a_policy_wants() -> None:
    outcome = run(replace(QUIET, bounds=Bounds(2, 4), replicas=2), Script([(0.0, 100), (300.0, 0)]))
    assert [replicas for _, replicas in outcome.replicas] == [2, 4, 2]


def test_a_pod_that_starts_is_shown_without_a_report() -> None:
    script = Script([(0.0, 2)])
    run(QUIET, script)
    views = dict(script.shown)
    assert [(view.warm, view.report is None) for view in views[5.0]] == [(True, False), (False, True)]
    assert [view.warm for view in views[30.0]] == [True, True]


def test_an_outage_hides_all_pods_and_a_silent_pod_only_itself() -> None:
    script = Script()
    run(replace(QUIET, replicas=2, no_metrics=Span(100, 200), silent_pod=Span(300, 400)), script)
    readable = {now: [view.report is not None for view in views] for now, views in script.shown}
    assert (readable[95.0], readable[100.0], readable[200.0]) == ([True, True], [False, False], [True, True])
    assert readable[300.0] == [False, True]


def test_a_roll_replaces_every_pod_and_never_has_fewer_warm_ones_than_asked_for() -> None:
    script = Script()
    run(replace(QUIET, requests=busy(), replicas=3, roll=Span(60, 600)), script)
    assert all(sum(view.warm for view in views) >= 3 for _, views in script.shown)
    first, last = ({view.uid for view in script.shown[place][1]} for place in (0, -1))
    assert not first & last


def test_a_scale_down_in_the_middle_of_a_roll_leaves_no_pod_too_many() -> None:
    """It may take the last old pod while its successor starts."""
    script = Script([(65.0, 1)])
    run(replace(QUIET, requests=busy(), replicas=2, roll=Span(30, 600)), script)
    assert len(script.shown[-1][1]) == 1


def test_scaling_down_takes_pods_that_still_start_first() -> None:
    script = Script([(0.0, 3), (10.0, 1)])
    run(QUIET, script)
    assert [view.uid for view in script.shown[-1][1]] == ["pod-0"]


def test_a_request_that_is_refused_or_late_is_a_miss_and_one_in_time_is_not() -> None:
    flood = [Request(10.0, 100, 20) for _ in range(DEMO_POD.max_queued + DEMO_POD.max_requests + 50)]
    assert run(replace(QUIET, requests=[Request(10.0, 100, 20)]), Script()).slo_misses == 0
    outcome = run(replace(QUIET, requests=flood), Script())
    assert outcome.slo_misses > 50


@pytest.mark.parametrize("name", POLICIES)
def test_the_same_seed_gives_the_same_outcome(name: str) -> None:
    short = replace(TRACES["step"], requests=TRACES["step"].requests[:2000], seconds=900.0)
    assert run(short, POLICIES[name](short.bounds)) == run(short, POLICIES[name](short.bounds))


# --- what ours keeps (bounds with room; the page has the figures) ---

KEPT = {  # trace: most misses in per cent, most pod hours, fewest and most replicas, most changes of them
    "steady": (2, 3.0, (4, 4), 1),
    "step": (9, 3.0, (1, 8), 13),
    "ramp": (6, 3.0, (1, 8), 10),
    "long prompts": (12, 2.2, (1, 6), 7),
    "day curve": (3, 6.5, (1, 6), 12),
    "zero": (2, 1.5, (1, 3), 3),
    "burst": (24, 3.8, (1, 8), 22),
    "noisy queue": (32, 1.7, (2, 3), 3),
    "disconnecting clients": (11, 2.9, (1, 8), 13),
    "metrics outage": (2, 3.0, (4, 4), 1),
    "a silent pod on the way up": (6, 3.3, (2, 8), 10),
    "a silent pod on the way down": (2, 2.9, (2, 4), 3),
    "no rates": (6, 3.0, (2, 8), 12),
    "slow pod start": (20, 4.0, (1, 8), 11),
    "roll under load": (2, 2.4, (3, 3), 1),
    "mixed pod speeds": (10, 4.4, (4, 8), 8),
}


@pytest.mark.parametrize("name", TRACES)
def test_on_each_trace_ours_stays_within_its_bounds(name: str) -> None:
    outcome = ours(name)
    misses, pod_hours, (least, most), changes = KEPT[name]
    assert 100 * outcome.slo_misses / outcome.requests <= misses
    assert outcome.pod_hours <= pod_hours
    assert all(least <= replicas <= most for _, replicas in outcome.replicas)
    assert outcome.changes <= changes


@pytest.mark.parametrize("measured", [CPU, GPU], ids=["CPU", "GPU"])
@pytest.mark.parametrize("to_spare", [0, 1])
@pytest.mark.parametrize("worths", [0.5, 1.2, 2.2, 3.2, 3.8, 4.4])
def test_constant_load_changes_a_pool_once_at_the_most(worths: float, to_spare: int, measured: Calibration) -> None:
    """dynamo PR #9294. Whatever pods compute with, no number of them is tried in vain."""
    scenario = constant(measured, worths, math.ceil(worths) + to_spare)
    outcome = run(scenario, kvik(scenario.bounds))
    assert outcome.changes <= 1
    assert outcome.slo_misses <= 0.05 * outcome.requests


def test_an_outage_of_the_metrics_moves_nothing() -> None:
    """keda #3065."""
    during = [at for at, _ in ours("metrics outage").replicas if 600 <= at < 1200]
    assert during == []


def test_long_prompts_scale_up_within_a_minute_of_their_begin() -> None:
    """llm-d-autoscaling #662: the cache stands at a third."""
    first = next(at for at, replicas in ours("long prompts").replicas if replicas > 1)
    assert 600 <= first <= 660


def test_a_noisy_queue_moves_nothing() -> None:
    """llm-d-autoscaling #1427, #1044: a queue that comes and goes drove a pool to its maximum, and its pods away."""
    assert ours("noisy queue").changes == 0


def test_clients_that_left_keep_no_pool_up() -> None:
    """llm-d-autoscaling #769: with entries of clients that had left, a pool stayed saturated."""
    grown, last = max(n for _, n in ours("disconnecting clients").replicas), ours("disconnecting clients").replicas[-1]
    assert grown == 8
    assert last[1] <= 2


def test_a_pool_reaches_what_a_step_needs_within_a_minute() -> None:
    """KubeAI #229: from none to eight took two hours, one by one."""
    reached = next(at for at, replicas in ours("step").replicas if replicas >= 4)
    assert 600 <= reached <= 660


def ours(name: str) -> Outcome:
    scenario = TRACES[name]
    return run(scenario, kvik(scenario.bounds))


# --- HPA, as its replica calculator does it ---


def view(uid: str, kv: float | None, *, warm: bool = True) -> PodView:
    report = None if kv is None else PodReport(round(1000 * kv), 1000, 0, 0, 0, 0, None, None)
    return PodView(uid, warm, report)


def hpa_wants(current: int, *pods: PodView) -> int:
    return Hpa(lambda report: report.kv, 0.5, Stabilized(window=15.0)).wants(0.0, pods, current)


def test_hpa_follows_the_mean_beyond_its_tolerance() -> None:
    assert hpa_wants(2, view("a", 0.9), view("b", 0.7)) == 4
    assert hpa_wants(2, view("a", 0.54), view("b", 0.54)) == 2
    assert hpa_wants(4, *[view(str(n), 0.2) for n in range(4)]) == 2


def test_hpa_takes_a_missing_pod_as_idle_on_the_way_up_and_as_full_on_the_way_down() -> None:
    assert hpa_wants(2, view("a", 1.0), view("b", None)) == 2
    assert hpa_wants(2, view("a", 0.1), view("b", None)) == 2
    assert hpa_wants(4, view("a", 0.1), view("b", 0.1), view("c", 0.1), view("d", None)) == 2


def test_hpa_holds_without_any_value() -> None:
    assert hpa_wants(3, view("a", None), view("b", None), view("c", None)) == 3


# --- the page ---


def line(policy: str, misses: int, hours: float) -> dict[str, object]:
    return {
        "trace": "t",
        "what": "w",
        "policy": policy,
        "requests": 1000,
        "slo_misses": misses,
        "pod_hours": hours,
        "changes": 1,
        "replicas": [(0, 1)],
        "seconds": 60,
    }


def test_the_aim_needs_few_misses_and_few_pod_hours() -> None:
    assert reaches_aim([line("kvik", 14, 1.0), line("other", 10, 1.0)])
    assert not reaches_aim([line("kvik", 16, 1.0), line("other", 10, 1.0)])
    assert not reaches_aim([line("kvik", 10, 1.2), line("other", 10, 1.0)])
    assert reaches_aim([line("kvik", 10, 1.0), line("other", 500, 0.1)])


def test_only_who_is_better_in_one_and_not_worse_in_the_other_beats_ours() -> None:
    others = [line("fewer misses for more", 5, 2.0), line("equal", 10, 1.0), line("better", 10, 0.9)]
    assert beaten_by([line("kvik", 10, 1.0), *others]) == ["better"]


def test_the_page_shows_every_trace_and_policy() -> None:
    text = page([line("kvik", 10, 1.0), line("other", 100, 0.5)], CPU)
    assert "| t | 1.0 % | 10.0 % |" in text
    assert "| t | 1.00 | 0.50 |" in text
    assert "| t | w | 0: 1 | 1 | reached | nobody |" in text


def test_the_page_says_who_was_better_where_the_aim_is_missed() -> None:
    text = page([line("kvik", 100, 1.0), line("other", 10, 2.5)], CPU)
    assert "| **missed**: other had 1.0 % for 2.50 | nobody |" in text


def test_the_page_names_the_machine_and_what_was_measured_there() -> None:
    text = page([line("kvik", 10, 1.0)], CPU)
    assert "two old cores" in text
    assert "489 prompt tokens a second, and decode steps of 18.9 ms and 1.9 ms a row" in text
