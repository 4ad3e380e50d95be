"""What an engine is told depends on its version, and a pool hears which of its fields the engine lacks."""

import pytest

from kvik_operator.crd.effective import effective
from kvik_operator.crd.engine_version import Version
from kvik_operator.crd.inferencepool import PoolSpec
from kvik_operator.objects import engine_args
from kvik_operator.objects.engine_args import pull_args, serve_args
from kvik_operator.objects.engine_flags import MODEL_PULL, SERVE, Flag, TooOld, too_old_for
from kvik_operator.objects.model_source import model_source
from tests.support.pools import spec_of

FIRST, SECOND = Version(0, 1, 0), Version(0, 2, 0)
YOUNGER = {**SERVE, "prefix-cache": Flag("kvCache.prefixCache", SECOND), "slo-ttft": Flag("slo.ttft", SECOND)}
"""As if the second version had brought two of the flags."""
HUB = {"source": "hf://o/n@r", "secretRef": {"name": "hub"}}


def flags(spec: PoolSpec, engine: Version | None) -> set[str]:
    args = serve_args(spec, effective(spec, "chat"), model_source(spec.model.source), engine)
    return {arg.split("=")[0].removeprefix("--") for arg in args if arg.startswith("--")}


def test_the_first_version_knows_all_that_there_is() -> None:
    spec = spec_of(kvCache={"prefixCache": "Disabled"})
    assert flags(spec, FIRST) == flags(spec, SECOND) == flags(spec, None)


def test_a_flag_is_left_out_for_an_engine_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_args, "SERVE", YOUNGER)
    spec = spec_of(kvCache={"prefixCache": "Disabled"})
    assert flags(spec, SECOND) - flags(spec, FIRST) == {"prefix-cache", "slo-ttft"}
    assert flags(spec, Version.parse("0.2.0-rc.1")) == flags(spec, FIRST)


def test_an_engine_of_the_future_or_of_an_unknown_version_is_told_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_args, "SERVE", YOUNGER)
    spec = spec_of(kvCache={"prefixCache": "Disabled"})
    assert flags(spec, Version(9, 0, 0)) == flags(spec, None) == flags(spec, SECOND)


def test_the_fetching_container_is_told_no_more_than_it_knows() -> None:
    spec = spec_of(model={**HUB, "digest": "sha256:" + "a" * 64})
    told = pull_args(spec, "hf://o/n@r", "/token", FIRST)
    assert told == [
        "model",
        "pull",
        "hf://o/n@r",
        "--to=/models/pool",
        f"--digest={spec.model.digest}",
        "--token-file=/token",
    ]
    assert pull_args(spec, "hf://o/n@r", "/token", Version(0, 0, 9)) == ["model", "pull", "hf://o/n@r"]


def test_a_field_that_was_set_is_named_and_one_that_was_not_is_not() -> None:
    """The class's target goes into --slo-ttft too, and nobody asked for it."""
    asked, silent = spec_of(kvCache={"prefixCache": "Disabled"}), spec_of(slo={"class": "Interactive"})
    assert too_old_for(asked, FIRST, YOUNGER) == [TooOld("spec.kvCache.prefixCache", SECOND)]
    assert too_old_for(silent, FIRST, YOUNGER) == []
    assert too_old_for(asked, SECOND, YOUNGER) == too_old_for(asked, None, YOUNGER) == []


def test_what_the_api_server_writes_into_every_pool_counts_as_not_set() -> None:
    defaults = spec_of(slo={"class": "Balanced"}, resources={"device": "GPU"}, replicas=1)
    before_all = Version(0, 0, 9)
    assert [one.field for one in too_old_for(defaults, before_all)] == ["spec.model.source"]
    set_ = spec_of(model=HUB, resources={"device": "CPU"})
    named = [one.field for one in too_old_for(set_, before_all, SERVE, MODEL_PULL)]
    assert named == ["spec.model.secretRef", "spec.model.source", "spec.resources.device"]
