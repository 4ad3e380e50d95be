"""Every error the engine raises on purpose.

    KvikError
    ├── UserError            the caller's fault: 4xx, names the field, a retry cannot help
    │   ├── ModelNotFound    the request names a model that this engine does not serve (404)
    │   └── PayloadError     the message itself is wrong: too large, too slow, not JSON (api/error_body)
    ├── RetryableError       nothing is wrong with the request: 429 or 503 with Retry-After
    │   ├── QueueFull        maxQueuedRequests wait, or the first token would be late (429)
    │   └── NotServing       starting, draining, or the core is being restarted (503)
    ├── StartError           the process cannot start; `reason` is API, the pool's condition shows it
    ├── EngineDead           the core died under a request that had begun
    ├── ChoiceFailed         the core could not compute a choice (api/generation)
    └── TemplateError        the chat template refused or overran; becomes a UserError or a StartError (text/)

Anything else that escapes is a bug: it is logged with its traceback and answered with 500.
"""

from __future__ import annotations

from enum import StrEnum


class KvikError(Exception):
    """Base of all errors raised on purpose."""


class UserError(KvikError):
    """The request is wrong. `param` is the field as the client wrote it, `code` OpenAI's machine-readable word."""

    status = 400

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code


class ModelNotFound(UserError):
    """The request names a model that is not served here."""

    status = 404


class RetryableError(KvikError):
    """The same request may succeed later; `retry_after` is in seconds."""

    status = 503

    def __init__(self, message: str, *, retry_after: float, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after = retry_after
        self.code = code


class QueueFull(RetryableError):
    """The waiting queue is at its limit, or the first token would come too late."""

    status = 429


class NotServing(RetryableError):
    """The engine is starting, draining or restarting its core."""


class EngineDead(KvikError):
    """The core process ended while a request was running; the stream gets one error event."""


class StartReason(StrEnum):
    """Why an engine could not start. The names are API: operator conditions and docs/contract.md list them."""

    ACCELERATOR_NOT_VISIBLE = "AcceleratorNotVisible"
    INSUFFICIENT_MEMORY = "InsufficientMemory"
    MODEL_NOT_FOUND = "ModelNotFound"
    MODEL_INVALID = "ModelInvalid"
    MODEL_UNSUPPORTED = "ModelUnsupported"
    DIGEST_MISMATCH = "DigestMismatch"
    DOWNLOAD_FAILED = "DownloadFailed"
    DOWNLOAD_DENIED = "DownloadDenied"
    CONFIG_INVALID = "ConfigInvalid"
    PORT_IN_USE = "PortInUse"


class StartError(KvikError):
    """The process cannot start. Printed as `Reason: message`, also to the termination log."""

    def __init__(self, reason: StartReason, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message

    def __str__(self) -> str:
        return f"{self.reason}: {self.message}"
