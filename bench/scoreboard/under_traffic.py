"""Rows 7 and 20: what is changed while requests come without a pause, and how many of them fail."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from bench.scoreboard.installation import (
    ENGINE_NEXT,
    TOKENS_PER_SECOND,
    Installation,
    engine_pods,
)
from bench.scoreboard.row import Outcome, Row
from tests.support.in_cluster_traffic import Traffic
from tests.support.kubectl import wait_for
from tests.support.upgrades import identity

POOL = "traffic"
LEAST_REQUESTS: Final = 2_000
LEAST_RATE: Final = 200.0
SHORT_CLIENTS: Final = 32
SHORT_TOKENS: Final = 2
LONG_CLIENTS: Final = 4
LONG_TOKENS: Final = 6 * TOKENS_PER_SECOND
"""Streams of six seconds: at any moment some are open on each pod."""
AT_LEAST_SECONDS: Final = 15.0
UNTOUCHED_SECONDS: Final = 60.0
ROLL_SECONDS: Final = 300.0

Change = Callable[[Installation], None]


@dataclass(frozen=True, slots=True)
class Seen:
    short: Traffic
    long: Traffic

    @property
    def parts(self) -> dict[str, Traffic]:
        return {"short": self.short, "long": self.long}

    @property
    def failures(self) -> list[str]:
        return self.short.failures + self.long.failures

    @property
    def requests(self) -> int:
        return self.short.succeeded + self.long.succeeded + len(self.failures)

    @property
    def rate(self) -> float:
        return (self.short.succeeded + len(self.short.failures)) / self.short.seconds

    def figures(self) -> dict[str, float]:
        return {
            "requests": self.requests,
            "requests a second": self.rate,
            "streams of six seconds": self.long.succeeded,
            "slowest first token, seconds": max(self.short.slowest_first_token, self.long.slowest_first_token),
        }


def seen_during(installation: Installation, change: Change, pool: str = POOL) -> Seen:
    """Traffic to the pool before, during and after a change that returns once it is over."""
    where = (installation.pools, pool)
    with (
        installation.traffic(*where, "long", clients=LONG_CLIENTS, max_tokens=LONG_TOKENS) as long,
        installation.traffic(*where, "short", clients=SHORT_CLIENTS, max_tokens=SHORT_TOKENS) as short,
    ):
        started = time.monotonic()
        time.sleep(3)
        change(installation)
        time.sleep(max(3.0, AT_LEAST_SECONDS - (time.monotonic() - started)))
    return Seen(short.result, long.result)


def outcome(seen: Seen, more: str | None = None, figures: dict[str, float] | None = None) -> Outcome:
    """`more` is what else went wrong."""
    wrong = [f"{len(seen.failures)} failed, the first with: {seen.failures[0]}"] if seen.failures else []
    wrong += [f"no {kind} request succeeded" for kind, part in seen.parts.items() if part.succeeded == 0]
    wrong += [more] if more else []
    slow = [f"only {seen.requests} requests were sent"] if seen.requests < LEAST_REQUESTS else []
    if seen.rate < LEAST_RATE:
        slow.append(f"the machine had time for {seen.rate:.0f} requests a second only")
    reasons = wrong + slow
    return Outcome(
        len(seen.failures),
        ok=not reasons,
        reason="; ".join(reasons) or None,
        figures={**seen.figures(), **(figures or {})},
        only_slow=bool(slow) and not wrong,
    )


# --- 7: pods end ---


def _rolled(strategy: str) -> Callable[[Installation], Outcome]:
    def change(installation: Installation) -> None:
        before = set(identity(installation.pools, POOL))
        chunk = {"chunkedPrefillTokens": 64 + int(time.time()) % 64, "maxRequests": 64}
        installation.patch(installation.pools, POOL, {"rollout": {"strategy": strategy}, "batching": chunk})

        def over() -> bool:
            now = set(identity(installation.pools, POOL))
            return installation.settled(installation.pools, POOL, 2) and not {
                name for name in before & now if name.startswith("Pod/")
            }

        wait_for("the roll to end", over, ROLL_SECONDS, lambda: installation.pools.run("get", "pods"))

    return lambda installation: _with_pool(installation, change)


def _scaled_down(installation: Installation) -> Outcome:
    def change(running: Installation) -> None:
        running.patch(running.pools, POOL, {"replicas": 1})
        running.wait_settled(running.pools, POOL, 1)

    return _with_pool(installation, change)


def _evicted(installation: Installation) -> Outcome:
    """What `kubectl drain` does with each pod of a node."""

    def change(running: Installation) -> None:
        pod = engine_pods(running.pools, POOL)[0]["metadata"]["name"]
        path = f"/api/v1/namespaces/{running.pools.namespace}/pods/{pod}/eviction"
        body = f'{{"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {{"name": "{pod}"}}}}'
        running.pools.run("create", f"--raw={path}", "--filename=-", stdin=body)
        wait_for("the pod to be gone", lambda: running.pools.get("pod", pod) is None, 90)
        running.wait_settled(running.pools, POOL, 2)

    return _with_pool(installation, change)


def _with_pool(installation: Installation, change: Change) -> Outcome:
    installation.ensure_pool(installation.pools, POOL)
    return outcome(seen_during(installation, change))


# --- 20: pods stay ---


def _untouched_by(change: Change, undo: Change = lambda _: None) -> Callable[[Installation], Outcome]:
    """The pods are looked at for a minute after the change."""

    def measure(installation: Installation) -> Outcome:
        installation.ensure_pool(installation.pools, POOL)
        before = identity(installation.pools, POOL)
        differing: set[str] = set()

        def watched(running: Installation) -> None:
            change(running)
            deadline = time.monotonic() + UNTOUCHED_SECONDS
            while time.monotonic() < deadline:
                differing.update(name for name, _ in set(identity(running.pools, POOL).items()) ^ set(before.items()))
                time.sleep(2)

        try:
            seen = seen_during(installation, watched)
        finally:
            undo(installation)
        more = f"replaced, restarted or changed: {', '.join(sorted(differing))}" if differing else None
        return outcome(seen, more, {"pods and Deployments that changed": len(differing)})

    return measure


def _kill_leader(installation: Installation) -> None:
    _replace_leader(installation, "--grace-period=0", "--force")


def _end_leader(installation: Installation) -> None:
    _replace_leader(installation)


def _replace_leader(installation: Installation, *flags: str) -> None:
    before = wait_for("a leader", installation.leader, 60)
    installation.system.run("delete", "pod", before, "--wait=false", *flags)
    wait_for("another leader", lambda: installation.leader() not in (None, before), 90)


_FAILED = "failed requests"
_NONE = "0 of 2,000 or more, at 200 a second or more"
_NONE_UNTOUCHED = f"{_NONE}; no pod and no Deployment changed for 60 s"

ROWS: tuple[Row, ...] = (
    Row(
        id="7a",
        what="A roll with a surge fails no request",
        unit=_FAILED,
        wanted=_NONE,
        how="`rollout.strategy: Surge`, two pods, a change of `batching.chunkedPrefillTokens`",
        measure=_rolled("Surge"),
    ),
    Row(
        id="7b",
        what="A roll in place fails no request",
        unit=_FAILED,
        wanted=_NONE,
        how="`rollout.strategy: InPlace`, two pods, a change of `batching.chunkedPrefillTokens`",
        measure=_rolled("InPlace"),
    ),
    Row(
        id="7c",
        what="Scaling down fails no request",
        unit=_FAILED,
        wanted=_NONE,
        how="`replicas` from 2 to 1",
        measure=_scaled_down,
    ),
    Row(
        id="7d",
        what="An eviction, as `kubectl drain` makes for each pod of a node, fails no request",
        unit=_FAILED,
        wanted=_NONE,
        how="the Eviction API on one of two pods, until another is ready",
        measure=_evicted,
    ),
    Row(
        id="20a",
        what="An operator upgrade that brings another default engine touches no pod",
        unit=_FAILED,
        wanted=_NONE_UNTOUCHED,
        how="`helm upgrade` with a later version in `image.engine.cpu.tag`",
        measure=_untouched_by(lambda running: running.install(ENGINE_NEXT), lambda running: running.install()),
    ),
    Row(
        id="20b",
        what="An upgrade of both charts, with one more field in the API, touches no pod",
        unit=_FAILED,
        wanted=_NONE_UNTOUCHED,
        how="`helm upgrade` of `kvik-crds` and `kvik` to copies with another version; the new field has a default",
        measure=_untouched_by(lambda running: running.install_next_charts(), lambda running: running.install()),
    ),
    Row(
        id="20c",
        what="A killed operator touches no pod",
        unit=_FAILED,
        wanted=_NONE_UNTOUCHED,
        how="the leading operator's pod deleted with a grace of 0, until the other one leads",
        measure=_untouched_by(_kill_leader),
    ),
    Row(
        id="20d",
        what="A change of leader touches no pod",
        unit=_FAILED,
        wanted=_NONE_UNTOUCHED,
        how="the leading operator's pod deleted, until another one leads",
        measure=_untouched_by(_end_leader),
    ),
)
