"""The gRPC port: TLS both ways, and a change of certificates takes hold with the next connection."""

import threading
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

import grpc
from cryptography import x509

from kvik_operator.certificates import UNREADABLE, Pair
from kvik_operator.errors import Unpresentable
from kvik_operator.keda.protocol import services

STOP_SECONDS: Final = 1.0
MAX_MESSAGE_BYTES: Final = 65536
"""A request names one ScaledObject."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """How many connections there may be, handshakes among them, and the bounds of each. Times are seconds.

    Unlike the HTTP ports', one too many is cut off, since gRPC ends no other for it. KEDA has one to each replica.
    `handshake_seconds` runs from connecting to the end of TLS's and HTTP/2's beginnings. After `age_seconds` a client
    has to connect anew, by the certificates of that time, and calls that go on end `grace_seconds` later.
    """

    connections: int = 100
    handshake_seconds: float = 10.0
    age_seconds: float = 600.0
    grace_seconds: float = 10.0
    calls: int = 100

    def options(self) -> list[tuple[str, int]]:
        return [
            ("grpc.max_allowed_incoming_connections", self.connections),
            ("grpc.server_handshake_timeout_ms", _milliseconds(self.handshake_seconds)),
            ("grpc.max_connection_age_ms", _milliseconds(self.age_seconds)),
            ("grpc.max_connection_age_grace_ms", _milliseconds(self.grace_seconds)),
            ("grpc.max_concurrent_streams", self.calls),
        ]


BOUNDS: Final = Bounds()


class Listener:
    """An async context manager. Opens its port when `present` is called first."""

    def __init__(self, scaler: object, host: str, port: int, bounds: Bounds = BOUNDS) -> None:
        self._address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        ours = [("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES)]
        self._server = grpc.aio.server(options=ours + bounds.options())
        services.add_ExternalScalerServicer_to_server(scaler, self._server)
        self._certificates = _Certificates()
        self.port: int | None = None
        """None: nothing was presented yet."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._server.stop(STOP_SECONDS)

    @property
    def serving(self) -> bool:
        return self.port is not None

    async def present(self, pair: Pair, client_authorities: str) -> None:
        """From the next connection on: this certificate, to clients with one of these authorities (PEM).

        Raises Unpresentable, and OSError if the port cannot be had; all stays as it was then.
        """
        _check(pair, client_authorities)
        if self.port is None:
            first = _configuration(pair, client_authorities)
            credentials = grpc.dynamic_ssl_server_credentials(first, self._certificates.fetch, True)
            try:
                self.port = self._server.add_secure_port(self._address, credentials)
            except RuntimeError as error:
                raise OSError(f"{self._address} cannot be had: {error}") from error
            await self._server.start()
        self._certificates.change(pair, client_authorities)


def _check(pair: Pair, client_authorities: str) -> None:
    """gRPC takes what it cannot read without a word, and then lets nobody in. Raises Unpresentable."""
    if pair.parsed() is None:
        raise Unpresentable("the Secret's certificate and key cannot be read, or are not of each other")
    try:
        x509.load_pem_x509_certificates(client_authorities.encode())
    except UNREADABLE as error:
        raise Unpresentable(f"the authority of KEDA's certificate is no certificate in PEM: {error}") from error


def _milliseconds(seconds: float) -> int:
    return round(1000 * seconds)


def _configuration(pair: Pair, client_authorities: str) -> Any:
    chain = [(pair.key.encode(), pair.certificate.encode())]
    return grpc.ssl_server_certificate_configuration(chain, client_authorities.encode())


class _Certificates:
    """Asked by gRPC's own threads before each handshake."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: tuple[Pair, str] | None = None
        self._changed: Any = None

    def change(self, pair: Pair, client_authorities: str) -> None:
        if self._known == (pair, client_authorities):
            return
        with self._lock:
            self._known = pair, client_authorities
            self._changed = _configuration(pair, client_authorities)

    def fetch(self) -> Any:
        """None: as before."""
        with self._lock:
            changed, self._changed = self._changed, None
            return changed
