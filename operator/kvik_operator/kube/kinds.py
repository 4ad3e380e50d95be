"""The kinds that the operator watches, and the label selector that limits each on the server."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from kvik_operator.names import API_VERSION, KIND, LABEL_POOL, OPTIONAL_KINDS, PLURAL, ChildKind

POD: Final = "Pod"


@dataclass(frozen=True, slots=True)
class WatchedKind:
    """`selector` None: every object of the kind."""

    kind: str
    api_version: str
    plural: str
    selector: str | None

    @property
    def group(self) -> str:
        return self.api_version.rpartition("/")[0]

    @property
    def version(self) -> str:
        return self.api_version.rpartition("/")[2]


def watched(served: Collection[ChildKind]) -> Sequence[WatchedKind]:
    """`served`: the kinds of OPTIONAL_KINDS that the API server has."""
    children = (kind for kind in ChildKind if kind not in OPTIONAL_KINDS or kind in served)
    return (
        WatchedKind(KIND, API_VERSION, PLURAL, None),
        WatchedKind(POD, "v1", "pods", LABEL_POOL),
        *(WatchedKind(kind, kind.api_version, kind.plural, LABEL_POOL) for kind in children),
    )
