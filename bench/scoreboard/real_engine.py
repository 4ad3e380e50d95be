"""Row 7 once more with the engine itself: a small machine serves few requests with it, but it is what people run."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final

import yaml

from bench.scoreboard.installation import POOLS, ROOT, Installation, engine_pods
from bench.scoreboard.row import Outcome, Row
from images import catalog
from tests.support.in_cluster_traffic import Traffic
from tests.support.kubectl import wait_for
from tests.support.upgrades import identity

EXAMPLE = ROOT / "examples" / "smollm2.yaml"
MODEL = "smollm2-135m-instruct"
LEAST_REQUESTS: Final = 20
START_SECONDS: Final = 240.0


@contextmanager
def served(
    installation: Installation, replicas: int, placed: AbstractContextManager[None] | None = None
) -> Iterator[str]:
    """The example's pool, Ready with so many pods, and gone afterwards; its name. Its pods begin inside `placed`."""
    kubectl, example = installation.pools, yaml.safe_load(EXAMPLE.read_text())
    name: str = example["metadata"]["name"]
    spec = {key: value for key, value in example["spec"].items() if key != "scaling"}
    installation.install(catalog.product()["demo"].name)
    try:
        with placed or nullcontext():
            kubectl.apply(yaml.safe_dump({**example, "spec": {**spec, "replicas": replicas}}))
            installation.wait_settled(kubectl, name, replicas, START_SECONDS)
        yield name
    finally:
        kubectl.run("delete", POOLS, name, "--ignore-not-found")
        wait_for("its pods to be gone", lambda: not engine_pods(kubectl, name), 120)
        installation.install()


def seen_during(installation: Installation, name: str, change: Callable[[], None]) -> Traffic:
    """What few clients see before, during and after a change that returns once it is over."""
    with installation.traffic(installation.pools, name, "real", clients=3, max_tokens=16, model=MODEL) as running:
        time.sleep(3)
        change()
        time.sleep(3)
    return running.result


def outcome(seen: Traffic, more: str | None = None) -> Outcome:
    """`more` is what else went wrong."""
    reasons = [f"{len(seen.failures)} failed, the first with: {seen.failures[0]}"] if seen.failures else []
    if seen.succeeded < LEAST_REQUESTS:
        reasons.append(f"only {seen.succeeded} requests succeeded")
    reasons += [more] if more else []
    figures = {"requests": seen.succeeded + len(seen.failures), "seconds": seen.seconds}
    return Outcome(len(seen.failures), not reasons, "; ".join(reasons) or None, figures)


def _rolled(installation: Installation) -> Outcome:
    """One pod, so that the surge is all that serves while it ends."""
    with served(installation, replicas=1) as name:
        before = set(identity(installation.pools, name))

        def roll() -> None:
            patch: dict[str, Any] = {"rollout": {"strategy": "Surge"}, "batching": {"chunkedPrefillTokens": 64}}
            installation.patch(installation.pools, name, patch)
            wait_for("another pod alone", lambda: _is_replaced(installation, name, before), START_SECONDS)

        return outcome(seen_during(installation, name, roll))


def _is_replaced(installation: Installation, name: str, before: set[str]) -> bool:
    pods = {one for one in identity(installation.pools, name) if one.startswith("Pod/")}
    return installation.settled(installation.pools, name, 1) and not pods & before


ROWS: tuple[Row, ...] = (
    Row(
        id="7e",
        what="A roll of the real engine fails no request",
        unit="failed requests",
        wanted=f"0 of {LEAST_REQUESTS} or more",
        how="`examples/smollm2.yaml` with one replica and `rollout.strategy: Surge`, a change of "
        "`batching.chunkedPrefillTokens`; three clients, answers of 16 tokens",
        measure=_rolled,
    ),
)
