"""One request as the API process sees it: what the core said of it and nobody has read yet.

News is joined, not queued: a reader that falls behind gets more tokens at once, so what waits is bounded by the
request's own n x max_tokens. Used by the event loop's thread only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from kvik_engine.errors import EngineDead
from kvik_engine.ipc.merge import merge_outputs
from kvik_engine.ipc.messages import Abort, Output


class RequestStream:
    """Made by EngineClient.submit. `wake` is set at news; several streams may share one. Always released in the end."""

    def __init__(
        self, api_id: int, request_id: int, choices: int, wake: asyncio.Event, abort: Callable[[Abort], None]
    ) -> None:
        self.request_id = request_id
        self._api_id = api_id
        self._abort = abort
        self._wake = wake
        self._open = set(range(choices))
        """Choices that the core still computes."""
        self._unread: dict[int, Output] = {}
        self._dead = False

    def take(self) -> list[Output]:
        """News since the last call, at most one Output a choice.

        Raises EngineDead when the core died, after everything it had said was taken.
        """
        if self._dead:
            if not self._unread:
                raise EngineDead("The engine stopped while it was answering.")
            self._wake.set()  # nothing else will: the next call raises
        unread = list(self._unread.values())
        self._unread.clear()
        return unread

    def stop_choice(self, choice: int, accepted_tokens: int) -> None:
        """A stop string ended `choice` after `accepted_tokens` output tokens; the core is told to stop computing it."""
        self._unread.pop(choice, None)
        if choice in self._open:
            self._open.discard(choice)
            self._abort(Abort(self._api_id, self.request_id, choice, accepted_tokens))

    def close(self) -> None:
        """Abort the request unless it has ended. Nothing is delivered afterwards."""
        if self._open and not self._dead:
            self._abort(Abort(self._api_id, self.request_id))
        self._open.clear()
        self._unread.clear()

    def deliver(self, output: Output) -> None:
        """Called by the client for each Output of this request."""
        if output.choice not in self._open:
            return
        known = self._unread.get(output.choice)
        self._unread[output.choice] = output if known is None else merge_outputs(known, output)
        if output.finish is not None:
            self._open.discard(output.choice)
        self._wake.set()

    def fail(self) -> None:
        """Called by the client when the core died."""
        if self._open:
            self._dead = True
            self._wake.set()
