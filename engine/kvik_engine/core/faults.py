"""Faults on purpose, for tests of everything around the core. Off unless KVIK_FAULTS is set at start.

    KVIK_FAULTS="raise@5"          the 5th launched step raises
    KVIK_FAULTS="abort@5"          the 5th launched step ends the process as a crashing kernel does (SIGABRT)
    KVIK_FAULTS="sleep@5:30"       the 5th launched step hangs for 30 s
    KVIK_FAULTS="row-error@5"      the first sample of the 5th launched step fails, its neighbours do not

Several are separated by commas. The runner is wrapped, so neither loop nor scheduler knows of it.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace

from kvik_engine.errors import StartError, StartReason
from kvik_engine.step import ModelFacts, Runner, StepPlan, StepResult

ENVIRONMENT = "KVIK_FAULTS"
_KINDS = ("raise", "abort", "sleep", "row-error")


class InjectedFault(RuntimeError):
    """Raised by `raise@N`."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: what happens at which step, counted from 1. `seconds` is how long `sleep` takes."""

    kind: str
    step: int
    seconds: float = 0.0


def parse_faults(text: str) -> tuple[Fault, ...]:
    """Read KVIK_FAULTS; StartError ConfigInvalid names what is wrong."""
    faults: list[Fault] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        kind, _, rest = part.partition("@")
        step, _, seconds = rest.partition(":")
        try:
            fault = Fault(kind, int(step), float(seconds or 0.0))
        except ValueError:
            raise StartError(
                StartReason.CONFIG_INVALID, f"{ENVIRONMENT}: {part!r} is not KIND@STEP[:SECONDS]"
            ) from None
        if kind not in _KINDS:
            raise StartError(StartReason.CONFIG_INVALID, f"{ENVIRONMENT}: {kind!r} is not one of {', '.join(_KINDS)}")
        faults.append(fault)
    return tuple(faults)


def with_faults(runner: Runner, faults: tuple[Fault, ...]) -> Runner:
    """The runner itself without faults, else one that fails as told: wrapped once warm, only real steps count."""
    return FaultyRunner(runner, faults) if faults else runner


class FaultyRunner:
    """A runner that fails at the given steps."""

    def __init__(self, runner: Runner, faults: tuple[Fault, ...]) -> None:
        self._runner = runner
        self._faults = faults

    @property
    def facts(self) -> ModelFacts:
        return self._runner.facts

    def allocate(self, blocks: int) -> int:
        return self._runner.allocate(blocks)

    def launch(self, plan: StepPlan) -> None:
        for fault in self._faults:
            if fault.step != plan.step:
                continue
            if fault.kind == "raise":
                raise InjectedFault(f"step {plan.step}")
            if fault.kind == "abort":
                os.abort()
            if fault.kind == "sleep":
                time.sleep(fault.seconds)
        self._runner.launch(plan)

    def collect(self) -> StepResult:
        result = self._runner.collect()
        if result.samples and any(f.kind == "row-error" and f.step == result.step for f in self._faults):
            failed = result.samples[0]._replace(error="injected fault")
            return replace(result, samples=(failed, *result.samples[1:]))
        return result
