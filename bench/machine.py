"""What figures are taken on."""

from __future__ import annotations

import datetime as dt
import os
import platform
from pathlib import Path
from typing import Any


def cpu_name() -> str:
    """As the kernel has it, or as well as Python knows it."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def machine_now() -> dict[str, Any]:
    """Processors, what else keeps them busy now, and the day."""
    return {
        "cpu": cpu_name(),
        "cpus": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "date": dt.datetime.now(dt.UTC).strftime("%Y-%m-%d"),
    }
