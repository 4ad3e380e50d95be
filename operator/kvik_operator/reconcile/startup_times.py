"""Where the start of the slowest ready pod spent its time. Pure."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from itertools import pairwise

from kvik_operator.crd.conditions import parse_timestamp
from kvik_operator.names import CONTAINER_ENGINE, CONTAINER_MODEL
from kvik_operator.reconcile.pod_state import container_status, pod_condition
from kvik_operator.reconcile.types import EngineInfo, Object

Times = list[tuple[str, datetime]]


def slowest_start(
    pods: Sequence[Object], infos: Mapping[str, EngineInfo], startup_timeout: timedelta
) -> dict[str, str] | None:
    """`pods` are ready ones, `infos` by pod uid. None until one of them has told its times.

    A pod whose engine took longer than the start-up time-out has restarted its core since: its times tell of no start.
    """
    phases = [
        durations
        for pod in pods
        if (info := infos.get(pod["metadata"].get("uid", ""))) is not None
        and (durations := _durations(_times(pod, info))) is not None
        and durations.get("weightsLoaded", timedelta()) <= startup_timeout
    ]
    if not phases:
        return None
    slowest = max(phases, key=lambda durations: sum(durations.values(), timedelta()))
    return {name: f"{max(0, round(value.total_seconds()))}s" for name, value in slowest.items()}


def _times(pod: Object, info: EngineInfo) -> Times:
    """The end of each phase that happened, in order; the first entry is the pod's creation."""
    times: list[tuple[str, datetime | None]] = [("created", _parse(pod["metadata"].get("creationTimestamp")))]
    scheduled = pod_condition(pod, "PodScheduled")
    times.append(("scheduled", _parse((scheduled or {}).get("lastTransitionTime"))))
    model, engine = container_status(pod, CONTAINER_MODEL), container_status(pod, CONTAINER_ENGINE)
    engine_started = _parse((((engine or {}).get("state") or {}).get("running") or {}).get("startedAt"))
    fetch = ((model or {}).get("state") or {}).get("terminated") or {}
    times.append(("imagePulled", _parse(fetch.get("startedAt")) or engine_started))
    times.append(("modelFetched", _parse(fetch.get("finishedAt"))))
    for name, key in (("weightsLoaded", "weights_loaded"), ("compiled", "compiled"), ("warm", "warm")):
        times.append((name, info.startup.get(key)))
    return [(name, time) for name, time in times if time is not None]


def _durations(times: Times) -> dict[str, timedelta] | None:
    if not times or times[0][0] != "created" or times[-1][0] != "warm":
        return None
    return {name: end - start for (_, start), (name, end) in pairwise(times)}


def _parse(text: str | None) -> datetime | None:
    return parse_timestamp(text) if text else None
