"""What a ControllerRevision keeps, and what of it passes for ours when it is read again."""

from copy import deepcopy
from datetime import timedelta
from typing import Any

import pytest

from kvik_operator.crd.effective import Effective, effective
from kvik_operator.objects.controller_revision import (
    controller_revision,
    effective_of,
    pod_inputs,
    pod_inputs_of,
    read_data,
    revision_data,
    revision_name,
)
from kvik_operator.objects.engine_image import EngineImage
from kvik_operator.objects.pod_template import pod_template
from tests.support.pools import KEY, SOURCE, UID, spec_of

SPEC: dict[str, Any] = {
    "model": {"source": SOURCE},
    "slo": {"class": "Interactive"},
    "replicas": 3,
    "scaling": {"maxReplicas": 5},
    "rollout": {"strategy": "InPlace"},
    "resources": {"device": "CPU", "requests": {"ephemeral-storage": "1Gi"}},
}

NO_INPUT: dict[str, Any] = {"replicas": 9, "scaling": None, "rollout": {"strategy": "Surge"}}
"""What no pod depends on."""


def values_of(spec: dict[str, Any]) -> Effective:
    return effective(spec_of(**spec), KEY.name)


def data_of(spec: dict[str, Any], image: str = "kvik/engine:1") -> dict[str, Any]:
    template = pod_template(KEY, spec_of(**spec), values_of(spec), EngineImage(image, "IfNotPresent"))
    return revision_data(spec, spec_of(**spec), values_of(spec), template)


def made() -> dict[str, Any]:
    return deepcopy(controller_revision(KEY, UID, data_of(SPEC), 4))


def test_it_keeps_what_pods_depend_on_and_belongs_to_the_pool() -> None:
    manifest = made()
    assert manifest["revision"] == 4
    assert set(manifest["data"]) == {"spec", "effective", "image", "template"}
    assert manifest["data"]["image"] == "kvik/engine:1"
    assert set(manifest["data"]["spec"]) == {"model", "slo", "resources"}
    assert "scaling" not in manifest["data"]["effective"]
    (owner,) = manifest["metadata"]["ownerReferences"]
    assert (owner["uid"], owner["controller"], owner["blockOwnerDeletion"]) == (UID, True, False)
    assert manifest["metadata"]["labels"]["kvik.dev/pool"] == "chat"


def test_its_name_follows_from_its_content() -> None:
    assert made()["metadata"]["name"] == revision_name(KEY, data_of(SPEC))
    assert revision_name(KEY, data_of({**SPEC, **NO_INPUT})) == revision_name(KEY, data_of(SPEC))
    for other in (data_of(SPEC, "kvik/engine:2"), data_of({**SPEC, "slo": {"class": "Batch"}})):
        assert revision_name(KEY, other) != revision_name(KEY, data_of(SPEC))


def test_it_is_read_as_it_was_made_with_or_without_its_nulls() -> None:
    assert read_data(KEY, made()) == data_of(SPEC)
    bare = made()
    bare["data"]["effective"] = {k: v for k, v in bare["data"]["effective"].items() if v is not None}
    assert read_data(KEY, bare) is not None


def broken(name: str) -> dict[str, Any]:
    manifest = made()
    data = manifest["data"]
    match name:
        case "other content":
            data["template"]["spec"]["containers"][0]["image"] = "evil/engine:1"
        case "no data":
            del manifest["data"]
        case "text":
            manifest["data"] = "x"
        case "no template":
            manifest["data"] = {**data, "template": None}
        case "no engine":
            manifest["data"] = {**data, "template": {"spec": {"containers": []}}}
        case "a list for a template":
            manifest["data"] = {**data, "template": []}
        case "another image":
            manifest["data"] = {**data, "image": "kvik/engine:9"}
        case "a deep nest":
            deep: dict[str, Any] = {}
            for _ in range(5000):
                deep = {"in": deep}
            manifest["data"] = {**data, "spec": deep}
            return manifest
    if name != "other content" and isinstance(manifest.get("data"), dict):
        manifest["metadata"]["name"] = revision_name(KEY, manifest["data"])
    return manifest


@pytest.mark.parametrize(
    "name",
    [
        "other content",
        "no data",
        "text",
        "no template",
        "no engine",
        "a list for a template",
        "another image",
        "a deep nest",
    ],
)
def test_what_is_not_as_it_was_made_is_not_read(name: str) -> None:
    assert read_data(KEY, broken(name)) is None


