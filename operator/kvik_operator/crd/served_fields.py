"""Which fields of a pool's spec the installed CRD does not have, by the schema that the API server publishes. Pure."""

import types
from collections.abc import Iterator, Mapping
from typing import Any, Union, get_args, get_origin

import msgspec

from kvik_operator.crd.inferencepool import PoolSpec
from kvik_operator.names import GROUP, KIND, VERSION

_KIND = {"group": GROUP, "kind": KIND, "version": VERSION}


def fields_not_served(document: Mapping[str, Any]) -> frozenset[str] | None:
    """Paths under `spec`, such as `batching.admission`, that this version reads and the schema does not have; of a
    group that it does not have, the group alone. None: the document does not tell of InferencePools.

    `document` is the API server's OpenAPI v3 of our group and version.
    """
    schemas = (document.get("components") or {}).get("schemas") or {}
    for schema in schemas.values():
        if _KIND in (schema.get("x-kubernetes-group-version-kind") or ()):
            return frozenset(_not_in(schema["properties"]["spec"], PoolSpec, ""))
    return None


def _not_in(schema: Mapping[str, Any], struct: type[msgspec.Struct], under: str) -> Iterator[str]:
    served = schema.get("properties") or {}
    for field in msgspec.structs.fields(struct):
        path = f"{under}{field.encode_name}"
        group = _group(field.type)
        if field.encode_name not in served:
            yield path
        elif group is not None:
            yield from _not_in(served[field.encode_name], group, f"{path}.")


def _group(type_: Any) -> type[msgspec.Struct] | None:
    """The struct that a field holds, be it optional; not that of a list's items."""
    members = get_args(type_) if get_origin(type_) in (Union, types.UnionType) else (type_,)
    return next((one for one in members if isinstance(one, type) and issubclass(one, msgspec.Struct)), None)
