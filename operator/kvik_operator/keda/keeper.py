"""Keeps the scaler's certificates: one that it presents, and one that KEDA presents to it.

Both lie with their authorities in the operator's own Secret. What KEDA needs is copied into a Secret in KEDA's
namespace, where the chart's ClusterTriggerAuthentication points. Every replica reads and serves; the leader writes.
"""

import base64
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Protocol

from kvik_operator.certificates import Held, Pair, Use, plan
from kvik_operator.errors import Unpresentable
from kvik_operator.upkeep import Problem, Upkeep

log = logging.getLogger(__name__)

Object = Mapping[str, Any]

CLIENT: Final = "client-"
"""What the entries of KEDA's certificate in the operator's Secret begin with."""
CLIENT_NAME: Final = "keda.kvik.dev"
SCALER_CERTIFICATE: Final = "keda-scaler"
CLIENT_CERTIFICATE: Final = "keda-client"
"""What the meter calls them."""
_NO_SECRET: Final = Problem("the Secret for the scaler's certificates is not there: the chart makes it")
_NO_SECRET_OF_KEDA: Final = Problem("the Secret for KEDA's certificate is not there: the chart makes it")
_EMPTY: Final = Problem(
    "the Secret of the scaler for KEDA holds no certificates yet: the leader makes them", for_leader=True
)


class SecretApi(Protocol):
    async def read(self) -> Object | None: ...

    async def replace(self, secret: Object, data: Mapping[str, str]) -> None: ...


class Presenter(Protocol):
    @property
    def serving(self) -> bool: ...

    async def present(self, pair: Pair, client_authorities: str) -> None:
        """Raises Unpresentable, OSError; all stays as it was then."""


class CertificateMeter(Protocol):
    def certificate_presented(self, certificate: str, end: datetime) -> None: ...


@dataclass(frozen=True, slots=True)
class Certificates:
    """What the operator's Secret holds. None: nothing that can be used."""

    server: Held | None
    client: Held | None

    @classmethod
    def from_secret(cls, secret: Object) -> "Certificates":
        return cls(Held.from_secret(secret), Held.from_secret(secret, CLIENT))


class Keeper:
    """`ours` and `theirs`: the operator's Secret and KEDA's. `host`: the DNS name by which KEDA calls.

    `may_write`: whether this process is the leader now.
    """

    def __init__(
        self,
        ours: SecretApi,
        theirs: SecretApi,
        presenter: Presenter,
        host: str,
        meter: CertificateMeter,
        may_write: Callable[[], bool],
        utcnow: Callable[[], datetime],
    ) -> None:
        self._ours = ours
        self._theirs = theirs
        self._presenter = presenter
        self._host = host
        self._meter = meter
        self._may_write = may_write
        self._utcnow = utcnow
        self.upkeep = Upkeep("the scaler for KEDA", self.look, lambda: presenter.serving)

    async def look(self) -> Problem | None:
        """None: nothing is wrong. What is held is presented first, so that no write that fails ends the service.

        Raises ClusterError.
        """
        secret = await self._ours.read()
        if secret is None:
            return _NO_SECRET
        held = Certificates.from_secret(secret)
        found = await self._serve(held)
        if not self._may_write():
            return found
        kept, problem = await self._keep(secret, held)
        return (found if kept == held else await self._serve(kept)) or problem

    async def _serve(self, held: Certificates) -> Problem | None:
        if held.server is None or held.client is None:
            return _EMPTY
        try:
            await self._presenter.present(held.server.current, held.client.bundle)
        except (Unpresentable, OSError) as error:
            return Problem(f"the certificate of the scaler for KEDA cannot be presented: {error}")
        for name, pair in ((SCALER_CERTIFICATE, held.server.current), (CLIENT_CERTIFICATE, held.client.current)):
            if (certificate := pair.parsed()) is not None:  # the leader makes KEDA's anew where it cannot be read
                self._meter.certificate_presented(name, certificate.not_valid_after_utc)
        return None

    async def _keep(self, secret: Object, held: Certificates) -> tuple[Certificates, Problem | None]:
        """A new authority of the scaler's is presented once KEDA's Secret has it; one of KEDA's after the overlap, in
        which every replica has read it.
        """
        theirs, now = await self._theirs.read(), self._utcnow()
        announced = held.server is not None and _entry(theirs, "ca.crt") == held.server.bundle
        server = plan(held.server, (self._host,), now, announced=announced, use=Use.KEDA_SCALER)
        client = plan(held.client, (CLIENT_NAME,), now, announced=True, use=Use.KEDA_CLIENT)
        if (server, client) != (held.server, held.client):
            await self._ours.replace(secret, server.secret_data() | client.secret_data(CLIENT))
            log.info("the certificates of the scaler for KEDA were written")
        wanted = Held(client.current, server.authorities).secret_data()
        if theirs is None:
            return Certificates(server, client), _NO_SECRET_OF_KEDA
        if theirs.get("data") != wanted:
            await self._theirs.replace(theirs, wanted)
        return Certificates(server, client), None


def _entry(secret: Object | None, name: str) -> str | None:
    try:
        return base64.b64decode(((secret or {}).get("data") or {}).get(name, "")).decode()
    except ValueError:
        return None
