"""The API server as the kubectl plugin sees it: one namespace in memory, and the plugin run against it."""

import argparse
import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from kvik_kubectl.__main__ import run
from kvik_kubectl.cluster import Cluster
from kvik_kubectl.connection import ANSWER_SECONDS, JSON, Response, Where
from kvik_kubectl.errors import NoAnswerError
from kvik_kubectl.session import Session
from tests.support.fake_cluster import merged

Object = dict[str, Any]
NOW = datetime(2026, 5, 1, 12, 0, 0, tzinfo=UTC)
UID = "11111111-1111-1111-1111-111111111111"


def not_found(kind: str, name: str) -> Response:
    body = {"kind": "Status", "message": f'{kind} "{name}" not found', "details": {"kind": kind, "name": name}}
    return Response(404, body)


def refused_eviction(words: str, retry_after: float | None = None) -> Response:
    """As the API server answers where a disruption budget does not allow it."""
    causes = [{"reason": "DisruptionBudget", "message": words}]
    message = "Cannot evict pod as it would violate the pod's disruption budget."
    return Response(429, {"kind": "Status", "message": message, "details": {"causes": causes}}, retry_after)


def make_revision(number: int, image: str = "kvik/engine:0.1.0-cpu", **spec: Any) -> Object:
    return {
        "metadata": {
            "name": f"chat-{number}",
            "creationTimestamp": (NOW - timedelta(hours=10 - number)).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "ownerReferences": [{"kind": "InferencePool", "name": "chat", "uid": UID, "controller": True}],
        },
        "revision": number,
        "data": {
            "spec": {"model": {"source": "file:///models/x"}, **spec},
            "image": image,
            "effective": {},
            "template": {},
        },
    }


@dataclass
class PluginApi:
    """Holds a pool `chat`, its revisions and a pod; answers what the plugin asks."""

    spec: Object = field(default_factory=dict)
    status: Object = field(default_factory=dict)
    revisions: list[Object] = field(default_factory=list)
    pods: dict[str, Object] = field(default_factory=dict)
    loads: dict[str, Response] = field(default_factory=dict)
    """By pod: what its engine's `GET /load` comes back with through the proxy; a pod that is not there hangs."""
    evictions: list[Response] = field(default_factory=list)
    """What the next evictions are answered; 201 when there is none left."""
    installed: bool = True
    conflict: bool = False
    asked: list[tuple[str, str, Mapping[str, str], Any]] = field(default_factory=list)
    ticks: list[Callable[[], None]] = field(default_factory=list)
    """What happens in each pause, one after the other."""
    seconds: float = 0.0
    generation: int = 3

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
        self.asked.append((method, path, query or {}, copy.deepcopy(body)))
        parts = path.strip("/").split("/")
        assert parts[parts.index("namespaces") + 1] == "demo"
        match method, parts[parts.index("namespaces") + 2 :]:
            case "GET", ["inferencepools"]:
                return Response(200, {"items": [self._pool("chat").body]}) if self.installed else self._pool("")
            case "GET", ["inferencepools", name]:
                return self._pool(name)
            case "PATCH", ["inferencepools", name]:
                assert content_type == "application/merge-patch+json"
                return self._patch(name, query or {}, body or {})
            case "GET", ["controllerrevisions"]:
                assert query == {"labelSelector": "kvik.dev/pool=chat"}
                return Response(200, {"items": self.revisions})
            case "GET", ["pods"]:
                assert query == {"labelSelector": "kvik.dev/pool=chat"}
                return Response(200, {"items": list(self.pods.values())})
            case "GET", ["pods", address, "proxy", "load"]:
                name, _, port = address.partition(":")
                assert port == "8001"
                if name not in self.loads:
                    assert seconds <= 5
                    raise NoAnswerError("the API server at example.org does not answer: timed out")
                return self.loads[name]
            case "GET", ["pods", name]:
                return Response(200, self.pods[name]) if name in self.pods else not_found("pods", name)
            case "POST", ["pods", name, "eviction"]:
                return self._evict(name, body or {})
        raise AssertionError(f"unexpected {method} {path}")

    def writes(self) -> list[Any]:
        return [body for method, _, _, body in self.asked if method != "GET"]

    def condition(self, type_: str, status: str, reason: str, message: str = "") -> None:
        """Of the present generation, which the operator has then seen."""
        others = [one for one in self.status.get("conditions", []) if one["type"] != type_]
        told = {"type": type_, "status": status, "reason": reason, "message": message}
        self.status["conditions"] = [*others, {**told, "observedGeneration": self.generation}]
        self.status["observedGeneration"] = self.generation

    def _pool(self, name: str) -> Response:
        if not self.installed:
            return Response(404, "404 page not found")
        if name != "chat":
            return not_found("inferencepools", name)
        metadata = {"name": name, "uid": UID, "generation": self.generation, "resourceVersion": str(self.generation)}
        spec = {"model": {"source": "file:///models/x"}, **self.spec}
        return Response(200, copy.deepcopy({"metadata": metadata, "spec": spec, "status": self.status}))

    def _patch(self, name: str, query: Mapping[str, str], patch: Mapping[str, Any]) -> Response:
        if self.conflict:
            return Response(409, {"message": "the object has been modified"})
        assert query["fieldManager"] == "kubectl-kvik"
        if query.get("dryRun") != "All":
            self.spec = merged(self._pool(name).body["spec"], patch["spec"])
            self.generation += 1
        return self._pool(name)

    def _evict(self, name: str, body: Mapping[str, Any]) -> Response:
        if self.evictions:
            return self.evictions.pop(0)
        if name not in self.pods:
            return not_found("pods", name)
        assert body["deleteOptions"]["preconditions"]["uid"] == self.pods[name]["metadata"]["uid"]
        self.pods[name]["metadata"]["deletionTimestamp"] = "2026-05-01T12:00:00Z"
        return Response(201, {"status": "Success"})

    def pause(self, seconds: float) -> None:
        self.seconds += seconds
        if self.ticks:
            self.ticks.pop(0)()


def make_plugin_pod(name: str = "chat-1", **metadata: Any) -> Object:
    labels = {"kvik.dev/pool": "chat"}
    return {
        "metadata": {"name": name, "uid": f"uid-{name}", "labels": labels, **metadata},
        "spec": {"terminationGracePeriodSeconds": 135},
        "status": {"phase": "Running"},
    }


def make_load(**figures: Any) -> Response:
    """What a warm engine with a tenth of its cache in use answers, but for `figures`."""
    load = {
        "schema": 1,
        "state": "ready",
        "step": 100,
        "kv_blocks_used": 100,
        "kv_blocks_total": 1000,
        "running": 3,
        "waiting": 0,
        "refused_total": 0,
        "waiting_prompt_tokens": 0,
        "prefill_tokens_per_second": 500.0,
        "ttft_p90_seconds": 0.123,
        "warm_since": "2026-05-01T11:00:00Z",
    }
    return Response(200, load | figures)


def plugin(api: PluginApi, *arguments: str) -> tuple[int, list[str]]:
    """`kubectl kvik` in namespace demo, in a time of its own: the exit code and what it said."""
    said: list[str] = []

    def session_of(_: argparse.Namespace) -> Session:
        return Session(Cluster(Where(api, "demo")), said.append, lambda: api.seconds, api.pause, lambda: NOW)

    return run(arguments, session_of), said
