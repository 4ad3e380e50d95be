"""A model hub on 127.0.0.1 that behaves well or badly: what `kvik model pull hf://` talks to in tests."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPOSITORY = "org/model"


@dataclass
class HubState:
    """What the hub has and how it behaves."""

    files: dict[str, bytes]
    token: str | None = None
    """Required of clients."""
    gated: bool = False
    cut_after: int | None = None
    """The first answer of a file ends after so many bytes, the connection with it."""
    cut_always: bool = False
    """Every answer of a file does."""
    wrong_bytes: bool = False
    """Files have the right size and the wrong content (huggingface_hub #3643)."""
    fail: int | None = None
    """Answer everything with this status."""
    failures: int = 10**9
    """How often, before it gets well."""
    hang: threading.Event | None = None
    """Answer files only after it is set."""
    vanish: bool = False
    """The file list is there, the files are not."""
    ranges: list[str] = field(default_factory=list)
    """Range headers that came in: proof of resuming."""
    served: list[str] = field(default_factory=list)
    _cut: set[str] = field(default_factory=set)

    def handler(self) -> type[BaseHTTPRequestHandler]:
        return type("Handler", (_Handler,), {"state": self})


class _Handler(BaseHTTPRequestHandler):
    state: HubState
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self, *, body: bool) -> None:
        state = self.state
        if state.fail is not None and state.failures > 0:
            state.failures -= 1
            return self._error(state.fail)
        if state.token is not None and self.headers.get("Authorization") != f"Bearer {state.token}":
            return self._error(401)
        if state.gated:
            return self._error(403, {"X-Error-Code": "GatedRepo"})
        path = self.path.partition("?")[0]
        if re.fullmatch(rf"/api/models/{REPOSITORY}/revision/(main|{COMMIT})", path):
            return self._json(self._describe(), body)
        file = re.fullmatch(rf"/{REPOSITORY}/resolve/{COMMIT}/(.+)", path)
        if file is None or file[1] not in state.files or state.vanish:
            return self._error(404, {"X-Error-Code": "EntryNotFound" if file else "RepoNotFound"})
        return self._file(file[1], body)

    def _describe(self) -> dict[str, object]:
        siblings = [
            {
                "rfilename": name,
                "size": len(data),
                "lfs": {"sha256": sha256(data), "size": len(data), "pointerSize": 130},
            }
            for name, data in self.state.files.items()
        ]
        return {
            "id": REPOSITORY,
            "modelId": REPOSITORY,
            "sha": COMMIT,
            "siblings": siblings,
            "tags": [],
            "private": False,
        }

    def _file(self, name: str, body: bool) -> None:
        state = self.state
        data = state.files[name]
        sent = bytes(len(data)) if state.wrong_bytes else data
        start = 0
        if wanted := self.headers.get("Range"):
            state.ranges.append(wanted)
            start = int(wanted.removeprefix("bytes=").partition("-")[0])
        self.send_response(206 if start else 200)
        headers = {
            "ETag": f'"{sha256(data)}"',
            "X-Linked-ETag": f'"{sha256(data)}"',
            "X-Linked-Size": str(len(data)),
            "X-Repo-Commit": COMMIT,
            "Accept-Ranges": "bytes",
            "Content-Length": str(len(data) - start),
        }
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        for key, value in headers.items():
            self.send_header(key, value)
        self.end_headers()
        if not body:
            return
        if state.hang is not None:
            state.hang.wait(30)
        state.served.append(name)
        if state.cut_after is not None and (state.cut_always or name not in state._cut):
            state._cut.add(name)
            self.wfile.write(sent[start : start + state.cut_after])
            self.wfile.flush()
            self.close_connection = True
            return
        self.wfile.write(sent[start:])

    def _json(self, value: object, body: bool) -> None:
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if body:
            self.wfile.write(data)

    def _error(self, status: int, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.send_header("Content-Length", "0")
        self.end_headers()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@contextmanager
def hub(state: HubState) -> Iterator[str]:
    """Serve; the endpoint."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), state.handler())
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        if state.hang is not None:
            state.hang.set()
        server.shutdown()
        thread.join()
        server.server_close()
