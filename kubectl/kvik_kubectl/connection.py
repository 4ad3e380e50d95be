"""Which cluster and namespace are meant, as kubectl decides it, and HTTP calls to that API server.

--kubeconfig, else KUBECONFIG (several files are merged), else ~/.kube/config; --context, else the current one; -n, else
the context's namespace, else `default`.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from kvik_kubectl.errors import NoAnswerError, PluginError

JSON: Final = "application/json"
MERGE_PATCH: Final = "application/merge-patch+json"
DEFAULT_NAMESPACE: Final = "default"
DEFAULT_KUBECONFIG: Final = "~/.kube/config"
_CONNECT_SECONDS: Final = 10.0
ANSWER_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class Response:
    status: int
    body: Any
    """The parsed JSON; text where it is none."""
    retry_after: float | None = None
    """Seconds, where the server asks for a pause."""


class Transport(Protocol):
    def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        content_type: str = JSON,
        seconds: float = ANSWER_SECONDS,
    ) -> Response:
        """One call, whatever its status. Raises NoAnswerError where none has begun within `seconds`.

        May be called by several threads at once.
        """


@dataclass(frozen=True, slots=True)
class Where:
    transport: Transport
    namespace: str


def connect(kubeconfig: str | None, context: str | None, namespace: str | None, user_agent: str) -> Where:
    """Raises PluginError without a usable configuration; talks to nobody yet, but for a login program that it names."""
    from kubernetes.client import ApiClient, Configuration
    from kubernetes.config.config_exception import ConfigException
    from kubernetes.config.kube_config import KubeConfigLoader, KubeConfigMerger
    from yaml import YAMLError

    configuration = Configuration()
    configuration.retries = False
    files = kubeconfig or DEFAULT_KUBECONFIG
    try:
        merged = KubeConfigMerger(files).config
        if merged is None:
            raise PluginError(f"there is no kubeconfig at {files}")
        loader = KubeConfigLoader(merged, active_context=context, config_base_path=None)
        loader.load_and_set(configuration)
        of_context: Mapping[str, Any] = loader.current_context["context"]
    except (ConfigException, YAMLError, OSError, KeyError, TypeError) as error:
        raise PluginError(f"no usable kubeconfig: {_one_line(error)}") from error
    found = namespace or of_context.get("namespace") or DEFAULT_NAMESPACE
    api = ApiClient(configuration)
    api.user_agent = user_agent
    return Where(_HttpTransport(api), found)


class _HttpTransport:
    def __init__(self, api: Any) -> None:
        self._api = api

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        content_type: str = JSON,
        seconds: float = ANSWER_SECONDS,
    ) -> Response:
        from urllib3.exceptions import HTTPError

        try:
            _, url, headers, payload, _ = self._api.param_serialize(
                method,
                path,
                query_params=list((query or {}).items()),
                header_params={"Accept": JSON, "Content-Type": content_type},
                body=None if body is None else dict(body),
                auth_settings=["BearerToken"],
            )
            timeout = (_CONNECT_SECONDS, seconds)
            answer = self._api.call_api(method, url, headers, payload, _request_timeout=timeout)
            data = answer.read()
        except (HTTPError, OSError) as error:
            host = self._api.configuration.host
            raise NoAnswerError(f"the API server at {host} does not answer: {_one_line(error)}") from error
        return Response(answer.status, _parsed(data), _seconds(answer.getheader("Retry-After")))


def _parsed(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        return data.decode(errors="replace")


def _seconds(text: str | None) -> float | None:
    return float(text) if text is not None and text.isdecimal() else None


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
