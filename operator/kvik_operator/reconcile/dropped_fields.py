"""Fields that an older CRD drops from a pool: nobody has taken them out, so they stay as the pool's revision has them.

An API server drops what its schema does not have from what it stores and from what it shows. To the operator such a
field looks like one that somebody has removed. Nobody has if the generation is still the one that was carried out with
it, since every write of the spec counts; nor if the schema has no such field now, since then nobody can say it.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import msgspec

from kvik_operator.crd.effective import effective
from kvik_operator.crd.inferencepool import Model, PoolSpec
from kvik_operator.reconcile.types import Observed

_ABSENT: Final[Mapping[str, Any]] = msgspec.to_builtins(PoolSpec(model=Model(source="")))


def fields_gone(before: PoolSpec, now: PoolSpec) -> frozenset[str]:
    """Paths under `spec` of what `before` says and `now` leaves out."""
    return frozenset(_gone(msgspec.to_builtins(before), msgspec.to_builtins(now), _ABSENT, ""))


def those_not_served(fields: Collection[str], not_served: Collection[str]) -> frozenset[str]:
    """Those of `fields` that the schema does not have, by themselves or with their group."""
    return frozenset(
        field for field in fields if any(field == one or field.startswith(f"{one}.") for one in not_served)
    )


def with_fields(observed: Observed, before: Mapping[str, Any], fields: Collection[str]) -> Observed:
    """The pool with these fields as `before`, a spec in the API's shape, has them. Raises PoolError as `effective`."""
    if not fields:
        return observed
    raw: Any = observed.raw_spec
    for field in sorted(fields):
        raw = _with(raw, before, field.split("."))
    spec = msgspec.convert(raw, PoolSpec)
    return replace(
        observed,
        pool=msgspec.structs.replace(observed.pool, spec=spec),
        raw_spec=raw,
        effective=effective(spec, observed.key.name),
        kept=frozenset(fields),
    )


def _gone(before: Mapping[str, Any], now: Mapping[str, Any], absent: Mapping[str, Any], under: str) -> Iterator[str]:
    """What is free-form, such as labels, is one field: a schema has all of it or nothing."""
    for name, value in before.items():
        path, as_now, as_absent = f"{under}{name}", now.get(name), absent.get(name)
        if value == as_now:
            continue
        if isinstance(as_absent, Mapping) and as_absent:
            yield from _gone(value, as_now or {}, as_absent, f"{path}.")
        elif as_now == as_absent:
            yield path


def _with(raw: Mapping[str, Any], before: Mapping[str, Any], path: list[str]) -> dict[str, Any]:
    name, *rest = path
    value = before[name]
    return {**raw, name: _with(raw.get(name) or {}, value, rest) if rest else value}
