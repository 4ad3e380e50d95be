"""Kernels compiled for GPUs that are not there, by each triton that Kvik supports, in processes of their own."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
PYTHONS = {"3.9": Path(sys.executable), "3.6": ROOT / ".venv-triton36" / "bin" / "python"}

Compiled = dict[str, Any]
"""One line of `python -m kvik_kernels.aot`, with its variant's fields beside the rest."""


@pytest.fixture(scope="session")
def compile_with(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., list[Compiled]]:
    """Run aot by one triton; each set of options is compiled once a session."""
    cache: dict[tuple[str, ...], list[Compiled]] = {}

    def run(triton: str, *options: str) -> list[Compiled]:
        key = (triton, *options)
        if key not in cache:
            python = PYTHONS[triton]
            assert python.exists(), f"{python} is missing: make triton36"
            environment = {name: value for name, value in os.environ.items() if not name.startswith("TRITON_")}
            environment["TRITON_CACHE_DIR"] = str(tmp_path_factory.mktemp("triton"))
            environment["PYTHONPATH"] = str(ROOT / "kernels")
            done = subprocess.run(
                [python, "-m", "kvik_kernels.aot", *options],
                env=environment,
                capture_output=True,
                text=True,
                check=False,
                timeout=1200,
            )
            lines = [json.loads(line) for line in done.stdout.splitlines()]
            errors = [line for line in lines if "error" in line]
            assert done.returncode == 0, f"{errors or done.stderr}"
            cache[key] = [{**line["variant"], **line} for line in lines]
        return cache[key]

    return run
