"""The operator under faults of the API server and of itself. Each ends in the state an undisturbed run ends in."""

import itertools
import os
import random
import signal
import time
from collections.abc import Mapping
from typing import Any

import pytest

from tests.support.fault_proxy import Answer, FaultProxy, Request
from tests.support.operator_process import OperatorProcess
from tests.support.operator_rig import CHILDREN, COLLECTED_WITHIN, Rig, essence, eventually, holds

pytestmark = pytest.mark.timeout(600)

QUICK = ("--relist-period=2", "--watch-inactivity=8")
"""Shorter periods than in production, so that a test need not last for minutes."""
DEAF_SOON = (*QUICK, "--deaf-after=3")
"""For tests whose API server answers: after an outage a watch may take up to eight seconds to come back."""


def replicas(rig: Rig) -> int:
    deployment = rig.deployment()
    return -1 if deployment is None else deployment["spec"]["replicas"]


def alive(operator: OperatorProcess) -> bool:
    return operator.exit_status() is None and operator.probe("/live")[0] == 200


def catches_up(rig: Rig, wanted: int, seconds: float) -> None:
    """A change that comes now reaches the Deployment."""
    rig.patch({"replicas": wanted})
    eventually("the change to arrive", lambda: replicas(rig) == wanted, seconds, rig.explain)


def test_a_restart_of_the_api_server_is_survived_and_caught_up_with(operated: Rig) -> None:
    """O5; kopf #996, #957, prometheus-operator #129."""
    rig = operated
    operator = rig.operator()
    rig.create()
    rig.wait_ready()
    rig.plane["kube-apiserver"].kill()
    holds("the operator stays alive", lambda: alive(operator), 12)  # longer than the fence, shorter than the lease
    used = operator.cpu_seconds()
    time.sleep(3)
    assert operator.cpu_seconds() - used < 1.5
    rig.plane["kube-apiserver"].start()
    rig.plane.wait_ready()
    catches_up(rig, 2, 15)
    rig.plane.restart_controllers()  # which the next test needs, too
    eventually("the second pod to be ready", lambda: ready_replicas(rig) == 2, 90, rig.explain)
    assert alive(operator)


def ready_replicas(rig: Rig) -> int:
    """As status tells it; 0 before it does."""
    count: int = ((rig.pool() or {}).get("status") or {}).get("readyReplicas", 0)
    return count


def test_a_403_for_twenty_seconds_does_not_end_the_operator(operated: Rig) -> None:
    """O8: kopf gives up after nine attempts, and the process exits at about 54 s."""
    rig = operated
    proxy = rig.proxy()
    operator = rig.operator(*QUICK, proxy=proxy)
    rig.create()
    rig.wait_ready()
    denied = Answer(403, "Forbidden", 'User "kvik" cannot list resource "pods" in API group ""')
    proxy.answer = lambda request: None if request.is_lease else denied
    proxy.cut_watches()
    holds("the operator stays alive", lambda: alive(operator), 20)
    proxy.behave()
    catches_up(rig, 2, 15)
    assert alive(operator)


def test_a_silent_watch_is_noticed_and_forgiven_when_it_speaks_again(operated: Rig) -> None:
    """O6; kopf #1276: watching stops and nothing says so."""
    rig = operated
    proxy = rig.proxy()
    operator = rig.operator(*DEAF_SOON, proxy=proxy)
    rig.create()
    rig.wait_ready()
    assert operator.probe("/live")[0] == 200
    # Before all watches have caught up once, one that brings nothing is given five minutes.
    before = relists(proxy)
    eventually("two more relists", lambda: relists(proxy) >= before + 2, 20, rig.explain)
    proxy.silent = True
    proxy.answer = lambda request: (
        Answer(503) if "watch" not in request.query and _lists_whole_objects(request) else None
    )
    rig.patch({"replicas": 2})
    _, said = eventually("liveness to fail", lambda: _failing(operator), 40, rig.explain)
    assert "a watch is deaf" in said
    proxy.behave()
    proxy.cut_watches()
    eventually("the operator to hear again", lambda: operator.probe("/live")[0] == 200, 40, rig.explain)
    eventually("what it hears to be done", lambda: replicas(rig) == 2, 10, rig.explain)


def relists(proxy: FaultProxy) -> int:
    """How often the pools have been listed to check the watches."""
    return sum("limit" in one.query and one.path.endswith("/inferencepools") for one in list(proxy.requests))


