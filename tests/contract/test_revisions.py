"""docs/contract.md, section 8: what the operator stores of a revision is what the kubectl plugin reads and restores."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvik_kubectl import revisions as plugin
from kvik_operator.crd.engine_version import Version
from kvik_operator.objects.engine_image import EngineImage, version_of
from kvik_operator.reconcile.types import RevisionPlan
from tests.support.fake_cluster import merged
from tests.support.pool_history import History, seen
from tests.support.pools import KEY, SOURCE, UID, make_pool

ROOT = Path(__file__).resolve().parents[2]
SECTION = (ROOT / "docs" / "contract.md").read_text().partition("## 8.")[2]
CRD = yaml.safe_load((ROOT / "crds" / "inferencepools.kvik.dev.yaml").read_text())
SPEC = CRD["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
RELEASED = ROOT / "tests" / "data" / "released"
IMAGE = EngineImage("kvik/engine:0.1.0-cpu", "IfNotPresent")

WHOLE: dict[str, Any] = {
    "engine": {"version": "0.1.0"},
    "slo": {"class": "Interactive"},
    "batching": {"maxRequests": 8},
    "kvCache": {"blockTokens": 32},
    "apiKeys": {"secretRef": {"name": "clients"}},
    "resources": {"device": "CPU"},
    "replicas": 3,
    "scaling": {"maxReplicas": 5},
    "rollout": {"strategy": "InPlace"},
    "startup": {"timeout": "60s"},
    "drain": {"timeout": "60s"},
    "template": {"labels": {"a": "b"}, "serviceAccountAnnotations": {"cloud/role": "r"}},
}
"""Something in every group."""
OTHER: dict[str, Any] = {
    "engine": {"version": "0.2.0"},
    "replicas": 7,
    "scaling": {"maxReplicas": 9},
    "rollout": {"strategy": "Surge"},
    "template": {"serviceAccountAnnotations": {"cloud/role": "s"}, "env": [{"name": "A", "value": "b"}]},
}


def stored(history: History) -> list[plugin.Revision]:
    return plugin.revisions_of(make_pool(), list(history.stored.values()))


def test_the_plugin_reads_what_the_operator_stores() -> None:
    history = History()
    first, second = history.go(seen(**WHOLE), IMAGE), history.go(seen(**OTHER), IMAGE)
    newer, older = stored(history)
    assert [(one.number, one.name, one.image) for one in (older, newer)] == [
        (1, first.use.name, first.use.image),
        (2, second.use.name, second.use.image),
    ]
    assert (older.engine, newer.engine) == ("0.1.0", "0.2.0")


def test_both_agree_on_what_no_revision_keeps() -> None:
    """A field that the operator no longer counts as an input of pods must stay when a revision is put back."""
    assert {"model", *WHOLE} == set(SPEC), "a field of the schema is missing in this test"
    history = History()
    history.go(seen(**WHOLE), IMAGE)
    (revision,) = stored(history)
    assert revision.spec == plugin.inputs_of({"model": {"source": SOURCE}, **WHOLE})


def test_the_contract_names_those_fields() -> None:
    (row,) = (line for line in SECTION.splitlines() if line.startswith("| `data.spec` |"))
    named = re.findall(r"`([A-Za-z.]+)`", row.partition("depends on:")[2])
    assert named == [*plugin.NOT_IN_REVISIONS, f"template.{plugin.SERVICE_ACCOUNT}"]


def back_to(history: History, live: dict[str, Any], number: int) -> RevisionPlan:
    """What the operator does with the spec that the plugin writes."""
    spec = {"model": {"source": SOURCE}, **live}
    revision = plugin.find_revision(stored(history), str(number))
    after = merged(spec, plugin.merge_patch(spec, plugin.restored(spec, revision)))
    return history.go(seen(**after), IMAGE)


def test_a_revision_that_is_put_back_is_applied_as_stored() -> None:
    history = History()
    first, second = history.go(seen(**WHOLE), IMAGE), history.go(seen(**OTHER), IMAGE)
    assert back_to(history, OTHER, 1).use == first.use
    assert back_to(history, WHOLE, 2).use == second.use
    assert len(history.stored) == 2


@pytest.mark.parametrize(
    "image",
    [
        "e:0.1.0",
        "host:5000/e:0.2.0-rc.1-demo",
        "e:0.1.0-cpu",
        "e:v0.1.0",
        "e:latest",
        "e",
        "e:0.1.0@sha256:0",
        "e:1-cpu",
    ],
)
def test_both_read_the_same_version_from_an_image(image: str) -> None:
    version = version_of(image)
    assert plugin.version_of(image) == (None if version is None else str(version))


@pytest.mark.parametrize("text", ["0.1.0", "0.2.0-rc.1", "10.20.30-alpha.4", "0.1", "v0.1.0", "0.1.0-cpu"])
def test_both_and_the_schema_take_the_same_versions(text: str) -> None:
    def parses() -> bool:
        try:
            return bool(Version.parse(text))
        except ValueError:
            return False

    of_schema = re.search(SPEC["engine"]["properties"]["version"]["pattern"], text) is not None
    assert parses() == of_schema == (re.fullmatch(plugin.VERSION_PATTERN, text) is not None)


@pytest.mark.parametrize("path", sorted(RELEASED.glob("*/*.yaml")), ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_the_plugin_reads_what_every_version_has_stored(path: Path) -> None:
    document = yaml.safe_load(path.read_text())
    (revision,) = plugin.revisions_of(make_pool(), [document["revision"]])
    assert revision.engine == path.parent.name
    assert revision.spec == plugin.inputs_of(document["spec"])


def test_another_pools_revisions_are_not_read() -> None:
    history = History()
    history.go(seen(**WHOLE), IMAGE)
    another = {"metadata": {**make_pool()["metadata"], "uid": UID.replace("1", "2"), "name": KEY.name}}
    assert plugin.revisions_of(another, list(history.stored.values())) == []
