"""docs/scaling.md: `kubectl kvik explain` computes the load of pods as the operator does, from the same `GET /load`."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvik_kubectl import load as plugin
from kvik_operator.autoscale import decide, windows
from kvik_operator.autoscale.load import MOST_FULL, pod_load, pool_load
from kvik_operator.autoscale.parse import parse_load
from kvik_operator.autoscale.types import PodSample, ScalePolicy
from kvik_operator.crd.effective import effective
from kvik_operator.reconcile.effective_status import effective_status
from tests.support.plugin_api import make_load
from tests.support.pools import spec_of

COUNTS = st.integers(0, 100_000)
FIGURES = st.fixed_dictionaries(
    {
        "state": st.sampled_from(["starting", "ready", "draining"]),
        "kv_blocks_used": COUNTS,
        "kv_blocks_total": COUNTS,
        "waiting": COUNTS,
        "waiting_prompt_tokens": COUNTS,
        "prefill_tokens_per_second": st.none() | st.floats(1e-3, 1e6),
        "warm_since": st.none() | st.just("2026-05-01T11:00:00Z"),
    }
)
CLASSES = st.sampled_from(["Interactive", "Balanced", "Batch"])


@given(figures=FIGURES, slo_class=CLASSES)
def test_the_terms_of_a_pod_are_the_operators(figures: dict[str, object], slo_class: str) -> None:
    full, policy = views(slo_class)
    told = make_load(**figures).body
    reading = parse_load(json.dumps(told).encode(), at=0.0)
    ours = plugin.PodLoad("pod", told["state"], told)
    expected = pod_load(reading, None, policy)
    assert plugin.terms(ours, full) == {str(term): pytest.approx(load) for term, load in expected.terms.items()}
    assert ours.warm == reading.warm


@given(drawn=st.lists(FIGURES, min_size=1, max_size=5), replicas=st.integers(1, 50), slo_class=CLASSES)
def test_the_sum_and_the_thresholds_are_the_operators(
    drawn: list[dict[str, object]], replicas: int, slo_class: str
) -> None:
    full, policy = views(slo_class)
    told = [make_load(**figures).body for figures in drawn]
    readings = [parse_load(json.dumps(load).encode(), at=0.0) for load in told]
    samples = [PodSample(str(n), True, (reading, reading)) for n, reading in enumerate(readings)]
    load = plugin.total([plugin.PodLoad("pod", each["state"], each) for each in told], full)
    assert load == pytest.approx(pool_load(samples, policy, 0.0).up)
    unbounded = replace(policy, max_replicas=10**9)
    assert decide.needed(full.least_load_for_more(replicas) * (1 + 1e-6), unbounded) == replicas + 1
    if replicas > 1:
        edge = full.most_load_for_fewer(replicas) / (1 - decide.DOWN_MARGIN)
        assert decide.needed(edge * (1 - 1e-6), unbounded) == replicas - 1


@given(st.integers(1, 1000))
def test_the_steps_and_constants_are_the_operators(replicas: int) -> None:
    full, policy = views("Balanced")
    shrink = windows.ShrinkLimit()
    shrink.note(0.0, replicas, policy.stabilization)
    assert full.step(replicas) == shrink.step()
    assert (plugin.MOST_FULL, plugin.DOWN_MARGIN) == (MOST_FULL, decide.DOWN_MARGIN)
    assert (plugin.GROWTH_SECONDS, plugin.SHRINK_PERIODS) == (windows.GROWTH_PERIOD_SECONDS, windows.SHRINK_PERIODS)


def views(slo_class: str) -> tuple[plugin.Full, ScalePolicy]:
    """What both make of one pool: the plugin of its status, the operator of its effective values."""
    values = effective(spec_of(slo={"class": slo_class}, scaling={"maxReplicas": 8}), "chat")
    assert values.scaling is not None
    full = plugin.Full.of({"status": {"effective": effective_status(values)}})
    assert full is not None
    policy = ScalePolicy.of(values.scaling)
    assert (full.least, full.most, full.window) == (policy.min_replicas, policy.max_replicas, policy.stabilization)
    return full, policy
