"""Label selectors as they stand in a request's query: `a=b,c!=d,e in (x,y),f notin (z),g,!h`. Pure.

Kubernetes also parses `a>1` and `a<1`. They are refused here: no selector of a HorizontalPodAutoscaler can say them.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

_LABEL: Final = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_PREFIX: Final = rf"(?=[-.a-z0-9]{{1,253}}/){_LABEL}(?:\.{_LABEL})*/"
_KEY: Final = rf"(?:{_PREFIX})?[A-Za-z0-9](?:[-A-Za-z0-9_.]{{0,61}}[A-Za-z0-9])?"
_VALUE: Final = r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?"
_REQUIREMENT: Final = re.compile(
    rf"\s*(?:!\s*(?P<absent>{_KEY})"
    rf"|(?P<key>{_KEY})\s*(?:(?P<equal>==?|!=)\s*(?P<value>{_VALUE})"
    rf"|\s(?P<set>in|notin)\s*\((?P<values>[^()]*)\))?)\s*(?:,|$)"
)
_VALUE_ALONE: Final = re.compile(_VALUE)
MAX_LENGTH: Final = 4096


@dataclass(frozen=True, slots=True)
class _Requirement:
    """`values` None: any; the label only has to be there (or, where `negated`, must not)."""

    key: str
    values: frozenset[str] | None
    negated: bool

    def matches(self, labels: Mapping[str, str]) -> bool:
        found = self.key in labels and (self.values is None or labels[self.key] in self.values)
        return found is not self.negated


@dataclass(frozen=True, slots=True)
class Selector:
    """Matches labels that meet all its requirements; without any, it matches everything."""

    requirements: tuple[_Requirement, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        return all(requirement.matches(labels) for requirement in self.requirements)


def parse_selector(text: str) -> Selector:
    """Raises ValueError if it is no label selector."""
    if len(text) > MAX_LENGTH:
        raise ValueError(f"a label selector may have {MAX_LENGTH} characters")
    requirements: list[_Requirement] = []
    at = 0
    while at < len(text):
        match = _REQUIREMENT.match(text, at)
        if match is None:
            raise ValueError(f"not a label selector from here on: {text[at : at + 80]}")
        requirements.append(_requirement(match))
        at = match.end()
    if text.rstrip().endswith(","):
        raise ValueError("a label selector ends with a comma")
    return Selector(tuple(requirements))


def _requirement(match: re.Match[str]) -> _Requirement:
    if match["absent"]:
        return _Requirement(match["absent"], None, negated=True)
    if match["equal"]:
        return _Requirement(match["key"], frozenset({match["value"]}), negated=match["equal"] == "!=")
    if match["set"]:
        values = [value.strip() for value in match["values"].split(",")]
        if wrong := [value for value in values if _VALUE_ALONE.fullmatch(value) is None]:
            raise ValueError(f"not a label value: {wrong[0][:80]}")
        return _Requirement(match["key"], frozenset(values), negated=match["set"] == "notin")
    return _Requirement(match["key"], None, negated=False)
