"""`kubectl kvik rollback`: the old spec comes back, and nothing that no revision keeps is touched."""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvik_kubectl.revisions import inputs_of, merge_patch, restored, revisions_of, spec_changes
from tests.support.fake_cluster import merged
from tests.support.plugin_api import UID, PluginApi, make_revision, plugin

LIVE: dict[str, Any] = {
    "engine": {"version": "0.2.0"},
    "batching": {"maxRequests": 8, "maxBatchTokens": 512},
    "replicas": 5,
    "scaling": {"maxReplicas": 9},
    "rollout": {"strategy": "Surge"},
    "template": {"serviceAccountAnnotations": {"cloud/role": "r"}, "labels": {"a": "b"}},
}


def pool() -> PluginApi:
    revisions = [
        make_revision(1, drain={"timeout": "60s"}),
        make_revision(2, batching={"maxRequests": 4}),
        make_revision(3, image="kvik/engine:0.2.0-cpu", **inputs_of(LIVE)),
    ]
    return PluginApi(spec=copy.deepcopy(LIVE), revisions=revisions)


def test_the_spec_before_comes_back_with_what_changes_told() -> None:
    api = pool()
    assert plugin(api, "rollback", "chat") == (
        0,
        [
            "chat: revision 2, engine 0.1.0",
            "  batching.maxBatchTokens: 512 -> none",
            "  batching.maxRequests: 8 -> 4",
            "  engine.version: 0.2.0 -> none",
            "  template.labels.a: b -> none",
        ],
    )


def test_replicas_scaling_rollout_and_the_service_accounts_annotations_stay() -> None:
    api = pool()
    plugin(api, "rollback", "chat", "--to", "1")
    assert api.spec == {
        "model": {"source": "file:///models/x"},
        "drain": {"timeout": "60s"},
        "replicas": 5,
        "scaling": {"maxReplicas": 9},
        "rollout": {"strategy": "Surge"},
        "template": {"serviceAccountAnnotations": {"cloud/role": "r"}},
    }


def test_a_pool_that_loses_its_keys_is_told_of() -> None:
    keys = {"secretRef": {"name": "clients"}}
    revisions = [make_revision(1), make_revision(2, apiKeys=keys)]
    api = PluginApi(spec={"model": {"source": "file:///models/x"}, "apiKeys": keys}, revisions=revisions)
    code, said = plugin(api, "rollback", "chat")
    assert (code, said[-1]) == (0, "  without apiKeys, the pool answers everybody who reaches it")


def test_a_revision_is_named_by_number_or_name() -> None:
    by_number, by_name = pool(), pool()
    plugin(by_number, "rollback", "chat", "--to", "1")
    plugin(by_name, "rollback", "chat", "--to", "chat-1")
    assert by_number.spec == by_name.spec


def test_what_the_pool_says_already_is_not_written() -> None:
    api = pool()
    assert plugin(api, "rollback", "chat", "--to=3") == (
        0,
        ["chat: revision 3, engine 0.2.0: its spec is this already"],
    )
    assert api.writes() == []


def test_a_dry_run_lists_and_writes_nothing() -> None:
    api = pool()
    code, said = plugin(api, "rollback", "chat", "--dry-run")
    assert (code, said[0], api.generation) == (0, "chat: revision 2, engine 0.1.0 (dry run)", 3)


def test_only_the_pool_that_was_looked_at_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    api = pool()
    plugin(api, "rollback", "chat")
    assert api.writes()[0]["metadata"] == {"resourceVersion": "3"}
    api.conflict = True
    assert plugin(api, "rollback", "chat", "--to=1")[0] == 1
    assert "has changed meanwhile" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "revisions", "words"),
    [
        ((), [], "no earlier revision"),
        ((), [make_revision(1)], "no earlier revision"),
        (("--to=7",), [make_revision(1), make_revision(2)], "there is no revision 7; there are: 2, 1"),
    ],
)
def test_without_such_a_revision_nothing_is_written(
    arguments: tuple[str, ...], revisions: list[dict[str, Any]], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    api = PluginApi(revisions=revisions)
    assert plugin(api, "rollback", "chat", *arguments)[0] == 1
    assert words in capsys.readouterr().err
    assert api.writes() == []


SPECS = st.fixed_dictionaries(
    {"model": st.fixed_dictionaries({"source": st.sampled_from(["a", "b"])})},
    optional={
        "engine": st.fixed_dictionaries({"version": st.sampled_from(["0.1.0", "0.2.0"])}),
        "batching": st.dictionaries(st.sampled_from(["maxRequests", "maxBatchTokens"]), st.integers(1, 3), min_size=1),
        "replicas": st.integers(0, 3),
        "scaling": st.fixed_dictionaries({"maxReplicas": st.integers(1, 3)}),
        "template": st.fixed_dictionaries(
            {},
            optional={
                "labels": st.dictionaries(st.sampled_from(["a", "b"]), st.sampled_from(["x", "y"]), min_size=1),
                "serviceAccountAnnotations": st.just({"cloud/role": "r"}),
                "env": st.lists(st.fixed_dictionaries({"name": st.sampled_from(["A", "B"])}), max_size=2),
            },
        ),
    },
)


@given(live=SPECS, then=SPECS)
def test_whatever_was_and_is_the_pods_inputs_come_back_and_the_rest_stays(
    live: dict[str, Any], then: dict[str, Any]
) -> None:
    stored = make_revision(1)
    stored["data"]["spec"] = inputs_of(then)
    (revision,) = revisions_of({"metadata": {"uid": UID}}, [stored])
    after = merged(live, merge_patch(live, restored(live, revision)))
    assert spec_changes(inputs_of(after), inputs_of(then)) == []
    for name in ("replicas", "scaling"):
        assert after.get(name) == live.get(name)
    annotations = [(spec.get("template") or {}).get("serviceAccountAnnotations") for spec in (live, after)]
    assert annotations[0] == annotations[1]
