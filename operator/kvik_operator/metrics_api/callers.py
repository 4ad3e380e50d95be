"""Who calls: the API server's front proxy, proven by its client certificate, and for whom, as its headers say. Pure.

What the certificate must be is in the ConfigMap kube-system/extension-apiserver-authentication, which the API server
itself writes. Its authority alone proves nothing: in many clusters it signs every client's certificate.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

AUTHENTICATION_NAMESPACE: Final = "kube-system"
AUTHENTICATION_CONFIG_MAP: Final = "extension-apiserver-authentication"
PREFIX: Final = "requestheader-"


@dataclass(frozen=True, slots=True)
class FrontProxy:
    """Whom to believe. Header names in lower case; `allowed_names` empty: any name of that authority."""

    authority: str
    """PEM."""
    allowed_names: frozenset[str]
    username_headers: tuple[str, ...]
    group_headers: tuple[str, ...]
    extra_prefixes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Caller:
    """On whose behalf the front proxy asks."""

    user: str
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


class Stranger(Exception):
    """Not the front proxy: `code` is 401 without a certificate, 403 with another's."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code

    @property
    def reason(self) -> str:
        """Of a `metav1.Status`."""
        return "Unauthorized" if self.code == 401 else "Forbidden"


def front_proxy(config_map: Mapping[str, Any] | None) -> FrontProxy | None:
    """None: the API server has no front proxy, or says of it what cannot be read."""
    data = (config_map or {}).get("data") or {}
    authority = data.get(f"{PREFIX}client-ca-file")
    try:
        names, users, groups, extra = (
            _strings(data.get(f"{PREFIX}{field}", "[]"))
            for field in ("allowed-names", "username-headers", "group-headers", "extra-headers-prefix")
        )
    except ValueError:
        return None
    if not authority or not users:
        return None
    lowered = [tuple(name.lower() for name in headers) for headers in (users, groups, extra)]
    return FrontProxy(str(authority), frozenset(names), lowered[0], lowered[1], lowered[2])


def identify(proxy: FrontProxy, certificate: Mapping[str, Any] | None, headers: Iterable[tuple[str, str]]) -> Caller:
    """`certificate`: the verified one, as `ssl` describes it. Raises Stranger."""
    if not certificate:
        raise Stranger(401, "a client certificate of the API server's front proxy is needed")
    name = _common_name(certificate)
    if proxy.allowed_names and name not in proxy.allowed_names:
        raise Stranger(403, f"{name} is not the API server's front proxy")
    lowered = [(header.lower(), value) for header, value in headers]
    user = next((value for wanted in proxy.username_headers for header, value in lowered if header == wanted), "")
    if not user:
        raise Stranger(401, "the front proxy does not say for whom it asks")
    groups = tuple(value for header, value in lowered if header in proxy.group_headers)
    return Caller(user, groups, _extra(proxy.extra_prefixes, lowered))


def _extra(prefixes: Sequence[str], headers: Iterable[tuple[str, str]]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    found: dict[str, tuple[str, ...]] = {}
    for header, value in headers:
        prefix = next((prefix for prefix in prefixes if header.startswith(prefix)), None)
        if prefix is not None:
            key = unquote(header[len(prefix) :])
            found[key] = (*found.get(key, ()), value)
    return tuple(sorted(found.items()))


def _common_name(certificate: Mapping[str, Any]) -> str:
    pairs = (pair for relative in certificate.get("subject", ()) for pair in relative)
    return next((str(value) for key, value in pairs if key == "commonName"), "")


def _strings(text: str) -> tuple[str, ...]:
    """A list of strings in JSON. Raises ValueError."""
    values = json.loads(text)
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise ValueError("not a list of strings")
    return tuple(values)
