"""Which fields the installed CRD lacks, by the schema that the API server publishes."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from kvik_operator.crd.served_fields import fields_not_served

CRD = Path(__file__).resolve().parents[4] / "crds" / "inferencepools.kvik.dev.yaml"
KIND = {"group": "kvik.dev", "kind": "InferencePool", "version": "v1alpha1"}


def published(*without: str) -> dict[str, Any]:
    """The API server's document of a CRD that lacks these fields."""
    schema = yaml.safe_load(CRD.read_text())["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for path in without:
        *groups, name = path.split(".")
        group = schema["properties"]["spec"]
        for one in groups:
            group = group["properties"][one]
        del group["properties"][name]
    pool = {**schema, "x-kubernetes-group-version-kind": [KIND]}
    other = {"type": "object", "x-kubernetes-group-version-kind": [{**KIND, "kind": "InferencePoolList"}]}
    return {"components": {"schemas": {"list": other, "plain": {"type": "object"}, "pool": pool}}}


def test_this_versions_crd_has_every_field_that_is_read() -> None:
    assert fields_not_served(published()) == frozenset()


def test_a_field_is_named_by_its_path_and_a_group_alone() -> None:
    lacking = ("batching.preemption.mode", "kvCache.diskCache", "apiKeys", "template.env")
    assert fields_not_served(published(*lacking)) == set(lacking)


@pytest.mark.parametrize("document", [{}, {"components": {"schemas": {"x": {"type": "object"}}}}])
def test_a_document_of_something_else_says_nothing(document: dict[str, Any]) -> None:
    assert fields_not_served(document) is None
