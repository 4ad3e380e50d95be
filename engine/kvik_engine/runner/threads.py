"""How many CPU threads the core may use: its cgroup's quota, never more than the CPUs it may run on.

OMP_NUM_THREADS, which torch's libraries read by themselves, lowers it further.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")


def usable_threads(cgroup: Path = CGROUP, cpus: int | None = None, environ: Mapping[str, str] = os.environ) -> int:
    """At least 1. Half a CPU of quota still makes a whole thread."""
    allowed = min(cpus if cpus is not None else len(os.sched_getaffinity(0)), _openmp_limit(environ))
    quota = _quota_v2(cgroup) or _quota_v1(cgroup)
    return allowed if quota is None else max(1, min(allowed, -int(-quota // 1)))


def _openmp_limit(environ: Mapping[str, str]) -> int:
    value = environ.get("OMP_NUM_THREADS", "")
    return int(value) if value.isdecimal() and int(value) > 0 else sys.maxsize


def _quota_v2(cgroup: Path) -> float | None:
    """CPUs, or None without a limit."""
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else int(quota) / int(period)


def _quota_v1(cgroup: Path) -> float | None:
    try:
        quota = int((cgroup / "cpu" / "cpu.cfs_quota_us").read_text())
        period = int((cgroup / "cpu" / "cpu.cfs_period_us").read_text())
    except (OSError, ValueError):
        return None
    return None if quota <= 0 else quota / period
