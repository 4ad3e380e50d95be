"""Each answer of the API server becomes the error that says who can do something about it."""

import json

import pytest

from kvik_operator.errors import Conflict, NotFound, Refused, Unavailable
from kvik_operator.kube.errors import from_exception, from_response


def status(code: int, reason: str, message: str, **details: object) -> bytes:
    return json.dumps(
        {"kind": "Status", "code": code, "reason": reason, "message": message, "details": details}
    ).encode()


CLASSES = {404: NotFound, 409: Conflict} | dict.fromkeys((400, 403, 422), Refused)
RETRIED = dict.fromkeys((401, 408, 429, 500, 503, 504), Unavailable)


@pytest.mark.parametrize(("code", "want"), [*CLASSES.items(), *RETRIED.items()])
def test_the_code_decides_the_class(code: int, want: type[Exception]) -> None:
    error = from_response("apply Deployment demo/chat", code, status(code, "Why", "because"), {})
    assert type(error) is want
    assert (error.status, error.reason, error.message) == (code, "Why", "because")
    assert str(error).startswith("apply Deployment demo/chat: ")


def test_retry_after_comes_from_the_header_or_the_details() -> None:
    by_header = from_response("x", 429, b"", {"Retry-After": "7"})
    by_details = from_response("x", 429, status(429, "TooManyRequests", "slow down", retryAfterSeconds=3), {})
    by_date = from_response("x", 503, b"", {"Retry-After": "Fri, 31 Dec 1999 23:59:59 GMT"})
    assert isinstance(by_header, Unavailable)
    assert isinstance(by_details, Unavailable)
    assert isinstance(by_date, Unavailable)
    assert (by_header.delay, by_details.delay, by_date.delay) == (7.0, 3.0, None)


def test_a_terminating_namespace_is_told_from_missing_permissions() -> None:
    ending = from_response(
        "x", 403, status(403, "Forbidden", "unable to create: namespace demo is being terminated"), {}
    )
    denied = from_response("x", 403, status(403, "Forbidden", 'User "u" cannot patch resource "deployments"'), {})
    assert isinstance(ending, Refused)
    assert isinstance(denied, Refused)
    assert (ending.namespace_terminating, ending.access_denied) == (True, False)
    assert (denied.namespace_terminating, denied.access_denied) == (False, True)


def test_an_answer_that_is_no_status_is_quoted() -> None:
    error = from_response("x", 502, b"<html>Bad Gateway</html>", {})
    assert error.message == "<html>Bad Gateway</html>"
    assert error.reason == "HTTP502"


def test_silence_is_unavailable() -> None:
    error = from_exception("x", TimeoutError())
    assert (error.status, error.reason) == (None, "TimeoutError")
    assert "did not answer" in error.message
