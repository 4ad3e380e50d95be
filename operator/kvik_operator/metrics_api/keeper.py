"""Keeps the metrics APIs reachable: certificate in the Secret, authority in the APIServices, front proxy known.

Every replica reads and serves; the leader writes. An APIService that names another Service is somebody else's: it is
told of and left alone.
"""

import base64
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Protocol

from kvik_operator.certificates import Held, Pair, plan
from kvik_operator.errors import ClusterError, Unpresentable
from kvik_operator.metrics_api.callers import AUTHENTICATION_CONFIG_MAP, FrontProxy, front_proxy
from kvik_operator.upkeep import Problem, Upkeep

log = logging.getLogger(__name__)

Object = Mapping[str, Any]

CERTIFICATE: Final = "metrics-api"
"""What the meter calls it."""
_NO_SECRET: Final = Problem("the Secret for the metrics API's certificate is not there: the chart makes it")
_EMPTY: Final = Problem("the metrics API's Secret holds no certificate yet: the leader makes it", for_leader=True)
_NO_PROXY: Final = Problem(
    f"the ConfigMap {AUTHENTICATION_CONFIG_MAP} names no front proxy: the API server does not aggregate"
)


class RegistrationApi(Protocol):
    async def read_secret(self) -> Object | None: ...

    async def replace_secret(self, secret: Object, data: Mapping[str, str]) -> None: ...

    async def read_authentication(self) -> Object | None: ...

    async def read_api_service(self, name: str) -> Object | None: ...

    async def set_ca_bundle(self, api_service: Object, bundle: str) -> None: ...


class Presenter(Protocol):
    @property
    def serving(self) -> bool: ...

    def present(self, pair: Pair, client_authority: str) -> None:
        """Raises Unpresentable, OSError; all stays as it was then."""


class RegistrationMeter(Protocol):
    def api_registered(self, api_service: str, ours: bool) -> None: ...

    def certificate_presented(self, certificate: str, end: datetime) -> None: ...


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
        self.upkeep = Upkeep("the metrics API", self.look, lambda: presenter.serving)
        self._owners: dict[str, str] = {}
        """What was last told of each APIService."""

    def proxy(self) -> FrontProxy | None:
        return self._proxy

    async def look(self) -> Problem | None:
        """None: nothing is wrong. What is held is presented first, so that no write that fails ends the service.

        Raises ClusterError.
        """
        secret = await self._api.read_secret()
        if secret is None:
            return _NO_SECRET
        held = Held.from_secret(secret)
        found = await self._serve(held)
        if not self._may_write():
            return found
        kept = await self._keep(secret, held)
        return found if kept == held else await self._serve(kept)

    async def _serve(self, held: Held | None) -> Problem | None:
        """The front proxy's names are believed only beside its authority."""
        if held is None:
            return _EMPTY
        try:
            proxy = front_proxy(await self._api.read_authentication()) or self._proxy
            if proxy is None:
                return _NO_PROXY
            self._presenter.present(held.current, proxy.authority)
        except (ClusterError, Unpresentable, OSError) as error:
            return Problem(f"the metrics API's certificate cannot be presented: {error}")
        self._proxy = proxy
        self._meter.certificate_presented(CERTIFICATE, held.current.end)
        return None

    async def _keep(self, secret: Object, held: Held | None) -> Held:
        """The APIServices learn of an authority before its certificate is presented: that is for a later look."""
        ours = await self._our_api_services()
        announced = held is not None and all(_bundle(one) == held.bundle for one in ours)
        wanted = plan(held, self._backend.dns_names, self._utcnow(), announced=announced)
        if wanted != held:
            await self._api.replace_secret(secret, wanted.secret_data())
            log.info("the metrics API's certificates were written", extra={"renewing": wanted.next is not None})
        await self._announce(wanted.bundle, ours)
        return wanted

    async def _announce(self, bundle: str, api_services: Sequence[Object]) -> None:
        """One that cannot be written keeps no other from it. Raises ClusterError."""
        failed: ClusterError | None = None
        for api_service in api_services:
            if _bundle(api_service) == bundle:
                continue
            try:
                await self._api.set_ca_bundle(api_service, bundle)
            except ClusterError as error:
                failed = failed or error
        if failed is not None:
            raise failed

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
