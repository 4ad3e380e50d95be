"""Keeps the scaler's certificates: one that it presents, and one that KEDA presents to it.

Both lie with their authorities in the operator's own Secret. What KEDA needs is copied into a Secret in KEDA's
namespace, where the chart's ClusterTriggerAuthentication points. Every replica reads and serves; the leader writes.
"""

import asyncio
import base64
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Protocol

from kvik_operator.certificates import Held, Pair, Use, plan
from kvik_operator.errors import ClusterError

log = logging.getLogger(__name__)

Object = Mapping[str, Any]

PERIOD_SECONDS: Final = 15.0
RETRY_SECONDS: Final = 2.0
"""While nothing is served."""
CLIENT: Final = "client-"
"""What the entries of KEDA's certificate in the operator's Secret begin with."""
CLIENT_NAME: Final = "keda.kvik.dev"
_LEADER_HAS_TO: Final = "the Secret of the scaler for KEDA holds no certificates yet: the leader makes them"


class SecretApi(Protocol):
    async def read(self) -> Object | None: ...

    async def replace(self, secret: Object, data: Mapping[str, str]) -> None: ...


class Presenter(Protocol):
    @property
    def serving(self) -> bool: ...

    async def present(self, pair: Pair, client_authorities: str) -> None: ...


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
        may_write: Callable[[], bool],
        utcnow: Callable[[], datetime],
    ) -> None:
        self._ours = ours
        self._theirs = theirs
        self._presenter = presenter
        self._host = host
        self._may_write = may_write
        self._utcnow = utcnow
        self._problem: str | None = "the scaler for KEDA has not been looked after yet"

    def problem(self) -> str | None:
        """From any thread: why nothing is served; None: it is, or will be as soon as there is a leader that serves."""
        return None if self._presenter.serving or self._problem == _LEADER_HAS_TO else self._problem

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                self._problem = await self.look()
            except (ClusterError, OSError) as error:
                self._problem = f"the scaler for KEDA could not be looked after: {error}"
            if self._problem is not None:
                log.warning("the scaler for KEDA is not in order", extra={"problem": self._problem})
            await asyncio.sleep(PERIOD_SECONDS if self._presenter.serving else RETRY_SECONDS)

    async def look(self) -> str | None:
        """Returns what is wrong in words; None: nothing. Raises ClusterError, OSError."""
        secret = await self._ours.read()
        if secret is None:
            return "the Secret for the scaler's certificates is not there: the chart makes it"
        held, problem = Certificates.from_secret(secret), None
        if self._may_write():
            held, problem = await self._keep(secret, held)
        if held.server is None or held.client is None:
            return _LEADER_HAS_TO
        await self._presenter.present(held.server.current, held.client.bundle)
        return problem

    async def _keep(self, secret: Object, held: Certificates) -> tuple[Certificates, str | None]:
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
            return Certificates(server, client), "the Secret for KEDA's certificate is not there: the chart makes it"
        if theirs.get("data") != wanted:
            await self._theirs.replace(theirs, wanted)
        return Certificates(server, client), None


def _entry(secret: Object | None, name: str) -> str | None:
    try:
        return base64.b64decode(((secret or {}).get("data") or {}).get(name, "")).decode()
    except ValueError:
        return None
