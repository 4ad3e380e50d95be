"""The TLS port: its certificate and the authority of its clients may change while it serves, and no connection breaks.

The socket stays the same. What changes makes a second server on it, and then the first one stops accepting.
"""

import socket
import ssl
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from aiohttp import web

from kvik_operator.certificates import Pair

BACKLOG = 128
MAX_HEADER_BYTES = 32768
"""A caller's groups and extra fields come in headers."""
SHUTDOWN_SECONDS = 1.0


class Listener:
    """An async context manager. Accepts nobody before `present` was called."""

    def __init__(self, app: web.Application, host: str, port: int) -> None:
        self._runner = web.AppRunner(
            app,
            access_log=None,
            shutdown_timeout=SHUTDOWN_SECONDS,
            max_line_size=MAX_HEADER_BYTES,
            max_field_size=MAX_HEADER_BYTES,
        )
        self._address = (host, port)
        self._socket: socket.socket | None = None
        self._site: web.SockSite | None = None
        self._presented: tuple[Pair, str] | None = None

    async def __aenter__(self) -> Self:
        self._socket = socket.create_server(
            self._address, family=socket.AF_INET6 if ":" in self._address[0] else socket.AF_INET, backlog=BACKLOG
        )
        await self._runner.setup()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._runner.cleanup()
        if self._socket is not None:
            self._socket.close()

    @property
    def port(self) -> int:
        assert self._socket is not None, "use as an async context manager"
        port: int = self._socket.getsockname()[1]
        return port

    @property
    def serving(self) -> bool:
        return self._site is not None

    async def present(self, pair: Pair, client_authority: str) -> None:
        """Serve new connections with this certificate, and believe client certificates of this authority (PEM).

        Raises ssl.SSLError if one of them cannot be read; all stays as it was then.
        """
        if self._presented == (pair, client_authority):
            return
        assert self._socket is not None, "use as an async context manager"
        context = server_context(pair, client_authority)
        before, site = self._site, web.SockSite(self._runner, self._socket.dup(), ssl_context=context)
        await site.start()
        self._site, self._presented = site, (pair, client_authority)
        if before is not None:
            await before.stop()


def server_context(pair: Pair, client_authority: str) -> ssl.SSLContext:
    """A client without a certificate is let in, to be told 401; one with a wrong one is cut off by TLS itself."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_OPTIONAL
    context.load_verify_locations(cadata=client_authority)
    with tempfile.TemporaryDirectory(prefix="kvik-tls-") as folder:  # readable by this process's user only
        certificate, key = Path(folder, "tls.crt"), Path(folder, "tls.key")
        certificate.write_text(pair.certificate)
        key.write_text(pair.key)
        context.load_cert_chain(certificate, key)
    return context
