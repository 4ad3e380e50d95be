"""What others make of the decisions that they can read: how long there have been some, and which one led to a step.

Pure, by `now` in monotonic seconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from kvik_operator.autoscale.types import Decision
from kvik_operator.reconcile.types import ScaleStep


@dataclass(frozen=True, slots=True)
class FollowedStep:
    """`decision`: the one that asked for it or, if none did, the last one."""

    before: int
    decision: Decision


@dataclass(slots=True)
class Followed:
    _since: float | None = None
    """When there began to be a decision; None: there is none."""
    _replicas: int | None = None
    """At the last look at somebody else's number; None: we write it."""
    _decisions: dict[int, Decision] = field(default_factory=dict)
    """Since the last step, by the number that was decided: an autoscaler takes one over seconds later."""
    _led: bool = False

    def publish(self, decision: Decision, now: float) -> float:
        """Returns for how many seconds there has been one, without a gap."""
        if decision.desired is None:
            self._since = None
        elif self._since is None:
            self._since = now
        return 0.0 if self._since is None else now - self._since

    def written_by_us(self) -> None:
        self._replicas = None
        self._decisions.clear()

    def observe(
        self, replicas: int, decision: Decision, history: Sequence[ScaleStep], *, leads: bool
    ) -> FollowedStep | None:
        """The step to tell of, if `replicas` is one. The leader tells, unless `history`, from the pool's status, says
        that its predecessor has done so. Who begins to lead tells of what was taken while nobody led, from where the
        history ends.
        """
        before, self._replicas = self._replicas, replicas
        led, self._led = self._led, leads
        asked_for = self._decisions.get(replicas, decision)
        if before != replicas:
            self._decisions.clear()
        if decision.desired is not None:
            self._decisions[decision.desired] = decision
        if leads and not led and history and before in (None, replicas):
            before = history[0].to_replicas
        if before in (None, replicas) or not leads:
            return None
        told = bool(history) and (history[0].from_replicas, history[0].to_replicas) == (before, replicas)
        return None if told and not led else FollowedStep(before or 0, asked_for)
