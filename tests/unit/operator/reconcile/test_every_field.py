"""An edit of any field of the spec: its effect is seen, and it makes new pods only where it must."""

from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvik_operator.names import ChildKind
from kvik_operator.reconcile.types import EngineImages, ReconcileOptions
from tests.support.field_edits import EDITS, Edit, fields_of
from tests.support.pools import TRIGGER
from tests.support.reconciled_pool import Operator

CRD = Path(__file__).resolve().parents[4] / "crds" / "inferencepools.kvik.dev.yaml"
IMAGES = EngineImages(gpu="kvik/engine:0.1.0", cpu="kvik/engine:0.1.0-cpu")
ABSENT = object()


def at(value: Any, path: str) -> Any:
    """What lies at a path whose last name may hold dots; ABSENT where nothing does."""
    name, _, rest = path.partition(".")
    if isinstance(value, Mapping) and path in value:
        return value[path]
    if isinstance(value, list | tuple) and name.isdigit():
        return at(value[int(name)], rest)
    return at(value[name], rest) if isinstance(value, Mapping) and rest and name in value else ABSENT


def holds(value: Any, path: str, wanted: Any) -> bool:
    found = at(value, path)
    return found == wanted or (isinstance(found, list | tuple) and wanted in found)


class Seen:
    """What there is of a pool to look at."""

    def __init__(self, operator: Operator, edit: Edit) -> None:
        children = deepcopy(operator.cluster.children)
        self.child: Any = children.get(edit.child, {})
        self.effective = deepcopy(operator.cluster.status["effective"])
        self.template = children[ChildKind.DEPLOYMENT]["spec"]["template"]

    @property
    def arguments(self) -> list[str]:
        (engine,) = self.template["spec"]["containers"]
        args: list[str] = engine["args"]
        return args

    def shows(self, edit: Edit) -> list[bool]:
        """Whether it shows each of the edit's effects."""
        shown = [holds(self.effective, path, value) for path, value in edit.effective.items()]
        shown += [holds(self.child, path, value) for path, value in edit.rendered.items()]
        return shown + ([] if edit.argument is None else [edit.argument in self.arguments])


def test_every_field_of_the_schema_has_an_edit() -> None:
    schema = yaml.safe_load(CRD.read_text())["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    assert set(EDITS) == set(fields_of(schema["properties"]["spec"]))


@pytest.mark.parametrize("path", EDITS)
async def test_the_effect_of_an_edit_is_seen_and_rolls_only_where_it_must(path: str) -> None:
    edit = EDITS[path]
    operator = Operator(**edit.of)
    operator.restart(ReconcileOptions(images=IMAGES, metrics_api=True, keda=TRIGGER))
    await operator.settle()
    before = Seen(operator, edit)
    assert not any(before.shows(edit)), "else it would show nothing of the edit"
    operator.change(**edit.to)
    await operator.look()
    after = Seen(operator, edit)
    assert after.shows(edit) == [True] * len(before.shows(edit)) != []
    assert (before.template == after.template) is not edit.rolls
    assert operator.cluster.condition("Degraded")["status"] == "False"
    if edit.rolls:
        assert operator.cluster.condition("RolloutComplete")["reason"] == "RollingOut"


@pytest.mark.parametrize("path", EDITS)
async def test_taking_it_back_is_what_was_before(path: str) -> None:
    edit = EDITS[path]
    operator = Operator(**edit.of)
    operator.restart(ReconcileOptions(images=IMAGES, metrics_api=True, keda=TRIGGER))
    await operator.settle()
    before, spec = Seen(operator, edit), deepcopy(operator.spec)
    operator.change(**edit.to)
    await operator.look()
    assert operator.cluster.stored_pool is not None
    operator.cluster.stored_pool["spec"] = spec
    operator.change()
    await operator.look()
    after = Seen(operator, edit)
    assert (after.template, after.effective) == (before.template, before.effective)
    assert not any(after.shows(edit))
