"""Whether a caller may read what it asks for: the API server says so, and is not asked twice within ten seconds."""

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from kvik_operator.metrics_api.callers import Caller

ALWAYS_ALLOWED: Final = "system:masters"
"""The API server allows this group everything."""
REMEMBERED_SECONDS: Final = 10.0
REMEMBERED: Final = 1024

Attributes = Mapping[str, str]
Review = Callable[[Mapping[str, Any]], Awaitable[bool]]
"""Takes the spec of a SubjectAccessReview; raises ClusterError."""


class Access:
    """`clock` gives monotonic seconds."""

    def __init__(self, review: Review, clock: Callable[[], float]) -> None:
        self._review = review
        self._clock = clock
        self._known: OrderedDict[tuple[object, ...], tuple[float, bool]] = OrderedDict()

    async def allows(self, caller: Caller, attributes: Attributes) -> bool:
        """`attributes`: resourceAttributes of a SubjectAccessReview. Raises ClusterError if nobody says."""
        if ALWAYS_ALLOWED in caller.groups:
            return True
        question = (caller, tuple(sorted(attributes.items())))
        asked_at, answer = self._known.get(question, (None, False))
        if asked_at is not None and self._clock() - asked_at < REMEMBERED_SECONDS:
            return answer
        answer = await self._review(
            {
                "user": caller.user,
                "groups": list(caller.groups),
                "extra": {key: list(values) for key, values in caller.extra},
                "resourceAttributes": dict(attributes),
            }
        )
        self._known[question] = (self._clock(), answer)
        self._known.move_to_end(question)
        while len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
        return answer
