"""Where the external scaler listens, how KEDA reaches it, and where its certificates lie."""

from dataclasses import dataclass

from kvik_operator.objects.scaled_object import KedaTrigger


@dataclass(frozen=True, slots=True)
class KedaOptions:
    """`service` and `secret` are in `namespace`, where the operator runs; `client_secret` is in KEDA's namespace.

    `authentication`: the ClusterTriggerAuthentication that points to `client_secret`.
    """

    host: str
    port: int
    service: str
    service_port: int
    secret: str
    namespace: str
    client_secret: str
    client_namespace: str
    authentication: str

    @property
    def service_host(self) -> str:
        return f"{self.service}.{self.namespace}.svc"

    @property
    def trigger(self) -> KedaTrigger:
        return KedaTrigger(f"{self.service_host}:{self.service_port}", self.authentication)
