"""What kopf watches, and with which settings. An event becomes an entry in the store and keys in the queue; no logic.

Found in kopf 1.45.2, and why each setting is here:
- `on.event` alone still strips kopf's finalizer marker from every object it sees, other operators' included
  (processing.py), hence a marker that nobody has; a handler's return value is patched into `.status`, hence None.
- A request is retried as long as `error_backoffs` lasts, then the watcher fails and the operator with it: ours is
  endless. It is iterated anew for each request, so it must be an iterable and not an iterator.
- A watch without time limits can hang for ever: 300 s are the server's, 310 s the client's, 30 s to connect.
- A bare plural is ambiguous beside another group's kind and is then silently not served: group, version and plural.
- Once a watcher fails, or kopf is told to stop, kopf may never end: a watch that is cancelled together with its
  pause-waiter takes the cancellation for a pause and goes on (clients/api.py, `stream`). So we wait for its end with
  a limit, and leave its loop behind.
- `spawn_tasks` installs signal handlers that only stop kopf; ours replace them, so that all of the process stops.
"""

import asyncio
import signal
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import kopf

from kvik_operator.kube.kinds import WatchedKind
from kvik_operator.names import FIELD_MANAGER, PoolKey

ENDING_SECONDS: Final = 4.0
NOBODYS_FINALIZER: Final = "kvik.dev/never-used-as-a-finalizer"

Sink = Callable[[str, bool, Mapping[str, Any]], Iterable[PoolKey]]
"""(kind, deleted, object) -> the pools concerned: the store's side of an event."""


class EndlessBackoff:
    """1, 2, 4, ... seconds up to `cap`, for ever, and from the start for each request.

    The cap is how late the watches may hear after an outage: they catch up within ten seconds.
    """

    def __init__(self, cap: float = 8.0) -> None:
        self._cap = cap

    def __iter__(self) -> Iterator[float]:
        delay = 1.0
        while True:
            yield min(delay, self._cap)
            delay = min(delay * 2, self._cap)


def settings_for(watched: Sequence[WatchedKind], inactivity: float) -> kopf.OperatorSettings:
    """`inactivity`: seconds without event or bookmark (one comes every 60) after which a watch is opened anew."""
    settings = kopf.OperatorSettings()
    settings.persistence.finalizer = NOBODYS_FINALIZER
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.peering.standalone = True
    settings.networking.error_backoffs = EndlessBackoff()
    settings.networking.request_timeout = 30.0
    settings.networking.connect_timeout = 10.0
    settings.watching.server_timeout = 300
    settings.watching.client_timeout = 310.0
    settings.watching.connect_timeout = 30.0
    settings.watching.inactivity_timeout = inactivity
    settings.process.ultimate_exiting_timeout = 30.0
    settings.queueing.exit_timeout = 0.2  # our handlers keep nothing that would have to be finished
    for kind in watched:
        if kind.selector is not None:
            settings.watching.label_selectors[kind.group, kind.version, kind.plural] = kind.selector
    return settings


def registry_for(
    watched: Sequence[WatchedKind], sink: Sink, enqueue: Callable[[Iterable[PoolKey]], None]
) -> kopf.OperatorRegistry:
    registry = kopf.OperatorRegistry()
    kopf.on.login(registry=registry)(kopf.login_via_client)
    for kind in watched:
        _watch(registry, kind, sink, enqueue)
    return registry


def _watch(
    registry: kopf.OperatorRegistry, kind: WatchedKind, sink: Sink, enqueue: Callable[[Iterable[PoolKey]], None]
) -> None:
    @kopf.on.event(
        group=kind.group, version=kind.version, plural=kind.plural, id=f"watch-{kind.plural}", registry=registry
    )
    async def on_event(event: kopf.RawEvent, **_: object) -> None:
        enqueue(sink(kind.kind, event["type"] == "DELETED", event["object"]))


async def watch_until_stopped(
    settings: kopf.OperatorSettings,
    registry: kopf.OperatorRegistry,
    namespaces: Collection[str],
    *,
    on_signal: Callable[[], None],
    stopping: Callable[[], bool],
    background: Callable[[], Any],
) -> None:
    """Run kopf in this loop, alone, until SIGTERM or SIGINT; raises what ended it otherwise. No namespaces: all.

    `background` makes a coroutine that lives beside kopf's tasks and that kopf does not cancel. Its end ends kopf.
    """
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    where: dict[str, Any] = {"namespaces": sorted(namespaces)} if namespaces else {"clusterwide": True}
    # Else kopf asks for the name of the process's user, and ends where a uid has none, as in most containers.
    where["identity"] = FIELD_MANAGER
    beside = asyncio.create_task(background())
    await asyncio.sleep(0)  # its own tasks must exist by now: kopf waits 5 s at its end for any it does not know
    ours = asyncio.all_tasks()

    def stop_all() -> None:
        on_signal()
        stop.set()

    tasks = await kopf.spawn_tasks(registry=registry, settings=settings, stop_flag=stop, standalone=True, **where)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop_all)
    if stopping():  # a signal that came before these handlers
        stop.set()
    running = asyncio.create_task(kopf.run_tasks(tasks, ignored=ours))
    try:
        await asyncio.wait([*tasks, beside], return_when=asyncio.FIRST_COMPLETED)
        if beside.done():
            stop.set()
        ended, _ = await asyncio.wait({running}, timeout=ENDING_SECONDS)
        if not ended and not stopping():
            raise TimeoutError("kopf did not end after one of its tasks had")
        if ended:
            await running
        if beside.done():
            await beside
    finally:
        beside.cancel()
