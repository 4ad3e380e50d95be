"""Whom the metrics API believes."""

import json
from typing import Any

import pytest

from kvik_operator.metrics_api.callers import Caller, FrontProxy, Stranger, front_proxy, identify
from tests.support.front_proxy import DATA

USER = [("X-Remote-User", "alice")]


def proxy(**changes: str | None) -> FrontProxy | None:
    data = {**DATA, **{f"requestheader-{name.replace('_', '-')}": value for name, value in changes.items()}}
    return front_proxy({"data": {name: value for name, value in data.items() if value is not None}})


def certificate(name: str) -> dict[str, Any]:
    """As `ssl.SSLSocket.getpeercert` gives it."""
    return {"subject": ((("organizationName", "kubernetes"),), (("commonName", name),))}


def identified(name: str | None, headers: list[tuple[str, str]], **changes: str | None) -> Caller:
    known = proxy(**changes)
    assert known is not None
    return identify(known, certificate(name) if name is not None else None, headers)


def test_the_front_proxy_says_for_whom_it_asks() -> None:
    headers = [
        ("x-remote-user", "alice"),
        ("X-Remote-Group", "a"),
        ("X-Remote-Group", "b"),
        ("X-Remote-Extra-Scopes", "read"),
        ("X-Remote-Extra-acme.com%2fproject", "p"),
        ("X-Remote-Extra-Scopes", "write"),
    ]
    extra = (("acme.com/project", ("p",)), ("scopes", ("read", "write")))
    assert identified("front-proxy-client", headers) == Caller("alice", ("a", "b"), extra)


@pytest.mark.parametrize(
    ("name", "headers", "code"),
    [(None, USER, 401), ("admin", USER, 403), ("", USER, 403), ("front-proxy-client", [], 401)],
)
def test_anybody_else_is_a_stranger(name: str | None, headers: list[tuple[str, str]], code: int) -> None:
    with pytest.raises(Stranger) as stranger:
        identified(name, headers)
    assert stranger.value.code == code


def test_without_allowed_names_the_authority_is_enough() -> None:
    assert identified("anyone", USER, allowed_names="[]").user == "alice"


@pytest.mark.parametrize(
    "changes",
    [
        {"client_ca_file": None},
        {"client_ca_file": ""},
        {"username_headers": "[]"},
        {"allowed_names": "front-proxy-client"},
        {"allowed_names": json.dumps({"a": 1})},
        {"group_headers": "[1]"},
    ],
)
def test_a_config_map_that_cannot_be_read_is_believed_in_nothing(changes: dict[str, str | None]) -> None:
    assert proxy(**changes) is None
    assert front_proxy(None) is None
