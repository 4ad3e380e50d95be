"""Everything in a pool's spec has an end, so that no pool takes much of the operator's memory."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

CRD = Path(__file__).resolve().parents[4] / "crds" / "inferencepools.kvik.dev.yaml"
SCHEMA = yaml.safe_load(CRD.read_text())["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
SPEC = SCHEMA["properties"]["spec"]


def endless(schema: Mapping[str, Any], path: str) -> Iterator[str]:
    """Texts, lists and maps without a longest size."""
    if schema.get("type") == "string" and not {"maxLength", "enum"} & set(schema):
        yield path
    if isinstance(schema.get("items"), Mapping):
        if "maxItems" not in schema:
            yield path
        yield from endless(schema["items"], f"{path}[]")
    if isinstance(schema.get("additionalProperties"), Mapping):
        if "maxProperties" not in schema:
            yield path
        yield from endless(schema["additionalProperties"], f"{path}.*")
    for name, field in (schema.get("properties") or {}).items():
        yield from endless(field, f"{path}.{name}")


def test_every_text_list_and_map_of_the_spec_has_a_longest_size() -> None:
    assert list(endless(SPEC, "spec")) == []


def test_a_field_without_an_end_would_be_found() -> None:
    texts = {"type": "array", "items": {"type": "string"}}
    assert list(endless({"properties": {"a": texts, "b": {"additionalProperties": {"type": "string"}}}}, "x")) == [
        *("x.a", "x.a[]", "x.b", "x.b.*")
    ]


def test_nothing_of_the_spec_is_kept_unchecked() -> None:
    assert "x-kubernetes-preserve-unknown-fields" not in CRD.read_text()
