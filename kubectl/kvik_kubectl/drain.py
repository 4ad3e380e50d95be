"""Take one engine pod out of service by the Eviction API, as `kubectl drain` does with all pods of a node.

The pool's disruption budget is respected: while it does not allow it, this asks again until --timeout. An evicted pod
accepts requests for 5 s more, refuses new ones, and ends once its running answers have; the pool makes a new one.
"""

import argparse
from collections.abc import Mapping
from typing import Any, Final

from kvik_kubectl.cluster import LABEL_POOL, Gone, NotYet
from kvik_kubectl.errors import PluginError
from kvik_kubectl.session import Session, seconds

HELP = "take one engine pod out of service"
ASK_AGAIN: Final = 5.0
"""Seconds, where the server does not say."""
LOOK_EVERY: Final = 1.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pod", metavar="POD", help="name of the pod")
    parser.add_argument(
        "--timeout", type=seconds, default=900.0, metavar="TIME", help="until it is gone (default: 15m)"
    )


def run(options: argparse.Namespace, session: Session) -> None:
    pod = session.cluster.pod(options.pod)
    if pod is None:
        raise PluginError(f"there is no pod {options.pod} in namespace {session.cluster.namespace}")
    pool = (pod["metadata"].get("labels") or {}).get(LABEL_POOL)
    if pool is None:
        raise PluginError(f"pod {options.pod} is not of an InferencePool")
    start = session.clock()
    deadline = start + options.timeout
    ends = "deletionTimestamp" in pod["metadata"]
    if not ends and _is_ready(pod) and not _others_ready(session, pool, options.pod):
        session.say(
            f"warning: no other pod of pool {pool} is ready, so nothing answers until the next one is; "
            "if that must not be, scale the pool to 2 and wait until both are ready first"
        )
    if not ends and not _evict(session, options.pod, pod["metadata"]["uid"], deadline):
        session.say(f"pod {options.pod} has gone by itself")
        return
    grace = pod["spec"].get("terminationGracePeriodSeconds")
    session.say(f"pod {options.pod} of pool {pool} ends once its running answers have, after {grace} s at the latest")
    while not _is_gone(session.cluster.pod(options.pod), pod):
        if session.clock() >= deadline:
            raise PluginError(f"pod {options.pod} still ends after {options.timeout:.0f} s; it goes on by itself")
        session.sleep(LOOK_EVERY)
    session.say(f"pod {options.pod} is gone after {session.clock() - start:.0f} s")


def _evict(session: Session, name: str, uid: str, deadline: float) -> bool:
    """Returns once it is evicted; False: it has gone by itself. Says once for each reason what it waits for."""
    said = ""
    while isinstance(answer := session.cluster.evict(name, uid), NotYet):
        if answer.reason != said:
            session.say(f"waiting: {answer.reason}")
            said = answer.reason
        if session.clock() >= deadline:
            raise PluginError(f"pod {name} may not be evicted yet: {answer.reason}")
        session.sleep(min(answer.retry_after or ASK_AGAIN, max(0.0, deadline - session.clock())))
    return not isinstance(answer, Gone)


def _others_ready(session: Session, pool: str, name: str) -> bool:
    return any(pod["metadata"]["name"] != name and _is_ready(pod) for pod in session.cluster.pods(pool))


def _is_ready(pod: Mapping[str, Any]) -> bool:
    """Whether the pool's Service sends it requests."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    told = any(one.get("type") == "Ready" and one.get("status") == "True" for one in conditions)
    return told and "deletionTimestamp" not in pod["metadata"]


def _is_gone(now: Mapping[str, Any] | None, then: Mapping[str, Any]) -> bool:
    return now is None or now["metadata"]["uid"] != then["metadata"]["uid"]
