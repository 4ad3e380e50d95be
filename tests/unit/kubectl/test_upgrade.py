"""`kubectl kvik upgrade`: which version is written, what is said, and following the roll."""

import pytest

from tests.support.plugin_api import PluginApi, plugin

RUNS_OLD = {"engine": {"image": "kvik/engine:0.1.0-cpu", "version": "0.1.0", "available": "0.2.0"}}


def test_the_available_version_is_written_and_the_step_is_told() -> None:
    api = PluginApi(status=dict(RUNS_OLD))
    assert plugin(api, "upgrade", "chat") == (0, ["chat: engine 0.1.0 -> 0.2.0"])
    assert api.writes() == [{"spec": {"engine": {"version": "0.2.0"}}}]


def test_any_version_can_be_named() -> None:
    api = PluginApi(status=dict(RUNS_OLD))
    assert plugin(api, "upgrade", "chat", "--to", "0.0.9") == (0, ["chat: engine 0.1.0 -> 0.0.9"])
    assert api.spec["engine"] == {"version": "0.0.9"}


def test_a_version_that_the_spec_names_is_not_written_again() -> None:
    api = PluginApi(spec={"engine": {"version": "0.2.0"}}, status=dict(RUNS_OLD))
    assert plugin(api, "upgrade", "chat") == (0, ["chat: already at engine 0.2.0"])
    assert api.writes() == []


def test_naming_the_version_that_runs_is_told_as_what_it_is() -> None:
    api = PluginApi(status=dict(RUNS_OLD))
    _, (line,) = plugin(api, "upgrade", "chat", "--to", "0.1.0")
    assert line == "chat: engine 0.1.0, which it runs already, is now named in its spec"


def test_a_dry_run_leaves_the_pool_alone() -> None:
    api = PluginApi(status=dict(RUNS_OLD))
    assert plugin(api, "upgrade", "chat", "--dry-run") == (0, ["chat: engine 0.1.0 -> 0.2.0 (dry run)"])
    assert api.generation == 3


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ({"image": "e:0.2.0", "version": "0.2.0"}, "nothing newer than its engine 0.2.0 is known"),
        ({"image": "e:build-1"}, "nothing newer than its image e:build-1 is known"),
        ({}, "nothing newer than its image none yet is known"),
        ({"image": "e:build-1", "available": "e:build-2"}, "e:build-2 names no version in its tag"),
    ],
)
def test_where_no_version_is_available_the_reason_is_told(
    engine: dict[str, str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    api = PluginApi(status={"engine": engine})
    assert plugin(api, "upgrade", "chat") == (1, [])
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line
    assert api.writes() == []


# --- --wait ---


def rolling() -> PluginApi:
    api = PluginApi(status=dict(RUNS_OLD))
    api.condition("RolloutComplete", "True", "RolloutComplete", "all pods are of the current specification")
    api.condition("Degraded", "False", "AsExpected")
    return api


def test_the_roll_is_followed_until_it_is_done() -> None:
    """The condition of the generation before is no news of this one."""
    api = rolling()
    api.ticks = [
        lambda: None,
        lambda: api.condition("RolloutComplete", "False", "RollingOut", "1 of 2 pods are new"),
        lambda: None,
        lambda: api.condition(
            "RolloutComplete", "True", "RolloutComplete", "all pods are of the current specification"
        ),
    ]
    assert plugin(api, "upgrade", "chat", "--wait") == (
        0,
        [
            "chat: engine 0.1.0 -> 0.2.0",
            "the operator has not looked at the change yet",
            "1 of 2 pods are new",
            "all pods are of the current specification",
        ],
    )


def test_a_problem_that_lasts_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    api = rolling()

    def fails() -> None:
        api.condition("RolloutComplete", "False", "ImagePullFailed", "no such image")
        api.condition("Degraded", "True", "ImagePullFailed", "no such image")

    api.ticks = [fails]
    code, _ = plugin(api, "upgrade", "chat", "--wait")
    assert (code, api.seconds) == (1, 91)
    assert capsys.readouterr().err == "kubectl kvik: the roll has failed: ImagePullFailed: no such image\n"


def test_a_problem_that_passes_is_none() -> None:
    api = rolling()

    def trouble(status: str, reason: str) -> None:
        api.condition("RolloutComplete", "False", reason)
        api.condition("Degraded", status, reason)

    api.ticks = [
        lambda: trouble("True", "Unschedulable"),
        *[lambda: None] * 60,
        lambda: trouble("False", "RollingOut"),
        lambda: trouble("True", "Unschedulable"),
        *[lambda: None] * 60,
        lambda: api.condition("RolloutComplete", "True", "RolloutComplete", "all pods are new"),
    ]
    assert plugin(api, "upgrade", "chat", "--wait")[0] == 0


def test_a_spec_that_the_operator_refuses_is_a_failure_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    api = rolling()
    api.ticks = [lambda: api.condition("Degraded", "True", "InvalidSpec", "spec.engine.version: no")]
    assert plugin(api, "upgrade", "chat", "--wait")[0] == 1
    assert api.seconds == 1
    assert "InvalidSpec: spec.engine.version: no" in capsys.readouterr().err


def test_a_roll_that_is_done_tells_what_the_engine_lacks() -> None:
    api = rolling()

    def lacks() -> None:
        api.condition("RolloutComplete", "True", "RolloutComplete", "all pods are new")
        api.condition("Degraded", "True", "EngineTooOld", "spec.slo.ttft needs engine 0.2.0")

    api.ticks = [lacks]
    code, said = plugin(api, "upgrade", "chat", "--to=0.0.9", "--wait")
    assert (code, said[-1]) == (0, "all pods are new; EngineTooOld: spec.slo.ttft needs engine 0.2.0")


def test_waiting_ends_with_the_time_that_was_given(capsys: pytest.CaptureFixture[str]) -> None:
    api = rolling()
    assert plugin(api, "upgrade", "chat", "--wait", "--timeout", "2m")[0] == 1
    assert api.seconds == 120
    assert "not done after 120 s: the operator has not looked at the change yet" in capsys.readouterr().err
