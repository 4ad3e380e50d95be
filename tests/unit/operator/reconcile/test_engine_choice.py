"""Which engine a pool runs as its spec, and the operator's own engine, change."""

from copy import deepcopy
from typing import Any

import pytest

from kvik_operator.errors import PoolError
from kvik_operator.names import LABEL_POOL
from kvik_operator.objects.engine_image import EngineImage
from kvik_operator.reconcile.engine_choice import newer_engine
from kvik_operator.reconcile.types import RevisionPlan
from tests.support.pool_history import History, seen
from tests.support.pools import KEY, make_deployment

FIRST, SECOND = EngineImage("kvik/engine:0.1.0-cpu", "IfNotPresent"), EngineImage("kvik/engine:0.2.0-cpu", "Always")
BUILD_1, BUILD_2 = EngineImage("kvik/engine:build-1", "IfNotPresent"), EngineImage("kvik/engine:build-2", "Always")
FEWER: dict[str, Any] = {"batching": {"maxRequests": 8}}


def named(version: str) -> dict[str, Any]:
    return {"engine": {"version": version}}


def image(plan: RevisionPlan) -> str:
    return plan.use.image.removeprefix("kvik/engine:")


def test_a_new_pool_takes_the_operators_engine() -> None:
    assert image(History().go(seen(), SECOND)) == "0.2.0-cpu"


def test_a_change_of_the_spec_keeps_the_engine_and_takes_the_rest_from_the_operator_of_today() -> None:
    history = History()
    history.go(seen(), FIRST)
    changed = history.go(seen(**FEWER), SECOND)
    assert image(changed) == "0.1.0-cpu"
    (container,) = changed.use.template["spec"]["containers"]
    assert container["imagePullPolicy"] == "Always"


def test_the_version_that_is_named_is_taken_up_or_down_or_beyond_what_the_operator_knows() -> None:
    history = History()
    history.go(seen(), FIRST)
    for version in ("0.2.0", "9.9.9", "0.1.0", "0.3.0-rc.2"):
        assert image(history.go(seen(**named(version)), SECOND)) == f"{version}-cpu"


def test_naming_the_version_that_runs_rolls_nothing() -> None:
    """Even where the operator of today would render other pods."""
    history = History()
    first = history.go(seen(), FIRST)
    same = history.go(seen(**named("0.1.0")), SECOND)
    assert same.use.template == first.use.template
    assert same.use.name != first.use.name
    assert history.stored[same.use.name]["data"]["spec"]["engine"] == {"version": "0.1.0"}
    upgraded = history.go(seen(**named("0.2.0")), SECOND)
    assert upgraded.use.template != first.use.template


def test_naming_the_version_that_runs_together_with_another_change_brings_that_change() -> None:
    history = History()
    history.go(seen(), FIRST)
    changed = history.go(seen(**named("0.1.0"), **FEWER), SECOND)
    assert image(changed) == "0.1.0-cpu"
    assert "--max-requests=8" in changed.use.template["spec"]["containers"][0]["args"]


def test_the_old_spec_is_the_old_engine_again() -> None:
    history = History()
    first = history.go(seen(), FIRST)
    history.go(seen(**named("0.2.0")), SECOND)
    assert history.go(seen(), SECOND).use == first.use


def test_a_name_that_is_taken_away_together_with_another_change_leaves_the_engine() -> None:
    history = History()
    history.go(seen(), FIRST)
    history.go(seen(**named("0.2.0")), SECOND)
    assert image(history.go(seen(**FEWER), SECOND)) == "0.2.0-cpu"


def test_a_move_to_another_registry_is_followed_at_the_next_change() -> None:
    history = History()
    history.go(seen(), FIRST)
    mirror = EngineImage("mirror.test/kvik/engine:0.2.0-cpu", "Always")
    assert history.go(seen(), mirror).use.image == "kvik/engine:0.1.0-cpu"
    assert history.go(seen(**FEWER), mirror).use.image == "mirror.test/kvik/engine:0.1.0-cpu"