def test_an_empty_pool_label_on_a_strangers_object_does_not_count_as_a_deaf_watch(operated: Rig) -> None:
    rig = operated
    operator = rig.operator(*DEAF_SOON)
    rig.create()
    rig.wait_ready()
    rig.kubectl("create", "serviceaccount", "stranger")
    rig.kubectl("label", "serviceaccount/stranger", "kvik.dev/pool=")
    holds("the operator hears", lambda: alive(operator), 12)


def _lists_whole_objects(request: Request) -> bool:
    """kopf's own LIST before a watch, which would bring what the silent watch hides; the relist has a limit."""
    return request.method == "GET" and "limit" not in request.query and request.path.endswith("/inferencepools")


def _failing(operator: OperatorProcess) -> tuple[int, str] | None:
    status, text = operator.probe("/live")
    return (status, text) if status == 503 else None


def test_an_event_that_never_arrives_is_made_up_for_by_the_relist(operated: Rig) -> None:
    """O2; rabbitmq-operator #758."""
    rig = operated
    proxy = rig.proxy()
    rig.operator(*QUICK, proxy=proxy)
    rig.create()
    rig.wait_ready()
    proxy.keep_event = lambda event: not (event["type"] == "DELETED" and event["object"]["kind"] == "Service")
    rig.kubectl("delete", "service/chat")
    eventually("the Service to be back", lambda: len(rig.children()) == len(CHILDREN), 15, rig.explain)


@pytest.mark.long
def test_a_pool_whose_deletion_was_missed_is_not_built_again(operated: Rig) -> None:
    """Each child that the garbage collector takes is an event; until the relist the store still has the pool."""
    rig = operated
    proxy = rig.proxy()
    rig.operator(proxy=proxy)
    rig.create()
    rig.wait_ready()
    proxy.keep_event = lambda event: not (event["type"] == "DELETED" and event["object"]["kind"] == "InferencePool")
    before = len(proxy.writes())
    rig.delete()
    eventually("all children to be gone", lambda: rig.children() == [], 90, rig.explain)
    holds("nothing is made again", lambda: rig.children() == [], 5)
    written = [write for write in proxy.writes()[before:] if not write.is_event and not write.path.endswith("/status")]
    assert list(map(str, written)) == []


def test_a_storm_of_errors_passes_without_a_flood(operated: Rig) -> None:
    """O7: 30 % of all requests fail in one way or another, for a quarter of a minute."""
    rig = operated
    proxy, rng = rig.proxy(), random.Random(7)
    answers = [Answer(429, "TooManyRequests", retry_after=1), Answer(500), Answer(503), Answer(409, "Conflict")]

    def storm(request: Request) -> Answer | None:
        return rng.choice(answers) if not request.is_lease and rng.random() < 0.3 else None

    operator = rig.operator(*QUICK, proxy=proxy)
    proxy.answer = storm
    rig.create(replicas=2)
    begin, before = time.monotonic(), len(proxy.writes())
    holds("the operator stays alive", lambda: alive(operator), 10)
    rig.patch({"replicas": 3})
    time.sleep(5)
    writes = len(proxy.writes()) - before
    assert writes / (time.monotonic() - begin) <= 10
    proxy.behave()
    # The back-off of one pool is at most half a minute; it may have been ready, and said so, before it was over.
    eventually("the change to arrive", lambda: replicas(rig) == 3, 45, rig.explain)
    rig.wait_ready()
    assert operator.terminate() == 0


@pytest.mark.long
def test_a_terminating_namespace_ends_the_work_on_its_pools(operated: Rig) -> None:
    """O16: 403 'being terminated' is final; no retries."""
    rig = operated
    proxy = rig.proxy()
    rig.operator(*QUICK, proxy=proxy)
    rig.create()
    rig.wait_ready()
    rig.plane.run_kubectl("delete", "namespace", rig.namespace, "--wait=false")
    eventually("the pool to be gone", lambda: rig.pool() is None, 30)
    time.sleep(1)
    before = len(proxy.writes())
    holds("nothing more is written", lambda: len(proxy.writes()) - before <= 3, 4)
    rig.plane.run_kubectl("create", "namespace", rig.namespace, check=False)


# --- killed at a write ---


