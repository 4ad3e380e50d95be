"""What the plugin reads and writes in a cluster, one line of intent a call."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from kvik_kubectl.connection import MERGE_PATCH, Response, Where
from kvik_kubectl.errors import NoAnswerError, PluginError

Object = Mapping[str, Any]

LABEL_POOL: Final = "kvik.dev/pool"
METRICS_PORT: Final = 8001
LOAD_SECONDS: Final = 5.0
"""For a pod to tell its load, which an engine that lives does within milliseconds."""
FIELD_MANAGER: Final = "kubectl-kvik"
_POOLS: Final = "/apis/kvik.dev/v1alpha1/namespaces/{namespace}/inferencepools/{name}"
_NOT_SERVED: Final = "this cluster does not serve inferencepools.kvik.dev: is Kvik installed?"
_OK: Final = range(200, 300)


@dataclass(frozen=True, slots=True)
class Evicted:
    """The pod is told to stop; it goes on until its running answers have ended."""


@dataclass(frozen=True, slots=True)
class Gone:
    """There is no such pod any more."""


@dataclass(frozen=True, slots=True)
class NotYet:
    """A disruption budget, or a busy server, does not allow it now. `retry_after` in seconds, where the server says."""

    reason: str
    retry_after: float | None


class Cluster:
    """One namespace. Every method raises PluginError with the server's words."""

    def __init__(self, where: Where) -> None:
        self._transport = where.transport
        self.namespace = where.namespace

    def pool(self, name: str) -> Object:
        return self._pool_of(name, self._transport.request("GET", self._pool_path(name)))

    def pools(self) -> Sequence[Object]:
        """All of the namespace, by name."""
        answer = self._transport.request("GET", self._pool_path("").rstrip("/"))
        if answer.status == 404:
            raise PluginError(_NOT_SERVED)
        return sorted(self._checked(answer)["items"], key=lambda pool: str(pool["metadata"]["name"]))

    def patch_pool(self, name: str, patch: Object, *, dry_run: bool = False) -> Object:
        """RFC 7386. With a resourceVersion in it, PluginError if the pool has changed since."""
        query = {"fieldManager": FIELD_MANAGER, "fieldValidation": "Strict"} | ({"dryRun": "All"} if dry_run else {})
        answer = self._transport.request(
            "PATCH", self._pool_path(name), query=query, body=patch, content_type=MERGE_PATCH
        )
        if answer.status == 409:
            raise PluginError(f"pool {name} has changed meanwhile: look at it and run this again")
        return self._pool_of(name, answer)

    def revisions(self, pool: str) -> Sequence[Object]:
        """The ControllerRevisions with the pool's label, whoever they belong to."""
        path = f"/apis/apps/v1/namespaces/{quote(self.namespace)}/controllerrevisions"
        answer = self._transport.request("GET", path, query={"labelSelector": f"{LABEL_POOL}={pool}"})
        items: Sequence[Object] = self._checked(answer)["items"]
        return items

    def pod(self, name: str) -> Object | None:
        """None: there is none of this name."""
        answer = self._transport.request("GET", self._pod_path(name))
        if answer.status == 404:
            return None
        pod: Object = self._checked(answer)
        return pod

    def pods(self, pool: str) -> Sequence[Object]:
        """With the pool's label, whatever they do."""
        path = f"/api/v1/namespaces/{quote(self.namespace, safe='')}/pods"
        answer = self._transport.request("GET", path, query={"labelSelector": f"{LABEL_POOL}={pool}"})
        items: Sequence[Object] = self._checked(answer)["items"]
        return items

    def load(self, pod: str) -> Object | str:
        """An engine's `GET /load`, through the API server's proxy; or in words why there is none.

        May be called by several threads at once.
        """
        path = f"{self._pod_path(pod)}:{METRICS_PORT}/proxy/load"
        try:
            answer = self._transport.request("GET", path, seconds=LOAD_SECONDS)
        except NoAnswerError:
            return f"nothing within {LOAD_SECONDS:.0f} s"
        if answer.status in _OK and isinstance(answer.body, Mapping):
            return answer.body
        return message_of(answer)

    def evict(self, name: str, uid: str) -> Evicted | Gone | NotYet:
        """Asks once. Only the pod with this uid is meant."""
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": self.namespace},
            "deleteOptions": {"preconditions": {"uid": uid}},
        }
        answer = self._transport.request("POST", f"{self._pod_path(name)}/eviction", body=body)
        match answer.status:
            case 404 | 409:
                return Gone()
            case 429:
                return NotYet(message_of(answer), answer.retry_after)
        self._checked(answer)
        return Evicted()

    def _pool_of(self, name: str, answer: Response) -> Object:
        if answer.status == 404:
            details = answer.body.get("details") or {} if isinstance(answer.body, Mapping) else {}
            if details.get("kind") == "inferencepools":
                raise PluginError(f"there is no pool {name} in namespace {self.namespace}")
            raise PluginError(_NOT_SERVED)
        pool: Object = self._checked(answer)
        return pool

    def _checked(self, answer: Response) -> Any:
        if answer.status not in _OK:
            raise PluginError(f"the API server says {answer.status}: {message_of(answer)}")
        return answer.body

    def _pool_path(self, name: str) -> str:
        return _POOLS.format(namespace=quote(self.namespace, safe=""), name=quote(name, safe=""))

    def _pod_path(self, name: str) -> str:
        return f"/api/v1/namespaces/{quote(self.namespace, safe='')}/pods/{quote(name, safe='')}"


def message_of(answer: Response) -> str:
    """The server's words in one line; of a refused eviction the budget's, which tell how many pods are missing."""
    if not isinstance(answer.body, Mapping):
        return " ".join(str(answer.body).split()) or "no message"
    causes = (answer.body.get("details") or {}).get("causes") or ()
    if answer.status == 429 and causes:
        return "; ".join(str(cause.get("message", "")) for cause in causes)
    return " ".join(str(answer.body.get("message") or answer.body.get("reason") or "no message").split())
