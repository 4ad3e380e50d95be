"""`kubectl kvik top` and `explain`: what pods do at this moment, and what follows from it."""

import json
from typing import Any

import pytest

from kvik_kubectl.connection import Response
from kvik_kubectl.text import duration_seconds
from tests.support.plugin_api import PluginApi, make_load, make_plugin_pod, plugin

SCALING: dict[str, Any] = {
    "minReplicas": 1,
    "maxReplicas": 8,
    "targetLoadPercent": 75,
    "podFullAt": {"kvUtilizationPercent": 80, "queuedRequests": 5, "ttft": "2s"},
    "scaleDownStabilization": "300s",
}


def api(**loads: Response) -> PluginApi:
    """A pool of two wanted pods that scales, with a running pod for each load."""
    names = {name.replace("_", "-"): load for name, load in loads.items()}
    pods = {name: make_plugin_pod(name) for name in names}
    status = {"readyReplicas": len(pods), "effective": {"scaling": SCALING}}
    return PluginApi(spec={"replicas": 2, "scaling": {}}, status=status, pods=pods, loads=names)


def test_top_shows_each_pod() -> None:
    busy = make_load(kv_blocks_used=600, waiting=2, waiting_prompt_tokens=500)
    assert plugin(api(chat_b=busy, chat_a=make_load()), "top", "chat") == (
        0,
        [
            "POD      STATE   KV    RUNNING   WAITING   PREFILL/S   TTFT P90   LOAD",
            "chat-a   ready   10%   3         0         500         0.12s      12% kv",
            "chat-b   ready   60%   3         2         500         0.12s      75% kv",
        ],
    )


def test_top_shows_what_is_not_known_as_such() -> None:
    unmeasured = make_load(
        prefill_tokens_per_second=None, ttft_p90_seconds=None, waiting_prompt_tokens=50, running=None
    )
    code, said = plugin(api(chat_a=unmeasured), "top", "chat")
    assert (code, said[1].split()) == (0, ["chat-a", "ready", "10%", "-", "0", "-", "-", "12%", "kv"])


def test_a_pod_that_does_not_answer_is_listed_with_the_reason() -> None:
    refused = Response(503, {"message": "error trying to reach service:\ndial tcp: connection refused"})
    code, said = plugin(api(chat_a=refused), "top", "chat")
    assert code == 0
    assert "does not answer: error trying to reach service: dial tcp: connection refused" in said[1]


def test_a_pod_that_hangs_is_listed_and_hides_none_of_the_others() -> None:
    world = api(chat_a=make_load(), chat_b=make_load())
    del world.loads["chat-a"]
    code, said = plugin(world, "top", "chat")
    assert code == 0
    assert "does not answer: nothing within 5 s" in said[1]
    assert said[2].split()[:2] == ["chat-b", "ready"]


def test_a_pod_that_has_no_node_yet_is_not_asked_and_one_that_has_ended_not_shown() -> None:
    world = api(chat_a=make_load())
    world.pods["chat-b"] = make_plugin_pod("chat-b") | {"status": {"phase": "Pending"}}
    world.pods["chat-c"] = make_plugin_pod("chat-c") | {"status": {"phase": "Failed"}}
    _, said = plugin(world, "top", "chat")
    assert [line.split()[:2] for line in said[1:]] == [["chat-a", "ready"], ["chat-b", "pending"]]


def test_top_without_a_name_shows_the_pods_of_all_pools() -> None:
    code, said = plugin(api(chat_a=make_load()), "top")
    assert code == 0
    assert [line.split()[:3] for line in said] == [["POOL", "POD", "STATE"], ["chat", "chat-a", "ready"]]
    assert plugin(api(), "top") == (0, ["no pool of namespace demo has pods"])


def test_top_without_a_name_tells_a_missing_kvik(capsys: pytest.CaptureFixture[str]) -> None:
    assert plugin(PluginApi(installed=False), "top")[0] == 1
    assert "is Kvik installed?" in capsys.readouterr().err


def test_a_pool_with_fixed_replicas_has_no_load() -> None:
    world = api(chat_a=make_load())
    world.status = {}
    _, said = plugin(world, "top", "chat")
    assert said[1].split()[-1] == "-"


def test_a_pool_without_pods_says_so() -> None:
    assert plugin(api(), "top", "chat") == (0, ["pool chat has no pods"])


def test_programs_get_what_the_pods_said() -> None:
    _, said = plugin(api(chat_a=make_load(waiting=4)), "top", "chat", "-o", "json")
    (pod,) = json.loads("\n".join(said))
    assert pod["load"]["kv_blocks_used"] == 100
    assert pod["terms"] == {"kv": pytest.approx(0.125), "queue": 0.8, "ttft": 0.0}


