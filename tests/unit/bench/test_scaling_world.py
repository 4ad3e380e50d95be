"""The closed loop on which ways to scale are compared, and what ours keeps on its traces."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest

from bench.scaling.__main__ import POLICIES, kvik
from bench.scaling.page import beaten_by, page, reaches_aim
from bench.scaling.pod import PodReport, Request
from bench.scaling.policies import Hpa, Stabilized
from bench.scaling.traces import DEMO_POD, scenarios
from bench.scaling.world import Bounds, Outcome, PodView, Scenario, Span, run

TRACES = {scenario.name: scenario for scenario in scenarios()}
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

KEPT = {  # trace: most misses in per cent, most pod hours, most changes of replicas
    "steady": (5, 3.5, 13),
    "step": (11, 3.0, 12),
    "ramp": (6, 3.2, 10),
    "burst": (25, 3.7, 20),
    "long prompts": (25, 3.5, 8),
    "day curve": (5, 7.5, 28),
    "zero": (4, 1.4, 3),
    "noisy queue": (40, 1.6, 4),
    "disconnecting clients": (10, 2.8, 13),
    "metrics outage": (4, 3.0, 4),
    "a silent pod on the way up": (7, 3.3, 10),
    "a silent pod on the way down": (3, 2.5, 4),
    "slow pod start": (22, 4.2, 12),
    "roll under load": (4, 2.5, 4),
    "mixed pod speeds": (10, 4.8, 12),
}


@pytest.mark.parametrize("name", TRACES)
def test_on_each_trace_ours_stays_within_its_bounds(name: str) -> None:
    outcome = ours(name)
    misses, pod_hours, changes = KEPT[name]
    assert 100 * outcome.slo_misses / outcome.requests <= misses
    assert outcome.pod_hours <= pod_hours
    assert outcome.changes <= changes


def test_an_outage_of_the_metrics_moves_nothing() -> None:
    """keda #3065."""
    during = [at for at, _ in ours("metrics outage").replicas if 600 <= at < 1200]
    assert during == []


def test_long_prompts_scale_up_within_a_minute_of_their_begin() -> None:
    """llm-d-autoscaling #662: the cache stands at a third."""
    first = next(at for at, replicas in ours("long prompts").replicas if replicas > 1)
    assert 600 <= first <= 660


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
    text = page([line("kvik", 10, 1.0), line("other", 100, 0.5)])
    assert "| t | 1.0 % | 10.0 % |" in text
    assert "| t | 1.00 | 0.50 |" in text
    assert "| t | w | 0: 1 | reached | nobody |" in text
