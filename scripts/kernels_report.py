"""Writes docs/kernels.md: what each kernel takes of a processor, compiled for GPUs that need not be there.

`make kernels-report`; with --lines FILE, from lines that `python -m kvik_kernels.aot` printed before.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kvik_kernels import aot

PAGE = Path(__file__).resolve().parents[1] / "docs" / "kernels.md"
SHAPE = ("--elements", "bf16", "--head-dims", "64", "--groups", "3")
HEAD = """# What the Triton kernels take

Written by `make kernels-report`, which compiles every kernel with triton {triton} for GPUs that need not be there: in
bf16, for the embedded model's shape (heads of 64, three query heads for each of three key-value heads). Each cell:
registers a thread / bytes of stack and local memory a thread / bytes of shared memory a program. The tests in
`tests/kernels/compile` assert bounds of all three, for more shapes and two versions of triton. gfx942 counts the
registers of its matrix units, too: 512 in all. None of this was run: nothing
of Kvik has been measured on a GPU yet.
"""


def page(lines: Iterable[dict[str, Any]]) -> str:
    """`lines`: of aot, one a variant, none of them an error. A table for each way to keep keys and values, and one
    of the kernels that see neither."""
    found = {(one["variant"]["kept"], one["variant"]["kernel"], one["variant"]["target"]): one for one in lines}
    versions = sorted({one["triton"] for one in found.values()})
    text = HEAD.format(triton=" and ".join(versions))
    attending = [kernel for kernel in aot.KERNELS if kernel not in aot.ELEMENTWISE_KERNELS]
    for kept in ("plain", *aot.KEPT):
        title = "as they are computed" if kept == "plain" else f"in {kept}"
        text += _table(f"Keys and values {title}", found, kept, attending)
    return text + _table("Between the products", found, "plain", aot.ELEMENTWISE_KERNELS)


def _table(title: str, found: Mapping[tuple[str, str, str], Any], kept: str, kernels: Sequence[str]) -> str:
    """Nothing where none of `kernels` is in `found`, whose keys are ways to keep, kernels and targets."""
    targets = [target for target in aot.TARGETS if any((kept, kernel, target) in found for kernel in kernels)]
    if not targets:
        return ""
    text = f"\n## {title}\n| Kernel | {' | '.join(targets)} |\n|---{'|---' * len(targets)}|\n"
    for kernel in kernels:
        cells = [_cell(found.get((kept, kernel, target))) for target in targets]
        if any(cells):
            text += f"| `{kernel}` | {' | '.join(cells)} |\n"
    return text


def _cell(one: dict[str, Any] | None) -> str:
    return "" if one is None else f"{one['registers']} / {one['spilled_bytes']} / {one['shared_bytes']:,}"


def compiled() -> Iterable[str]:
    """Lines of aot for everything that the page shows."""
    for kept in ("plain", *aot.KEPT):
        targets = [name for name, (*_, device) in aot.TARGETS.items() if device.has_fp8 or not aot.needs_fp8(kept)]
        command = [sys.executable, "-m", "kvik_kernels.aot", "--targets", *targets, "--kept", kept, *SHAPE]
        yield from subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="kernels_report", description=__doc__)
    parser.add_argument("--lines", type=Path)
    options = parser.parse_args(arguments)
    lines = compiled() if options.lines is None else options.lines.read_text().splitlines()
    PAGE.write_text(page(map(json.loads, lines)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
