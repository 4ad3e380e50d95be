"""How many CPU threads the core may use: its cgroup's quota, never more than the CPUs it may run on."""

from __future__ import annotations

import os
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")


def usable_threads(cgroup: Path = CGROUP, cpus: int | None = None) -> int:
    """At least 1. Half a CPU of quota still makes a whole thread."""
    allowed = cpus if cpus is not None else len(os.sched_getaffinity(0))
    quota = _quota_v2(cgroup) or _quota_v1(cgroup)
    return allowed if quota is None else max(1, min(allowed, -int(-quota // 1)))


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
