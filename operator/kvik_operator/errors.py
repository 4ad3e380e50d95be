"""The operator's errors, by who can do something about them.

    KvikOperatorError
    ├── PoolError            the user's: a condition names the field; never retried by itself
    ├── Unpresentable        an API cannot be served with what the cluster holds for it: looked at again
    └── ClusterError         the API server refused or did not answer
        ├── NotFound
        ├── Conflict         the object changed meanwhile: read again
        ├── Refused          a retry cannot help before somebody changes something (403, 422, 400)
        └── Unavailable      429, 5xx, time-outs, broken connections: retry after `delay`

Anything else that is raised is a bug of ours: a traceback and a metric.
"""

from dataclasses import dataclass


class KvikOperatorError(Exception):
    """Root of all errors the operator raises on purpose."""


@dataclass(eq=False)
class PoolError(KvikOperatorError):
    """A pool says something that cannot be done; `field` is the path under the object, such as `spec.model.source`."""

    field: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


class Unpresentable(KvikOperatorError):
    """A certificate, key or authority, as it lies in the cluster, that TLS cannot use."""


@dataclass(eq=False)
class ClusterError(KvikOperatorError):
    """An answer of the API server other than success.

    `what` names the call (`apply Deployment demo/chat`), `status` is the HTTP code (None: no answer),
    `reason` the API's machine-readable reason (`Forbidden`, `AlreadyExists`), `message` its text.
    """

    what: str
    status: int | None
    reason: str
    message: str

    def __str__(self) -> str:
        return f"{self.what}: {self.status or 'no answer'} {self.reason}: {self.message}"


class NotFound(ClusterError):
    """404: the object, its namespace or its kind is not there."""

    def is_about(self, name: str) -> bool:
        """Whether an object of this name is missing (`pods "x" not found`); an API that is not served names none."""
        return f'"{name}" not found' in self.message


class Conflict(ClusterError):
    """409: another writer was faster, or a precondition (uid, resourceVersion) no longer holds."""


class Refused(ClusterError):
    """400, 403 or 422: the same call will be refused again until the object, RBAC or a quota changes."""

    @property
    def namespace_terminating(self) -> bool:
        return self.status == 403 and "being terminated" in self.message

    @property
    def access_denied(self) -> bool:
        """RBAC said no: `User "…" cannot patch resource "deployments" in API group "apps" …`."""
        return self.status == 403 and " cannot " in self.message and not self.namespace_terminating


@dataclass(eq=False)
class Unavailable(ClusterError):
    """No answer, 429 or 5xx. `delay`, in seconds: the server's Retry-After, else None: the queue decides."""

    delay: float | None = None
