"""How far the roll of a pool's last change is, by its status; and following it. `progress` is pure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from kvik_kubectl.errors import PluginError

Object = Mapping[str, Any]

LOOK_EVERY: Final = 1.0
PATIENCE: Final = 90.0
"""Seconds that a problem may last before the roll counts as failed: many pass by themselves, and an `Auto` roll without
room for a surge goes on in place after 60."""
_AT_ONCE: Final = frozenset({"InvalidSpec", "ApplyRefused", "ForeignObject", "AccessDenied"})
"""Reasons that nothing but a person changes."""


@dataclass(frozen=True, slots=True)
class Progress:
    state: Literal["waiting", "rolling", "troubled", "refused", "done"]
    line: str


def progress(pool: Object, generation: int) -> Progress:
    """Of the roll of the spec with this generation, or of a later one."""
    status = pool.get("status") or {}
    complete, degraded = _condition(status, "RolloutComplete"), _condition(status, "Degraded")
    if (status.get("observedGeneration") or 0) < generation:
        return Progress("waiting", "the operator has not looked at the change yet")
    trouble = degraded.get("status") == "True"
    if trouble and degraded.get("reason") in _AT_ONCE:
        return Progress("refused", _words(degraded))
    if complete.get("status") == "True" and complete.get("observedGeneration", 0) >= generation:
        note = f"; {_words(degraded)}" if trouble else ""
        return Progress("done", f"{complete.get('message', 'complete')}{note}")
    if trouble:
        return Progress("troubled", _words(degraded))
    return Progress("rolling", complete.get("message") or "rolling out")


def follow(
    look: Callable[[], Object],
    generation: int,
    timeout: float,
    say: Callable[[str], None],
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> None:
    """Says each new line until the roll is done. Raises PluginError when it failed or `timeout` seconds have passed."""
    start, said = clock(), ""
    troubled_since: float | None = None
    while True:
        seen, now = progress(look(), generation), clock()
        if seen.line != said:
            say(seen.line)
            said = seen.line
        if seen.state == "done":
            return
        if seen.state != "troubled":
            troubled_since = None
        elif troubled_since is None:
            troubled_since = now
        if seen.state == "refused" or (troubled_since is not None and now - troubled_since >= PATIENCE):
            raise PluginError(f"the roll has failed: {seen.line}")
        if now - start >= timeout:
            raise PluginError(f"not done after {timeout:.0f} s: {seen.line}")
        sleep(LOOK_EVERY)


def _condition(status: Object, type_: str) -> Object:
    found: Object = next((one for one in status.get("conditions") or () if one.get("type") == type_), {})
    return found


def _words(condition: Object) -> str:
    return f"{condition.get('reason')}: {condition.get('message')}"
