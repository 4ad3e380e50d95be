"""`kubectl kvik history`: what each revision ran and changed."""

import json

from tests.support.plugin_api import PluginApi, make_revision, plugin

THREE = [
    make_revision(2, batching={"maxRequests": 8}, engine={"version": "0.1.0"}),
    make_revision(1),
    make_revision(4, image="kvik/engine:0.2.0-cpu", batching={"maxRequests": 8}, engine={"version": "0.2.0"}),
]
IN_USE = {"revision": {"updated": "chat-4", "current": "chat-4"}}


def test_revisions_are_listed_newest_first_with_what_changed() -> None:
    assert plugin(PluginApi(revisions=THREE, status=IN_USE), "history", "chat") == (
        0,
        [
            "REVISION   AGE   ENGINE   STATE    CHANGE",
            "4          6h    0.2.0    in use   engine.version: 0.1.0 -> 0.2.0",
            "2          8h    0.1.0             batching.maxRequests: none -> 8",
            "                                   engine.version: none -> 0.1.0",
            "1          9h    0.1.0             no earlier one is kept",
        ],
    )


def test_a_roll_under_way_is_told_apart_from_what_was_complete() -> None:
    status = {"revision": {"updated": "chat-4", "current": "chat-2"}}
    _, said = plugin(PluginApi(revisions=THREE, status=status), "history", "chat")
    assert [line.split("   ")[0].split()[0] for line in said if "rolling out" in line] == ["4"]
    assert [line.split()[0] for line in said if "last complete" in line] == ["2"]


def test_programs_get_all_of_it() -> None:
    code, said = plugin(PluginApi(revisions=THREE, status=IN_USE), "history", "chat", "-o", "json")
    newest, _, oldest = json.loads("\n".join(said))
    assert code == 0
    assert newest == {
        "revision": 4,
        "name": "chat-4",
        "createdAt": "2026-05-01T06:00:00Z",
        "engine": {"version": "0.2.0", "image": "kvik/engine:0.2.0-cpu"},
        "state": "in use",
        "changes": [{"field": "engine.version", "from": "0.1.0", "to": "0.2.0"}],
    }
    assert (oldest["state"], oldest["changes"]) == (None, None)


def test_another_image_under_the_same_spec_is_a_change() -> None:
    """Where tags name no version, the operator's image comes with any change of the spec."""
    two = [
        make_revision(1, image="kvik/engine:build-1"),
        make_revision(2, image="kvik/engine:build-2", drain={"timeout": "9s"}),
    ]
    _, said = plugin(PluginApi(revisions=two), "history", "chat")
    assert "kvik/engine:build-2" in said[1]
    assert said[2].strip() == "engine image: kvik/engine:build-1 -> kvik/engine:build-2"


def test_what_somebody_else_owns_or_wrote_is_not_shown() -> None:
    theirs, broken = make_revision(7), make_revision(8)
    theirs["metadata"]["ownerReferences"][0]["uid"] = "another"
    broken["data"] = {"spec": "x"}
    _, said = plugin(PluginApi(revisions=[*THREE, theirs, broken]), "history", "chat")
    assert [line.split()[0] for line in said if line[0].isdecimal()] == ["4", "2", "1"]


def test_a_long_value_is_cut_and_a_list_is_one_value() -> None:
    env = [{"name": "A", "value": "x" * 200}]
    _, said = plugin(
        PluginApi(revisions=[make_revision(1), make_revision(2, template={"env": env})]), "history", "chat"
    )
    assert said[1].endswith("...")
    assert 'template.env: none -> [{"name": "A"' in said[1]


def test_a_new_pool_has_none() -> None:
    assert plugin(PluginApi(), "history", "chat") == (0, ["pool chat has no revisions yet"])
