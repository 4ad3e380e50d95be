"""Keeps the metrics APIs reachable: certificate in the Secret, authority in the APIServices, front proxy known.

Every replica reads and serves; the leader writes. An APIService that names another Service is somebody else's: it is
told of and left alone.
"""

import asyncio
import base64
import logging
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Protocol

from kvik_operator.certificates import Held, Pair, plan
from kvik_operator.errors import ClusterError
from kvik_operator.metrics_api.callers import AUTHENTICATION_CONFIG_MAP, FrontProxy, front_proxy

log = logging.getLogger(__name__)

Object = Mapping[str, Any]

PERIOD_SECONDS: Final = 15.0
RETRY_SECONDS: Final = 2.0
"""While nothing is served."""
_LEADER_HAS_TO: Final = "the metrics API's Secret holds no certificate yet: the leader makes it"


class RegistrationApi(Protocol):
    async def read_secret(self) -> Object | None: ...

    async def replace_secret(self, secret: Object, data: Mapping[str, str]) -> None: ...

    async def read_authentication(self) -> Object | None: ...

    async def read_api_service(self, name: str) -> Object | None: ...

    async def set_ca_bundle(self, api_service: Object, bundle: str) -> None: ...


class Presenter(Protocol):
    @property
    def serving(self) -> bool: ...

    async def present(self, pair: Pair, client_authority: str) -> None: ...


class RegistrationMeter(Protocol):
    def api_registered(self, api_service: str, ours: bool) -> None: ...


@dataclass(frozen=True, slots=True)
class Backend:
    """The Service that leads to this API, as an APIService names it, and the APIServices that should lead to it."""

    service: str
    namespace: str
    api_services: tuple[str, ...]

    @property
    def dns_names(self) -> Sequence[str]:
        return [f"{self.service}.{self.namespace}.svc"]

    def owns(self, api_service: Object) -> bool:
        named = (api_service.get("spec") or {}).get("service") or {}
        return (named.get("namespace"), named.get("name")) == (self.namespace, self.service)


class Keeper:
    """`may_write`: whether this process is the leader now."""

    def __init__(
        self,
        api: RegistrationApi,
        presenter: Presenter,
        backend: Backend,
        meter: RegistrationMeter,
        may_write: Callable[[], bool],
        utcnow: Callable[[], datetime],
    ) -> None:
        self._api = api
        self._presenter = presenter
        self._backend = backend
        self._meter = meter
        self._may_write = may_write
        self._utcnow = utcnow
        self._proxy: FrontProxy | None = None
        self._problem: str | None = "the metrics API has not been looked after yet"
        self._owners: dict[str, str] = {}
        """What was last told of each APIService."""

    def proxy(self) -> FrontProxy | None:
        return self._proxy

    def problem(self) -> str | None:
        """From any thread: why nothing is served; None: it is, or will be as soon as there is a leader that serves.

        Where the API was just switched on, the leader is of before that, and ends only when this replica is ready.
        """
        return None if self._presenter.serving or self._problem == _LEADER_HAS_TO else self._problem

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                self._problem = await self.look()
            except (ClusterError, ssl.SSLError) as error:
                self._problem = f"the metrics API could not be looked after: {error}"
            if self._problem is not None:
                log.warning("the metrics API is not in order", extra={"problem": self._problem})
            await asyncio.sleep(PERIOD_SECONDS if self._presenter.serving else RETRY_SECONDS)

    async def look(self) -> str | None:
        """Returns what is wrong in words; None: nothing. Raises ClusterError, ssl.SSLError."""
        secret = await self._api.read_secret()
        if secret is None:
            return "the Secret for the metrics API's certificate is not there: the chart makes it"
        held = Held.from_secret(secret)
        if self._may_write():
            held = await self._keep(secret, held)
        if held is None:
            return _LEADER_HAS_TO
        self._proxy = front_proxy(await self._api.read_authentication()) or self._proxy
        if self._proxy is None:
            return f"the ConfigMap {AUTHENTICATION_CONFIG_MAP} names no front proxy: the API server does not aggregate"
        await self._presenter.present(held.current, self._proxy.authority)
        return None

    async def _keep(self, secret: Object, held: Held | None) -> Held:
        """The APIServices learn of an authority before its certificate is presented: that is for a later look."""
        ours = await self._our_api_services()
        announced = held is not None and all(_bundle(one) == held.bundle for one in ours)
        wanted = plan(held, self._backend.dns_names, self._utcnow(), announced=announced)
        if wanted != held:
            await self._api.replace_secret(secret, wanted.secret_data())
            log.info("the metrics API's certificates were written", extra={"announced": wanted.next is not None})
        for api_service in ours:
            if _bundle(api_service) != wanted.bundle:
                await self._api.set_ca_bundle(api_service, wanted.bundle)
        return wanted

    async def _our_api_services(self) -> list[Object]:
        ours: list[Object] = []
        for name in self._backend.api_services:
            found = await self._api.read_api_service(name)
            owned = found is not None and self._backend.owns(found)
            self._meter.api_registered(name, owned)
            self._tell(name, found, owned=owned)
            if found is not None and owned:
                ours.append(found)
        return ours

    def _tell(self, name: str, found: Object | None, *, owned: bool) -> None:
        service = ((found or {}).get("spec") or {}).get("service") or {}
        owner = "nobody" if found is None else f"{service.get('namespace')}/{service.get('name')}"
        if self._owners.get(name) != owner:
            self._owners[name] = owner
            if owned:
                log.info("an APIService leads here", extra={"api_service": name})
            else:
                message = "an APIService does not lead here and is left alone"
                log.warning(message, extra={"api_service": name, "service": owner})


def _bundle(api_service: Object) -> str:
    try:
        return base64.b64decode((api_service.get("spec") or {}).get("caBundle") or "").decode()
    except ValueError:
        return ""
