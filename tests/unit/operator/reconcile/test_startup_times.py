from datetime import timedelta

from kvik_operator.reconcile.startup_times import slowest_start
from kvik_operator.reconcile.types import EngineInfo
from tests.support.pools import NOW, at, make_pod

STARTUP = timedelta(seconds=120)


def info(weights_loaded: float, warm: float, compiled: float | None = None) -> EngineInfo:
    times = {"model_fetched": None, "weights_loaded": weights_loaded, "compiled": compiled, "warm": warm}
    return EngineInfo(
        version="0.1.0",
        model_name="m",
        startup={name: None if value is None else NOW + timedelta(seconds=value) for name, value in times.items()},
    )


def test_a_start_is_broken_down_by_the_end_of_each_phase() -> None:
    pod = make_pod(ready=True)  # created -10, scheduled -9, engine running since -7
    assert slowest_start([pod], {"uid-chat-1": info(-3, -1)}, STARTUP) == {
        "scheduled": "1s",
        "imagePulled": "2s",
        "weightsLoaded": "4s",
        "warm": "2s",
    }


def test_fetching_and_compiling_are_phases_where_they_happened() -> None:
    fetched = {"state": {"terminated": {"exitCode": 0, "startedAt": at(-8), "finishedAt": at(-6)}}}
    pod = make_pod(ready=True, model=fetched)
    assert slowest_start([pod], {"uid-chat-1": info(-3, -1, compiled=-2)}, STARTUP) == {
        "scheduled": "1s",
        "imagePulled": "1s",
        "modelFetched": "2s",
        "weightsLoaded": "3s",
        "compiled": "1s",
        "warm": "1s",
    }


def test_the_slowest_pod_is_shown() -> None:
    pods = [make_pod(name, ready=True) for name in ("a", "b")]
    start = slowest_start(pods, {"uid-a": info(-6, -5), "uid-b": info(-2, -1)}, STARTUP)
    assert start is not None
    assert start["weightsLoaded"] == "5s"


def test_nothing_is_shown_before_a_pod_has_told_its_times() -> None:
    assert slowest_start([make_pod(ready=True)], {}, STARTUP) is None


def test_a_pod_that_restarted_its_core_tells_of_no_start() -> None:
    pod = make_pod(ready=True)
    assert slowest_start([pod], {"uid-chat-1": info(1000, 1001)}, STARTUP) is None
