"""What a command works with: the cluster, and how it speaks and waits. Tests pass their own."""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from kvik_kubectl.cluster import Cluster
from kvik_kubectl.roll import follow


def _utcnow() -> datetime:
    return datetime.now(UTC)


def _say(line: str) -> None:
    print(line, flush=True)


@dataclass(frozen=True, slots=True)
class Session:
    cluster: Cluster
    say: Callable[[str], None] = _say
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    utcnow: Callable[[], datetime] = _utcnow

    def follow_roll(self, pool: str, generation: int, timeout: float) -> None:
        """Until the roll of this generation is done. Raises PluginError when it failed or took too long."""
        look = self.cluster.pool
        follow(lambda: look(pool), generation, timeout, self.say, self.clock, self.sleep)


def seconds(text: str) -> float:
    """As kubectl reads a duration: `90`, `90s`, `5m`, `1h`. For argparse."""
    unit = {"s": 1.0, "m": 60.0, "h": 3600.0}.get(text[-1:])
    number = text if unit is None else text[:-1]
    if not number.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no duration like 90s, 5m or 1h")
    return float(number) * (unit or 1.0)


def add_waiting(parser: argparse.ArgumentParser) -> None:
    """--wait and for how long, or --dry-run."""
    either = parser.add_mutually_exclusive_group()
    either.add_argument(
        "--dry-run", action="store_true", help="have the API server check the change, and write nothing"
    )
    either.add_argument("--wait", action="store_true", help="follow the roll until it is done or has failed")
    parser.add_argument("--timeout", type=seconds, default=1800.0, metavar="TIME", help="of --wait (default: 30m)")