class Killer:
    """Kills the operator around its k-th write: before it reaches the server, or after, with the answer lost."""

    def __init__(self, proxy: FaultProxy, operator: OperatorProcess, write: int, *, reply_lost: bool) -> None:
        self._operator = operator
        self._write = write
        self.killed_at: str | None = None
        if reply_lost:
            proxy.after_write = self._kill
        else:
            proxy.before_write = self._kill

    def _kill(self, request: Request) -> None:
        if request.write == self._write:
            self.killed_at = str(request)
            os.kill(self._operator.process.pid, signal.SIGKILL)
            self._operator.process.wait(30)


SETTLED_WRITES = 16
"""More writes than the creation of a pool takes; a kill at a write that never comes would test nothing and fails."""


def end_state(rig: Rig) -> Mapping[str, Any]:
    """All children, once the pool is ready and nothing is being deleted any more."""
    rig.wait_ready(seconds=45)
    return essence([*rig.children(), *rig.revisions()])


def undisturbed(rig: Rig) -> tuple[Mapping[str, Any], int]:
    """The end state of a run without faults, and how many writes it took but Events."""
    proxy = rig.proxy()
    operator = rig.operator(proxy=proxy)
    rig.create(name="chat", replicas=2)
    state = end_state(rig)
    writes = sum(not write.is_event for write in proxy.writes())
    operator.terminate()
    rig.delete()
    eventually("a clean namespace", rig.cleared, COLLECTED_WITHIN)
    return state, writes


def killed_run(rig: Rig, write: int, *, reply_lost: bool) -> tuple[Mapping[str, Any], str | None]:
    proxy = rig.proxy()
    operator = rig.operator(proxy=proxy)
    killer = Killer(proxy, operator, write, reply_lost=reply_lost)
    rig.create(name="chat", replicas=2)
    eventually("the operator to be killed", lambda: operator.exit_status() is not None, 30, rig.explain)
    proxy.behave()
    rig.clear_lease()
    second = rig.operator(proxy=proxy)
    state = end_state(rig)
    second.terminate()
    rig.delete()
    eventually("a clean namespace", rig.cleared, COLLECTED_WITHIN)
    return state, killer.killed_at


def test_a_kill_at_a_write_whose_answer_is_lost_ends_in_the_same_state(operated: Rig) -> None:
    """O1; K8SPXC-896, rabbitmq-operator #782. `long` has every write, before and after."""
    want, _ = undisturbed(operated)
    got, killed_at = killed_run(operated, 5, reply_lost=True)
    assert killed_at is not None
    assert got == want


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_kill_at_any_write_ends_in_the_same_state(operated: Rig) -> None:
    want, writes = undisturbed(operated)
    assert writes < SETTLED_WRITES
    for write, reply_lost in itertools.product(range(1, 8), (False, True)):
        got, killed_at = killed_run(operated, write, reply_lost=reply_lost)
        assert killed_at is not None
        assert got == want, f"killed {'after' if reply_lost else 'before'} write {write}: {killed_at}"


@pytest.mark.long
@pytest.mark.timeout(600)
def test_two_minutes_of_403_are_survived(operated: Rig) -> None:
    """O8 in full: longer than all of kopf's default attempts."""
    rig = operated
    proxy = rig.proxy()
    operator = rig.operator(proxy=proxy)
    rig.create()
    rig.wait_ready()
    proxy.answer = lambda request: (
        None if request.is_lease else Answer(403, "Forbidden", 'User "kvik" cannot list pods')
    )
    proxy.cut_watches()
    holds("the operator stays alive", lambda: alive(operator), 120)
    proxy.behave()
    catches_up(rig, 2, 30)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_frozen_api_server_is_survived(operated: Rig) -> None:
    """O5 as a black hole: connections stay open and nothing answers."""
    rig = operated
    operator = rig.operator()
    rig.create()
    rig.wait_ready()
    rig.plane["kube-apiserver"].pause()
    holds("the operator stays alive", lambda: alive(operator), 60)
    rig.plane["kube-apiserver"].resume()
    catches_up(rig, 2, 60)
    assert alive(operator)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_silent_watch_fails_liveness_with_the_periods_of_production(operated: Rig) -> None:
    rig = operated
    proxy = rig.proxy()
    operator = rig.operator(proxy=proxy)
    rig.create()
    rig.wait_ready()
    proxy.silent = True
    proxy.answer = lambda request: (
        Answer(503) if "watch" not in request.query and _lists_whole_objects(request) else None
    )
    rig.patch({"replicas": 2})
    eventually("liveness to fail", lambda: _failing(operator), 120, rig.explain)
