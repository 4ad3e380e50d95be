"""What memory the device has and how much of it is taken, measured. The KV ledger (kv.sizing) is computed from both.

On a CPU the device is the cgroup: its limit, and what all of its processes hold without reclaimable file pages. Without
a limit it is the machine.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path

import torch

_NO_LIMIT = 1 << 60
"""cgroup v1 says "no limit" with a number of about 2^63."""


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes."""

    total: int
    used: int


class PeakMemory:
    """Measures what is taken at the worst moment between its making and `read`."""

    def __init__(self, device: torch.device, root: Path = Path("/")) -> None:
        self._device = device
        self._root = root
        if device.type == "cuda":
            torch.cuda.empty_cache()
        else:
            return_freed_memory()
            self._reset_peak()

    def read(self) -> MemoryUse:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
            # What the allocator has reserved is its peak, and counts as used here.
            free, total = torch.cuda.mem_get_info(self._device)
            return MemoryUse(total, total - free)
        peak, resident = self._own("VmHWM"), self._own("VmRSS")
        group = cgroup_memory(self._root) or machine_memory(self._root)
        return MemoryUse(group.total, max(group.used + peak - resident, peak))

    def _reset_peak(self) -> None:
        try:
            (self._root / "proc/self/clear_refs").write_text("5")
        except OSError:
            # Then the peak includes loading: more than needed is reserved, never less.
            return

    def _own(self, key: str) -> int:
        for line in (self._root / "proc/self/status").read_text().splitlines():
            if line.startswith(key + ":"):
                return int(line.split()[1]) << 10
        raise AssertionError(f"/proc/self/status has no {key}")


def cgroup_memory(root: Path) -> MemoryUse | None:
    """Limit and working set of this process's cgroup, as a container sees it; None without a limit."""
    group = root / "sys/fs/cgroup"
    for limit, usage, stat, inactive in (
        (group / "memory.max", group / "memory.current", group / "memory.stat", "inactive_file"),
        (
            group / "memory/memory.limit_in_bytes",
            group / "memory/memory.usage_in_bytes",
            group / "memory/memory.stat",
            "total_inactive_file",
        ),
    ):
        try:
            total, used = limit.read_text().strip(), int(usage.read_text())
            reclaimable = dict(line.split() for line in stat.read_text().splitlines())[inactive]
        except (OSError, ValueError, KeyError):
            continue
        if total != "max" and int(total) < _NO_LIMIT:
            return MemoryUse(int(total), max(0, used - int(reclaimable)))
    return None


def machine_memory(root: Path) -> MemoryUse:
    """The whole machine."""
    lines = (root / "proc/meminfo").read_text().splitlines()
    values = {line.split(":")[0]: int(line.split()[1]) << 10 for line in lines}
    return MemoryUse(values["MemTotal"], values["MemTotal"] - values["MemAvailable"])


def host_memory(device: torch.device, root: Path = Path("/")) -> MemoryUse | None:
    """The host's memory beside an accelerator's own; None on a CPU, whose memory it is."""
    return None if device.type == "cpu" else cgroup_memory(root) or machine_memory(root)


def return_freed_memory() -> None:
    """Give what the C allocator holds free back to the system; does nothing without glibc."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
