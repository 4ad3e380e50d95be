"""Which APIs the server serves. A failure to ask is never read as an absence."""

from collections.abc import Awaitable, Callable

from kvik_operator.errors import ClusterError, NotFound
from kvik_operator.kube.transport import Transport
from kvik_operator.names import OPTIONAL_KINDS, ChildKind


async def served_plurals(transport: Transport, api_version: str) -> frozenset[str]:
    """The plurals under `kvik.dev/v1alpha1` or `v1`; empty if the version is not served. Raises ClusterError."""
    prefix = "apis" if "/" in api_version else "api"
    try:
        answer = await transport.request(f"discover {api_version}", "GET", f"/{prefix}/{api_version}")
    except NotFound:
        return frozenset()
    return frozenset(str(resource["name"]) for resource in answer.get("resources") or ())


async def served_optional_kinds(transport: Transport) -> frozenset[ChildKind]:
    """Those of OPTIONAL_KINDS that the server has. Raises ClusterError."""
    return frozenset(
        [kind for kind in OPTIONAL_KINDS if kind.plural in await served_plurals(transport, kind.api_version)]
    )


async def wait_until_served(
    transport: Transport,
    api_version: str,
    plural: str,
    *,
    on_wait: Callable[[ClusterError | None], None],
    pause: Callable[[], Awaitable[bool]],
) -> bool:
    """True once the resource is served; False when `pause` says that it is no use to go on.

    `on_wait` hears before each pause why (None: the resource is not installed).
    """
    while True:
        problem: ClusterError | None = None
        try:
            if plural in await served_plurals(transport, api_version):
                return True
        except ClusterError as error:
            problem = error
        on_wait(problem)
        if not await pause():
            return False