def test_a_field_that_is_absent_in_it_means_the_default() -> None:
    """A CRD that adds a field with a default adds it to every stored pool: that must roll none."""
    with_default = {**SPEC, "batching": {}, "resources": {**SPEC["resources"], "limits": {}}}
    assert pod_inputs_of(data_of(SPEC)) == pod_inputs(spec_of(**with_default))
    assert pod_inputs_of(data_of(SPEC)) == pod_inputs(spec_of(**{**SPEC, "fieldOfANewerVersion": 1}))
    assert pod_inputs_of(data_of(SPEC)) != pod_inputs(spec_of(**{**SPEC, "drain": {"timeout": "5s"}}))


def test_what_this_version_does_not_read_is_not_kept_as_if_pods_had_been_made_with_it() -> None:
    """For a while the old operator leads on the new CRD: what it drops, the new operator must render."""
    template = {"annotations": {"a": "b"}, "serviceAccountAnnotations": {"cloud": "role"}, "env": [{"name": "A"}]}
    spec = {**SPEC, "kvCache": {"blockTokens": 32}, "template": template}
    newer = deepcopy(spec)
    newer["fieldOfANewerVersion"] = 1
    newer["kvCache"]["fieldOfANewerVersion"] = {"x": 1}
    newer["template"]["env"][0]["fieldOfANewerVersion"] = True
    kept = data_of(newer)["spec"]
    assert kept == data_of(spec)["spec"]
    assert kept == {
        "model": SPEC["model"],
        "slo": SPEC["slo"],
        "resources": SPEC["resources"],
        "kvCache": {"blockTokens": 32},
        "template": {"annotations": {"a": "b"}, "env": [{"name": "A"}]},
    }


def test_annotations_of_the_service_account_are_no_input_of_pods() -> None:
    annotated = {**SPEC, "template": {"serviceAccountAnnotations": {"cloud": "role"}}}
    assert pod_inputs_of(data_of(SPEC)) == pod_inputs(spec_of(**annotated)) == pod_inputs_of(data_of(annotated))


def test_what_is_stored_is_read_by_every_later_version() -> None:
    """Change this only with a reader for what operators have stored before: other names make all revisions corrupt."""
    data = {
        "spec": {"model": {"source": SOURCE}, "template": {"env": [{"name": "A", "value": None}]}},
        "effective": {"drain_timeout": "PT120S", "batching": {"max_requests": 8}},
        "image": "kvik/engine:1",
        "template": {"spec": {"containers": [{"name": "engine", "image": "kvik/engine:1"}]}},
    }
    stored = {"metadata": {"name": revision_name(KEY, data)}, "data": data, "revision": 1}
    assert stored["metadata"]["name"] == "chat-28b8d5a23d9968f2"
    assert read_data(KEY, stored) == data
    then = effective_of(data, values_of(SPEC))
    assert (then.drain_timeout, then.batching.max_requests) == (timedelta(seconds=120), 8)
    assert sorted(data_of(SPEC)["effective"]) == [
        "api_keys",
        "batching",
        "drain_timeout",
        "kv_cache",
        "model",
        "resources",
        "slo_class",
        "startup_timeout",
        "ttft",
    ]


def test_a_spec_that_this_version_cannot_read_asks_for_nothing() -> None:
    assert pod_inputs_of({"spec": {"model": 3}}) is None


def test_the_values_are_those_of_then() -> None:
    """A newer operator may have other classes."""
    data, now = data_of(SPEC), values_of({**SPEC, "slo": {"class": "Batch"}})
    then = effective_of(data, now)
    assert (then.drain_timeout, then.ttft) == (timedelta(seconds=120), timedelta(milliseconds=500))
    assert then.batching == values_of(SPEC).batching
    assert then.resources == values_of(SPEC).resources
    assert then.scaling is None


def test_a_value_that_is_not_known_of_then_is_as_now() -> None:
    data, now = deepcopy(data_of(SPEC)), values_of(SPEC)
    del data["effective"]["kv_cache"]["block_tokens"], data["effective"]["startup_timeout"]
    assert effective_of(data, now).kv_cache == now.kv_cache
    assert effective_of(data, now).startup_timeout == now.startup_timeout
    data["effective"]["batching"] = {"max_requests": "many"}
    assert effective_of(data, now) == now
