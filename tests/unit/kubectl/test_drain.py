"""`kubectl kvik drain`: by the Eviction API, patient with a disruption budget, until the pod is gone."""

from typing import Any

import pytest

from kvik_kubectl.connection import Response
from tests.support.plugin_api import PluginApi, make_plugin_pod, plugin, refused_eviction

BUDGET = "The disruption budget chat needs 1 healthy pods and has 1 currently"
ENDS = "pod chat-1 of pool chat ends once its running answers have, after 135 s at the latest"


def one_pod() -> PluginApi:
    return PluginApi(pods={"chat-1": make_plugin_pod()})


def test_a_pod_is_evicted_and_waited_for() -> None:
    api = one_pod()
    api.ticks = [lambda: None, lambda: None, api.pods.clear]
    assert plugin(api, "drain", "chat-1") == (0, [ENDS, "pod chat-1 is gone after 3 s"])
    (eviction,) = api.writes()
    assert (eviction["kind"], eviction["apiVersion"]) == ("Eviction", "policy/v1")


def ready(pod: dict[str, Any]) -> dict[str, Any]:
    return pod | {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}


def test_the_only_ready_pod_is_evicted_with_a_warning_before() -> None:
    api = PluginApi(pods={"chat-1": ready(make_plugin_pod()), "chat-2": make_plugin_pod("chat-2")})
    api.ticks = [lambda: None, api.pods.clear]
    code, said = plugin(api, "drain", "chat-1")
    assert (code, said[1]) == (0, ENDS)
    assert said[0].startswith("warning: no other pod of pool chat is ready")
    assert "scale the pool to 2" in said[0]


def test_there_is_no_warning_beside_another_ready_pod() -> None:
    api = PluginApi(pods={"chat-1": ready(make_plugin_pod()), "chat-2": ready(make_plugin_pod("chat-2"))})
    api.ticks = [api.pods.clear]
    assert plugin(api, "drain", "chat-1")[1][0] == ENDS


def test_a_budget_that_refuses_is_told_once_and_asked_again() -> None:
    api = one_pod()
    api.evictions = [refused_eviction(BUDGET), refused_eviction(BUDGET), refused_eviction("another reason", 2.0)]
    api.ticks = [*[lambda: None] * 3, api.pods.clear]
    code, said = plugin(api, "drain", "chat-1")
    assert code == 0
    assert said == [f"waiting: {BUDGET}", "waiting: another reason", ENDS, "pod chat-1 is gone after 13 s"]
    assert len(api.writes()) == 4


def test_a_budget_that_never_allows_it_ends_with_its_words(capsys: pytest.CaptureFixture[str]) -> None:
    api = one_pod()
    api.evictions = [refused_eviction(BUDGET)] * 99
    assert plugin(api, "drain", "chat-1", "--timeout=22s")[0] == 1
    assert api.seconds == 22
    assert capsys.readouterr().err == f"kubectl kvik: pod chat-1 may not be evicted yet: {BUDGET}\n"
    assert "deletionTimestamp" not in api.pods["chat-1"]["metadata"]


def test_a_pod_that_ends_already_is_only_waited_for() -> None:
    api = PluginApi(pods={"chat-1": make_plugin_pod(deletionTimestamp="2026-05-01T12:00:00Z")})
    api.ticks = [api.pods.clear]
    assert plugin(api, "drain", "chat-1")[0] == 0
    assert api.writes() == []


def test_a_pod_that_another_has_replaced_is_gone() -> None:
    api = one_pod()
    api.ticks = [lambda: api.pods.update({"chat-1": make_plugin_pod(uid="another")})]
    assert plugin(api, "drain", "chat-1")[0] == 0


def test_a_pod_that_goes_by_itself_meanwhile_is_as_good() -> None:
    api = one_pod()
    api.evictions = [refused_eviction(BUDGET)]
    api.ticks = [api.pods.clear]
    assert plugin(api, "drain", "chat-1") == (0, [f"waiting: {BUDGET}", "pod chat-1 has gone by itself"])


def test_a_pod_that_does_not_end_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert plugin(one_pod(), "drain", "chat-1", "--timeout", "5")[0] == 1
    assert "still ends after 5 s; it goes on by itself" in capsys.readouterr().err


def test_other_pods_and_missing_ones_are_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    api = PluginApi(pods={"web": make_plugin_pod("web", labels={"app": "web"})})
    assert [plugin(api, "drain", name)[0] for name in ("web", "nobody")] == [1, 1]
    assert capsys.readouterr().err.splitlines() == [
        "kubectl kvik: pod web is not of an InferencePool",
        "kubectl kvik: there is no pod nobody in namespace demo",
    ]
    assert api.writes() == []


def test_any_other_refusal_is_told_with_the_servers_words(capsys: pytest.CaptureFixture[str]) -> None:
    api = one_pod()
    api.evictions = [Response(403, {"message": 'pods "chat-1" is forbidden:\nno'})]
    assert plugin(api, "drain", "chat-1")[0] == 1
    assert capsys.readouterr().err == 'kubectl kvik: the API server says 403: pods "chat-1" is forbidden: no\n'