def test_a_version_that_runs_stays_its_image_where_the_operators_variant_is_another() -> None:
    """Tags that end in a commit: 0.1.0-c0ffee was built, 0.1.0-decade never was."""
    history = History()
    history.go(seen(), EngineImage("kvik/engine:0.1.0-c0ffee", "Always"))
    later = EngineImage("mirror.test/kvik/engine:0.2.0-decade", "Always")
    assert history.go(seen(**FEWER), later).use.image == "kvik/engine:0.1.0-c0ffee"
    same = history.go(seen(**FEWER, **named("0.1.0")), later)
    assert same.use.image == "kvik/engine:0.1.0-c0ffee"
    assert history.go(seen(**FEWER, **named("0.2.0")), later).use.image == later.reference


def test_another_device_is_the_same_version_of_its_image() -> None:
    history = History()
    history.go(seen(resources={"device": "CPU"}), FIRST)
    gpu = EngineImage("kvik/engine:0.2.0", "Always")
    assert image(history.go(seen(resources={"device": "GPU"}), gpu)) == "0.1.0"


def test_an_older_operator_keeps_the_newer_engine_that_a_pool_runs() -> None:
    history = History()
    history.go(seen(), SECOND)
    assert image(history.go(seen(**FEWER), FIRST)) == "0.2.0-cpu"


# --- tags that name no version ---


def test_without_versions_in_tags_a_change_takes_the_operators_image() -> None:
    history = History()
    history.go(seen(), BUILD_1)
    assert image(history.go(seen(), BUILD_2)) == "build-1"
    assert image(history.go(seen(**FEWER), BUILD_2)) == "build-2"
    assert image(history.go(seen(drain={"timeout": "9s"}), SECOND)) == "0.2.0-cpu"
    assert image(history.go(seen(drain={"timeout": "8s"}), BUILD_1)) == "build-1"


def test_a_version_that_cannot_be_chosen_is_told_and_changes_nothing() -> None:
    history = History()
    first = history.go(seen(), BUILD_1)
    with pytest.raises(PoolError, match="kvik/engine:build-2 names no version") as told:
        history.plan(seen(**named("0.2.0")), BUILD_2)
    assert told.value.field == "spec.engine.version"
    assert list(history.stored) == [first.use.name]


def test_a_revision_of_such_a_version_is_still_applied_as_stored() -> None:
    history = History()
    there = history.go(seen(**named("0.2.0")), FIRST)
    assert history.go(seen(**named("0.2.0")), BUILD_2).use == there.use


# --- revisions that are gone ---


def deployed(plan: RevisionPlan) -> dict[str, Any]:
    deployment = make_deployment()
    deployment["metadata"]["labels"] = {LABEL_POOL: KEY.name}
    deployment["spec"]["template"] = deepcopy(dict(plan.use.template))
    return deployment


def test_without_any_revision_the_deployment_says_which_engine_runs() -> None:
    deployment = deployed(History().go(seen(), FIRST))
    assert image(History().go(seen(deployment=deployment, **FEWER), SECOND)) == "0.1.0-cpu"


def test_without_any_revision_a_named_version_is_not_mistaken_for_the_one_that_runs() -> None:
    """The pods that run look just as the pool wants them, but for the version."""
    deployment = deployed(History().go(seen(), SECOND))
    observed = seen(deployment=deployment, **named("0.3.0"))
    assert image(History().go(observed, SECOND)) == "0.3.0-cpu"
    same = History().go(seen(deployment=deployment, **named("0.2.0")), SECOND)
    assert same.use.template == deployment["spec"]["template"]


# --- what is newer ---


@pytest.mark.parametrize(
    ("runs", "configured", "newer"),
    [
        ("e:0.1.0-cpu", "e:0.2.0-cpu", "0.2.0"),
        ("e:0.2.0-cpu", "e:0.2.0-cpu", None),
        ("e:0.2.0-cpu", "e:0.1.0-cpu", None),
        ("e:0.2.0-rc.1", "e:0.2.0", "0.2.0"),
        ("e:0.1.0", "mirror/e:0.1.0", None),
        ("e:0.1.0", "e:build-2", "e:build-2"),
        ("e:build-1", "e:0.1.0", "e:0.1.0"),
        ("e:build-1", "e:build-1", None),
    ],
)
def test_what_is_newer(runs: str, configured: str, newer: str | None) -> None:
    assert newer_engine(runs, configured) == newer
