"""The chart `kvik` as helm renders it."""

import subprocess
from pathlib import Path
from typing import Any

import yaml

from tests.cluster import build

ROOT = Path(__file__).resolve().parents[2]


def helm_template(*arguments: str, release: str = "kvik") -> "subprocess.CompletedProcess[str]":
    command = [str(build.programs().helm), "template", release, "charts/kvik", "--namespace=kvik-system"]
    return subprocess.run(
        [*command, "--kube-version=1.34.0", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def render(*arguments: str, release: str = "kvik") -> list[dict[str, Any]]:
    done = helm_template(*arguments, release=release)
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def of_kind(documents: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [document for document in documents if document["kind"] == kind]