def test_explain_says_what_wins_and_what_it_would_take_to_change_it() -> None:
    busy = make_load(kv_blocks_used=480, waiting=4, waiting_prompt_tokens=500)
    world = api(chat_b=busy, chat_a=make_load(kv_blocks_used=320))
    world.status |= {
        "conditions": [{"type": "ScalingActive", "reason": "ScalingOnLoad", "message": "holds at 2"}],
        "scaling": {
            "lastDecisionTime": "2026-05-01T11:59:18Z",
            "history": [
                {
                    "time": "2026-05-01T11:54:00Z",
                    "from": 1,
                    "to": 2,
                    "winner": "queue",
                    "formula": "90 % of full x 1 pod / 75 % -> 2",
                }
            ],
        },
    }
    assert plugin(world, "explain", "chat") == (
        0,
        [
            "chat: 2 pods asked for, 2 ready, of 1 to 8",
            "",
            "POD      KV           QUEUE    TTFT         LOAD",
            "chat-a   32% of 80%   0 of 5   0.0s of 2s   40% kv",
            "chat-b   48% of 80%   4 of 5   1.0s of 2s   80% queue",
            "all                                         120%",
            "",
            "120% of a full pod / 75% -> 2, from 2 warm pods",
            "more: above 150% twice in a row, at once; at most doubling in 15 s",
            "fewer: up to 50% for 300 s on end; then 1 in 100 s at the most",
            "operator, 42s ago: ScalingOnLoad: holds at 2",
            "6m ago: 1 -> 2 on queue: 90 % of full x 1 pod / 75 % -> 2",
        ],
    )


def test_explain_leaves_a_pod_that_starts_out_of_the_sum() -> None:
    world = api(chat_a=make_load(kv_blocks_used=320), chat_b=make_load(state="starting", warm_since=None))
    _, said = plugin(world, "explain", "chat")
    assert said[4].split() == ["chat-b", "starting", "-"]
    assert said[7] == "40% of a full pod / 75% -> 1, from 1 warm pod"


@pytest.mark.parametrize(
    ("replicas", "line"),
    [(8, "more: no, spec.scaling.maxReplicas is 8"), (1, "fewer: no, spec.scaling.minReplicas is 1")],
)
def test_explain_names_the_bound_that_a_pool_is_at(replicas: int, line: str) -> None:
    world = api(chat_a=make_load())
    world.spec["replicas"] = replicas
    assert line in plugin(world, "explain", "chat")[1]


@pytest.mark.parametrize(
    ("driver", "line"),
    [
        ("HPA", "driver HPA: its HorizontalPodAutoscaler follows within 15 s, and to fewer after 60 s more"),
        ("KEDA", "driver KEDA: KEDA's autoscaler follows within 15 s, and to fewer after 60 s more"),
        ("External", "driver External: the operator only says so; whoever writes spec.replicas decides"),
    ],
)
def test_explain_says_who_carries_it_out_where_the_operator_does_not(driver: str, line: str) -> None:
    world = api(chat_a=make_load())
    world.spec["scaling"] = {**world.spec["scaling"], "driver": driver}
    assert line in plugin(world, "explain", "chat")[1]
    world.spec["scaling"] = {**world.spec["scaling"], "driver": "Native"}
    assert not [said for said in plugin(world, "explain", "chat")[1] if said.startswith("driver")]


def test_explain_of_fixed_replicas_says_that_nobody_scales() -> None:
    world = api(chat_a=make_load())
    world.spec, world.status = {"replicas": 3}, {}
    assert plugin(world, "explain", "chat") == (0, ["chat: 3 pods, as spec.replicas says; it has no spec.scaling"])


def test_explain_of_a_stopped_pool_says_that_nobody_scales() -> None:
    world = api()
    world.spec = {"replicas": 0, "scaling": {"maxReplicas": 8}}
    want = "chat: stopped: spec.replicas is 0, and nobody scales it before that is 1 or more"
    assert plugin(world, "explain", "chat") == (0, [want])


def test_explain_of_a_pool_that_no_operator_has_seen_says_so() -> None:
    world = PluginApi(spec={"replicas": 2, "scaling": {"maxReplicas": 8}})
    want = "chat: 2 pods asked for; its operator has not looked at spec.scaling yet"
    assert plugin(world, "explain", "chat") == (0, [want])


@pytest.mark.parametrize(("text", "value"), [("300s", 300.0), ("1h30m", 5400.0), ("500ms", 0.5), ("1m1s500ms", 61.5)])
def test_durations_are_read_as_the_api_writes_them(text: str, value: float) -> None:
    assert duration_seconds(text) == value
