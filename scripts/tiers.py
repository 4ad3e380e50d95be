"""Runs test tiers one after the other, shows their output as it comes, and ends with what each took.

The first tier that fails ends the run, unless KEEP_GOING is set.
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# The folders of each tier, as pytest takes them. The kernels' fast tests are in two, so that each can be run alone.
TIERS: dict[str, list[str]] = {
    "unit": ["tests/unit"],
    "property": ["tests/property"],
    "contract": ["tests/contract"],
    "kernels": ["tests/unit/kernels", "tests/kernels"],
    "oracle": ["tests/oracle"],
    "integration": ["tests/integration"],
    "faults": ["tests/faults"],
    "e2e": ["tests/e2e"],
}
# What a tier stands on, made before its tests, whose time limits are for tests: on a new machine it takes minutes.
PREPARATION: dict[str, list[str]] = {
    "integration": ["tests.support.prometheus"],
    "faults": ["tests.cluster", "programs"],
    "e2e": ["scripts.demo", "prepare"],
}
# Tiers of which each CPU runs tests of its own: whole files where the tests of one share what is dear to make, single
# tests where some take a minute. Engine processes take all CPUs by themselves.
SPREAD = {
    "unit": "loadfile",
    "property": "worksteal",
    "kernels": "loadfile",
    "oracle": "worksteal",
    "faults": "worksteal",
}
# Tiers whose tests take long enough for a reader to want to know which one runs.
SLOW = frozenset({"oracle", "integration", "faults", "e2e"})
INTERRUPTED = 2
"""pytest's exit status after Ctrl-C."""


def command_of(tier: str, options: argparse.Namespace) -> list[str]:
    """The command line of one tier."""
    if tier == "lint":
        return ["scripts/lint.sh"]
    command = [sys.executable, "-m", "pytest", "--durations=5", "--durations-min=5", *TIERS[tier]]
    command.append("-v" if tier in SLOW else "-q")
    if tier in SPREAD:
        command += ["--numprocesses", str(os.cpu_count() or 1), "--dist", SPREAD[tier]]
    if not options.long:
        command += ["-m", "long" if options.only_long else "not long"]
    if options.shard:
        command += ["--shard", options.shard]
    return command


def run(tier: str, options: argparse.Namespace) -> int:
    """Runs one tier; an empty tier counts as failed, except in a shard, where the others hold its tests."""
    if tier in PREPARATION:
        prepared = subprocess.run([sys.executable, "-m", *PREPARATION[tier]], cwd=ROOT, check=False)
        if prepared.returncode != 0:
            return prepared.returncode
    threads = "1" if tier in SPREAD else str(os.cpu_count() or 1)
    environment = {"OMP_NUM_THREADS": threads, **os.environ}
    status = finished(subprocess.Popen(command_of(tier, options), cwd=ROOT, env=environment))
    nothing_to_run = 5
    if status == nothing_to_run and (options.shard or options.only_long):
        return 0
    return status


def finished(process: subprocess.Popen[bytes]) -> int:
    """The exit status. An interrupt went to the tier, too: it is left to take away what its tests have made."""
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            continue


def report(results: list[tuple[str, int, float]]) -> None:
    """Prints what each tier took and how it ended."""
    print("\ntier           time    result")
    for tier, status, seconds in results:
        minutes, rest = divmod(round(seconds), 60)
        print(f"{tier:<12} {minutes:>2}m{rest:02}s    {'passed' if status == 0 else f'FAILED ({status})'}")
    total = sum(seconds for _, _, seconds in results)
    print(f"{'total':<12} {round(total) // 60:>2}m{round(total) % 60:02}s")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tiers", nargs="+", choices=["lint", *TIERS], metavar="TIER", help=", ".join(["lint", *TIERS]))
    parser.add_argument("--long", action="store_true", help="with the tests marked long")
    parser.add_argument("--only-long", action="store_true", help="nothing but the tests marked long")
    parser.add_argument("--shard", metavar="I/N", help="only every Nth test, by a hash of its name, I from 0")
    options = parser.parse_args()

    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # threads that spin would starve the engines under test
    # Hundreds of processes import the same packages: whoever keeps compiled code out of the tree gets it beside them.
    if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):
        os.environ["PYTHONPYCACHEPREFIX"] = str(ROOT / ".venv" / "compiled")
    os.environ["PATH"] = f"{ROOT / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"
    results: list[tuple[str, int, float]] = []
    for tier in options.tiers:
        print(f"\n\033[1m==> {tier}\033[0m" if sys.stdout.isatty() else f"\n==> {tier}", flush=True)
        started = time.monotonic()
        status = run(tier, options)
        results.append((tier, status, time.monotonic() - started))
        if status == INTERRUPTED or (status != 0 and "KEEP_GOING" not in os.environ):
            break
    report(results)
    return 1 if any(status for _, status, _ in results) else 0


if __name__ == "__main__":
    sys.exit(main())
