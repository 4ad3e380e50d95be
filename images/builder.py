"""The program that builds: docker where an engine answers, else buildah."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from images import debian

INPUTS_LABEL = "dev.kvik.inputs"
MACHINE_CERTIFICATES = Path("/etc/ssl/certs")
_CERTIFICATE_VARIABLES = ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE")


class Builder(Protocol):
    """What the rest of the build needs to know of a builder."""

    def inputs_of(self, image: str) -> str | None:
        """The inputs label of an image that is here; None without the image or the label."""

    def build(self, image: str, context: Path, arguments: Mapping[str, str], inputs: str) -> None:
        """Builds `context` (it holds a Containerfile) and shows the builder's own progress.

        Raises:
            RuntimeError: the build failed.
        """


def docker_answers() -> bool:
    if shutil.which("docker") is None:
        return False
    try:
        return subprocess.run(["docker", "info"], capture_output=True, check=False, timeout=30).returncode == 0
    except subprocess.TimeoutExpired:
        return False


@dataclass(frozen=True, slots=True)
class Docker:
    def inputs_of(self, image: str) -> str | None:
        template = f'{{{{index .Config.Labels "{INPUTS_LABEL}"}}}}'
        return _label(["docker", "image", "inspect", "--format", template, image])

    def build(self, image: str, context: Path, arguments: Mapping[str, str], inputs: str) -> None:
        _build(["docker", "build", "--label", f"{INPUTS_LABEL}={inputs}"], image, context, arguments)


@dataclass(frozen=True, slots=True)
class Buildah:
    """Builds without a daemon. Chroot isolation passes no environment, so where this machine's TLS goes through an
    authority of its own, its certificates and the settings of pip and uv are mounted into the build."""

    def inputs_of(self, image: str) -> str | None:
        template = f'{{{{index .OCIv1.Config.Labels "{INPUTS_LABEL}"}}}}'
        return _label(["buildah", "inspect", "--type", "image", "--format", template, image])

    def build(self, image: str, context: Path, arguments: Mapping[str, str], inputs: str) -> None:
        command = [
            "buildah",
            "bud",
            "--isolation",
            "chroot",
            "--layers",
            "--force-rm",
            "--label",
            f"{INPUTS_LABEL}={inputs}",
        ]
        with tempfile.TemporaryDirectory() as settings:
            _build(command + _trust_mounts(Path(settings)), image, context, arguments)


def choose() -> Builder:
    """CLUSTER=local reads buildah's store, so there a Docker engine is left alone."""
    if os.environ.get("CLUSTER") != "local" and docker_answers():
        return Docker()
    debian.ensure({"buildah": "buildah"})
    return Buildah()


def _trust_mounts(folder: Path) -> list[str]:
    if not any(os.environ.get(variable) for variable in _CERTIFICATE_VARIABLES):
        return []
    (folder / "uv").mkdir()
    (folder / "uv/uv.toml").write_text("system-certs = true\n")
    (folder / "pip.conf").write_text(f"[global]\ncert = {MACHINE_CERTIFICATES / 'ca-certificates.crt'}\n")
    mounts = {
        MACHINE_CERTIFICATES: MACHINE_CERTIFICATES,
        folder / "pip.conf": "/etc/pip.conf",
        folder / "uv": "/etc/uv",
    }
    return [flag for source, target in mounts.items() for flag in ("--volume", f"{source}:{target}:ro")]


def _label(command: Sequence[str]) -> str | None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    value = done.stdout.strip()
    return value if done.returncode == 0 and value and value != "<no value>" else None


def _build(command: Sequence[str], image: str, context: Path, arguments: Mapping[str, str]) -> None:
    flags = [flag for name, value in arguments.items() for flag in ("--build-arg", f"{name}={value}")]
    full = [*command, *flags, "--file", str(context / "Containerfile"), "--tag", image, str(context)]
    if subprocess.run(full, check=False, stdout=sys.stderr).returncode != 0:
        raise RuntimeError(f"building {image} failed (see above)")
