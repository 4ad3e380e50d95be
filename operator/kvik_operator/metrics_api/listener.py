"""The TLS port: its certificate and the authority of its clients may change while it serves.

Each connection is let in by the certificate and the authority of that moment. A new certificate ends no connection; a
new authority ends them all, since the one that vouched for them may be believed no more.
"""

import ssl
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from aiohttp import web

from kvik_operator.certificates import Pair
from kvik_operator.errors import Unpresentable
from kvik_operator.serving.connection import Bounds
from kvik_operator.serving.port import Port

BOUNDS: Final = Bounds(connections=128, head_bytes=64 << 10)
"""API servers are few. A caller's groups and extra fields come in headers."""


class Listener:
    """An async context manager. Accepts nobody before `present` was called."""

    def __init__(self, app: web.Application, host: str, port: int, bounds: Bounds = BOUNDS) -> None:
        self._port = Port(app, host, port, bounds)
        self._presented: tuple[Pair, str] | None = None

    async def __aenter__(self) -> Self:
        await self._port.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._port.__aexit__(kind, error, trace)

    @property
    def port(self) -> int:
        return self._port.number

    @property
    def connections(self) -> int:
        return self._port.connections

    @property
    def serving(self) -> bool:
        return self._presented is not None

    def present(self, pair: Pair, client_authority: str) -> None:
        """Serve new connections with this certificate, and believe client certificates of this authority (PEM) only.

        Raises Unpresentable or, for want of files or disk, OSError; all stays as it was then.
        """
        if self._presented == (pair, client_authority):
            return
        self._port.open(server_context(pair, client_authority))
        if self._presented is not None and self._presented[1] != client_authority:
            self._port.leave()
        self._presented = (pair, client_authority)


def server_context(pair: Pair, client_authority: str) -> ssl.SSLContext:
    """A client without a certificate is let in, to be told 401; one with a wrong one is cut off by TLS itself.

    Raises Unpresentable, OSError.
    """
    if pair.parsed() is None:
        raise Unpresentable("the Secret's certificate and key cannot be read, or are not of each other")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_OPTIONAL
    try:
        context.load_verify_locations(cadata=client_authority)
    except (ssl.SSLError, TypeError, ValueError) as error:  # broken, not ASCII, empty
        raise Unpresentable(f"the front proxy's authority is no certificate in PEM: {error}") from error
    with tempfile.TemporaryDirectory(prefix="kvik-tls-") as folder:  # readable by this process's user only
        certificate, key = Path(folder, "tls.crt"), Path(folder, "tls.key")
        certificate.write_bytes(pair.certificate.encode())
        key.write_bytes(pair.key.encode())
        try:
            context.load_cert_chain(certificate, key)
        except ssl.SSLError as error:
            raise Unpresentable(f"TLS takes the Secret's certificate for none: {error}") from error
    return context
