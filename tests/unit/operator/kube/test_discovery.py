"""An API that is not served is waited for; a server that does not answer says nothing about what is served."""

from typing import Any, cast

import pytest

from kvik_operator.errors import ClusterError, NotFound, Unavailable
from kvik_operator.kube.discovery import served_optional_kinds, served_plurals, wait_until_served
from kvik_operator.kube.transport import Transport
from kvik_operator.names import ChildKind


class Answers:
    def __init__(self, *answers: Any) -> None:
        self._answers = list(answers)

    async def request(self, *_: object, **__: object) -> Any:
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


SERVED = {"resources": [{"name": "inferencepools"}, {"name": "inferencepools/status"}]}
ABSENT = NotFound("discover", 404, "NotFound", "no such group")
DOWN = Unavailable("discover", None, "ClientConnectorError", "refused")


async def test_a_failure_to_ask_is_not_an_absence() -> None:
    assert await served_plurals(cast(Transport, Answers(ABSENT)), "kvik.dev/v1alpha1") == frozenset()
    with pytest.raises(Unavailable):
        await served_plurals(cast(Transport, Answers(DOWN)), "kvik.dev/v1alpha1")


async def test_waiting_goes_on_through_absence_and_outage_and_says_why() -> None:
    heard: list[ClusterError | None] = []

    async def pause() -> bool:
        return True

    transport = cast(Transport, Answers(ABSENT, DOWN, {"resources": []}, SERVED))
    assert await wait_until_served(transport, "kvik.dev/v1alpha1", "inferencepools", on_wait=heard.append, pause=pause)
    assert heard == [None, DOWN, None]


async def test_waiting_ends_when_the_process_is_to_stop() -> None:
    async def pause() -> bool:
        return False

    transport = cast(Transport, Answers(ABSENT))
    served = await wait_until_served(transport, "v1", "pods", on_wait=lambda _: None, pause=pause)
    assert not served


async def test_an_optional_kind_is_there_or_not_and_a_failure_to_ask_is_neither() -> None:
    def asked(answer: Any) -> Transport:
        return cast(Transport, Answers(answer))

    scaled_objects = {"resources": [{"name": "scaledobjects"}, {"name": "scaledobjects/status"}]}
    assert await served_optional_kinds(asked(scaled_objects)) == {ChildKind.SCALED_OBJECT}
    assert await served_optional_kinds(asked({"resources": [{"name": "scaledjobs"}]})) == frozenset()
    assert await served_optional_kinds(asked(ABSENT)) == frozenset()
    with pytest.raises(Unavailable):
        await served_optional_kinds(asked(DOWN))
