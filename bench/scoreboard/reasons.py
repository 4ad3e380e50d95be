"""Row 22: pools that cannot run; how soon each says why, in the right word, and how soon it takes that back."""

import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from bench.scoreboard.installation import POOLS, Installation
from bench.scoreboard.row import Outcome, Row
from tests.support.kubectl import Kubectl, condition, wait_for

POOL = "broken"
TOLD_WITHIN: Final = 30.0
CLEARED_WITHIN: Final = 15.0
_GIVE_UP: Final = 90.0
_ROLE: Final = "kvik-operator"
_WRITES: Final = ("create", "patch")

Step = Callable[[Installation], None]


def _patched(spec: Mapping[str, Any]) -> Step:
    return lambda installation: installation.patch(installation.pools, POOL, spec)


def _nothing(_: Installation) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Cause:
    """`spec` makes the pool one that cannot run, after `before`; `mend` takes the cause away."""

    name: str
    reason: str
    mend: Step
    spec: Mapping[str, Any] = field(default_factory=dict)
    before: Step = _nothing
    clean: Step = _nothing
    """What is done in any case."""


def _env(name: str, value: str) -> Mapping[str, Any]:
    return {"template": {"env": [{"name": name, "value": value}]}}


_HEALTHY: Final = _patched({"template": {"env": [{"name": "STUB_READY_AFTER", "value": "0"}]}})


def _set_quota(installation: Installation) -> None:
    installation.pools.run("create", "quota", "none", "--hard=pods=0")


def _drop_quota(installation: Installation) -> None:
    installation.pools.run("delete", "quota", "none", "--ignore-not-found")


def _take_right(installation: Installation) -> None:
    _set_verbs(installation, lambda verbs: [verb for verb in verbs if verb not in _WRITES])
    wait_for("the right to be gone", lambda: not _may(installation), 30)


def _give_right(installation: Installation) -> None:
    _set_verbs(installation, lambda verbs: [*verbs, *(verb for verb in _WRITES if verb not in verbs)])
    wait_for("the right to be back", lambda: _may(installation), 30)


def _set_verbs(installation: Installation, change: Callable[[list[str]], list[str]]) -> None:
    """Of the operator, for disruption budgets."""
    role = installation.system.get("clusterrole", _ROLE)
    assert role is not None
    rules = [
        {**rule, "verbs": change(rule["verbs"])} if "poddisruptionbudgets" in rule["resources"] else rule
        for rule in role["rules"]
    ]
    installation.system.run("patch", "clusterrole", _ROLE, "--type=merge", f"--patch={json.dumps({'rules': rules})}")


def _may(installation: Installation) -> bool:
    account = f"--as=system:serviceaccount:{installation.system.namespace}:{_ROLE}"
    review = ["auth", "can-i", "patch", "poddisruptionbudgets.policy", account]
    with suppress(RuntimeError):  # "no" is exit code 1
        return installation.system.run(*review).strip() == "yes"
    return False


CAUSES: Final = (
    Cause(
        "image pull",
        "ImagePullFailed",
        spec={"engine": {"version": "9.9.9"}},
        mend=_patched({"engine": {"version": "0.1.0"}}),
    ),
    Cause("quota", "QuotaExceeded", before=_set_quota, mend=_drop_quota, clean=_drop_quota),
    Cause(
        "unschedulable",
        "Unschedulable",
        spec={"resources": {"device": "CPU", "requests": {"cpu": "999", "memory": "64Mi"}}},
        mend=_patched({"resources": {"requests": {"cpu": "50m"}}}),
    ),
    Cause("crash", "CrashLooping", spec=_env("STUB_READY_AFTER", "soon"), mend=_HEALTHY),
    Cause("digest", "DigestMismatch", spec=_env("STUB_FAIL", "DigestMismatch: not these files"), mend=_HEALTHY),
    Cause("RBAC", "AccessDenied", before=_take_right, mend=_give_right, clean=_give_right),
)


def _tell_apart(installation: Installation) -> Outcome:
    right, figures, reasons = 0, {}, []
    for cause in CAUSES:
        try:
            told, cleared = _told_and_cleared(installation, cause)
        except TimeoutError as error:
            reasons.append(f"{cause.name}: {str(error).splitlines()[0]}")
            continue
        right += 1
        figures[f"{cause.name}: told after, seconds"] = told
        figures[f"{cause.name}: taken back after, seconds"] = cleared
        if told > TOLD_WITHIN:
            reasons.append(f"{cause.name} was told after {told:.0f} s")
        if cleared > CLEARED_WITHIN:
            reasons.append(f"{cause.name} was taken back after {cleared:.0f} s")
    return Outcome(right, not reasons, "; ".join(reasons) or None, figures)


def _told_and_cleared(installation: Installation, cause: Cause) -> tuple[float, float]:
    """Seconds; the first from the pool's creation, the second from the end of the mending call."""
    kubectl = installation.pools
    try:
        cause.before(installation)
        installation.apply(kubectl, POOL, **cause.spec)
        told = _seconds_until(f"{cause.reason} to be told", lambda: _says(kubectl, cause.reason))
        cause.mend(installation)
        cleared = _seconds_until(f"{cause.reason} to be taken back", lambda: not _says(kubectl, cause.reason))
    finally:
        cause.clean(installation)
        kubectl.run("delete", POOLS, POOL, "--ignore-not-found")
        wait_for("its pods to be gone", lambda: not kubectl.list("pods", f"kvik.dev/pool={POOL}"), _GIVE_UP)
    return told, cleared


def _seconds_until(what: str, probe: Callable[[], bool]) -> float:
    started = time.monotonic()
    wait_for(what, probe, _GIVE_UP, every=0.25)
    return time.monotonic() - started


def _says(kubectl: Kubectl, reason: str) -> bool:
    pool = kubectl.get(POOLS, POOL)
    conditions = [condition(pool, kind) or {} for kind in ("Ready", "Degraded", "RolloutComplete")]
    return any(one.get("reason") == reason for one in conditions)


ROWS: tuple[Row, ...] = (
    Row(
        id="22",
        what="A pool that cannot run says why, and takes it back when the cause is gone",
        unit="causes told by the right reason",
        wanted=f"{len(CAUSES)} of {len(CAUSES)}, told within 30 s, taken back within 15 s",
        how="an image that is not there, a quota of no pods, 999 CPUs asked for, an engine that ends at once, one that "
        "says `DigestMismatch`, a role without a right; one after the other, each on a new pool",
        measure=_tell_apart,
    ),
)
