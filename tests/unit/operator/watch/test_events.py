"""kopf's settings, each against the way in which kopf 1.45 would otherwise do harm."""

import collections.abc
import itertools
from typing import Any

from kopf._cogs.structs.references import Resource

from kvik_operator.kube.kinds import watched
from kvik_operator.names import OPTIONAL_KINDS, PoolKey
from kvik_operator.watch.events import NOBODYS_FINALIZER, EndlessBackoff, registry_for, settings_for

WATCHED = watched(OPTIONAL_KINDS)
SETTINGS = settings_for(WATCHED, 70.0)


def resource(group: str, version: str, plural: str) -> Resource:
    return Resource(group=group, version=version, plural=plural, namespaced=True, preferred=True)


def test_errors_are_retried_for_ever_and_anew_for_each_request() -> None:
    """kopf gives up after nine attempts, and the process exits (O8)."""
    backoffs = SETTINGS.networking.error_backoffs
    assert isinstance(backoffs, EndlessBackoff)
    assert not isinstance(backoffs, collections.abc.Sized)
    assert not isinstance(backoffs, collections.abc.Iterator)
    assert list(itertools.islice(backoffs, 6)) == [1, 2, 4, 8, 8, 8]
    assert next(iter(backoffs)) == 1


def test_no_object_loses_a_finalizer_to_us() -> None:
    assert SETTINGS.persistence.finalizer == NOBODYS_FINALIZER
    assert NOBODYS_FINALIZER != "kopf.zalando.org/KopfFinalizerMarker"


def test_a_watch_cannot_hang_for_ever() -> None:
    watching = SETTINGS.watching
    assert (watching.server_timeout, watching.client_timeout, watching.connect_timeout) == (300, 310.0, 30.0)
    assert watching.inactivity_timeout == 70.0


def test_kopf_posts_nothing_and_scans_nothing() -> None:
    assert not SETTINGS.posting.enabled
    assert SETTINGS.scanning.disabled


def test_children_are_limited_on_the_server_and_pools_are_not() -> None:
    collect = SETTINGS.watching.label_selectors.collect
    assert collect(resource("", "v1", "pods")) == ["kvik.dev/pool"]
    assert collect(resource("apps", "v1", "deployments")) == ["kvik.dev/pool"]
    assert collect(resource("kvik.dev", "v1alpha1", "inferencepools")) == []


def test_the_kind_of_the_same_name_in_another_group_is_not_ours() -> None:
    """GIE #1372: two groups share the plural; a bare plural would be ambiguous and not served at all."""
    registry = registry_for(WATCHED, lambda *_: (), lambda _: None)
    (ours,) = [s for s in registry._watching.get_all_selectors() if s.plural == "inferencepools"]
    assert ours.check(resource("kvik.dev", "v1alpha1", "inferencepools"))
    assert not ours.check(resource("inference.networking.k8s.io", "v1", "inferencepools"))
    assert len(registry._watching.get_all_selectors()) == len(WATCHED)


async def test_a_handler_returns_none_and_hands_on_the_pools_of_the_event() -> None:
    """kopf patches whatever a handler returns into `.status`."""
    heard: list[tuple[str, bool, str]] = []
    enqueued: list[PoolKey] = []

    def sink(kind: str, deleted: bool, obj: Any) -> list[PoolKey]:
        heard.append((kind, deleted, obj["metadata"]["name"]))
        return [PoolKey("demo", "chat")]

    registry = registry_for(WATCHED, sink, enqueued.extend)
    (handler,) = [h for h in registry._watching.get_all_handlers() if h.id == "watch-pods"]
    event = {"type": "DELETED", "object": {"metadata": {"name": "chat-1"}}}
    call: Any = handler.fn
    assert await call(event=event, body={}, logger=None) is None
    assert heard == [("Pod", True, "chat-1")]
    assert enqueued == [PoolKey("demo", "chat")]
