"""The load of a pod and of a pool, from readings. Pure.

    load_p = max(kv_p / kvFull, waiting_p / queueFull, predictedTTFT_p / ttft)

KV utilisation alone is not enough: with long prompts the queue explodes at 30 % KV (llm-d-autoscaling #662).
predictedTTFT = waiting prompt tokens / measured prefill tokens per second: it leads, the measured P90 lags.
Requests that were refused because the queue was full count as waiting: a full queue must not look like a short one.
"""

from collections.abc import Sequence

from kvik_operator.autoscale.types import EngineState, LoadReading, PodLoad, PodSample, PoolLoad, ScalePolicy, Term

FRESH_SECONDS = 15.0
"""Three readings of 5 s; older data is no data."""
MOST_FULL = 1000.0
"""In full pods. No pool may have more pods, so nothing follows from a larger load; an engine can claim any."""


def pod_load(reading: LoadReading, before: LoadReading | None, policy: ScalePolicy) -> PodLoad:
    """`before` is the reading before this one, for the growth of its counter of refusals."""
    terms: dict[Term, float] = {}
    if reading.kv_blocks_total > 0:
        terms[Term.KV] = reading.kv_blocks_used / reading.kv_blocks_total / policy.kv_full
    terms[Term.QUEUE] = (reading.waiting + _refused_since(reading, before)) / policy.queue_full
    if policy.ttft_full is not None:
        predicted = predicted_ttft(reading)
        if predicted is not None:
            terms[Term.TTFT] = predicted / policy.ttft_full
    return PodLoad({term: min(load, MOST_FULL) for term, load in terms.items()})


def predicted_ttft(reading: LoadReading) -> float | None:
    """Seconds until a prompt that arrives now would be computed; None: no prefill rate was measured yet."""
    if reading.waiting_prompt_tokens == 0:
        return 0.0
    rate = reading.prefill_tokens_per_second
    return reading.waiting_prompt_tokens / rate if rate else None


def pool_load(pods: Sequence[PodSample], policy: ScalePolicy, now: float) -> PoolLoad:
    """A new pod that still starts, and one that drains, carries no load and hides none.

    One that begins anew, because its core was restarted, counts as silent: its share lies on the others meanwhile.
    """
    up = down = 0.0
    fresh = silent = 0
    by_term: dict[Term, float] = {}
    for pod in pods:
        latest, earlier = _last_two(pod, policy)
        if not speaks(pod, now):
            if pod.expected:
                silent += 1
                down += policy.target
        elif latest is not None:
            fresh += 1
            up += min(latest.value, earlier.value) if earlier is not None else 0.0
            down += max(latest.value, earlier.value) if earlier is not None else latest.value
            by_term[latest.winner] = by_term.get(latest.winner, 0.0) + latest.value
    winner = max(by_term, key=lambda term: by_term[term], default=Term.KV)
    return PoolLoad(up, down, fresh, silent, winner)


def speaks(pod: PodSample, now: float) -> bool:
    """Whether its last reading is fresh and says something about its load, were it none."""
    reading = pod.readings[0] if pod.readings else None
    if reading is None or now - reading.at > FRESH_SECONDS:
        return False
    return reading.warm or reading.state is EngineState.DRAINING


def _last_two(pod: PodSample, policy: ScalePolicy) -> tuple[PodLoad | None, PodLoad | None]:
    """The loads of the last reading and of the one before it; None: not warm then, or too far apart."""
    readings = (*pod.readings, None, None, None)
    latest, previous, before = readings[0], readings[1], readings[2]
    if latest is None or not latest.warm:
        return None, None
    if previous is None or not previous.warm or latest.at - previous.at > FRESH_SECONDS:
        return pod_load(latest, previous, policy), None
    return pod_load(latest, previous, policy), pod_load(previous, before, policy)


def _refused_since(reading: LoadReading, before: LoadReading | None) -> int:
    if before is None:
        return 0
    growth = reading.refused_total - before.refused_total
    return growth if growth >= 0 else reading.refused_total  # the counter started again with the process
