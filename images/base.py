"""The base image where no registry can be asked: Debian by debootstrap, from the mirror that apt uses here."""

import subprocess
import sys
import tempfile
from pathlib import Path

from images import debian

SUITE = "bookworm"
LOCAL_BASE = f"localhost/kvik/base:{SUITE}"
_PACKAGES = "python3,python3-venv,ca-certificates"


def ensure_local_base() -> str:
    """The name of the base image; makes it if it is not here (about two minutes)."""
    if subprocess.run(
        ["buildah", "inspect", "--type", "image", LOCAL_BASE], capture_output=True, check=False
    ).returncode:
        debian.ensure({"debootstrap": "debootstrap", "tar": "tar"})
        print(f"images: making {LOCAL_BASE} by debootstrap (one or two minutes) ...", flush=True, file=sys.stderr)
        with tempfile.TemporaryDirectory(dir="/var/tmp") as scratch:
            root = Path(scratch) / "root"
            _run("debootstrap", "--variant=minbase", f"--include={_PACKAGES}", SUITE, str(root), mirror())
            for leftover in ("var/cache/apt/archives/*.deb", "var/lib/apt/lists/*_*", "var/log/*.log"):
                for path in root.glob(leftover):
                    path.unlink()
            (Path(scratch) / "Containerfile").write_text('FROM scratch\nADD root.tar /\nCMD ["/bin/sh"]\n')
            _run("tar", "--create", "--numeric-owner", "-C", str(root), "--file", f"{scratch}/root.tar", ".")
            (Path(scratch) / ".containerignore").write_text("root\n")
            _run("buildah", "bud", "--isolation", "chroot", "--tag", LOCAL_BASE, scratch)
    return LOCAL_BASE


def mirror() -> str:
    """The mirror of the suite's main component in this machine's apt configuration.

    Raises:
        RuntimeError: this machine does not take that suite from anywhere.
    """
    form = "$(REPO_URI) $(CODENAME) $(COMPONENT)"
    done = subprocess.run(
        ["apt-get", "indextargets", "--format", form, "Created-By: Packages"],
        capture_output=True,
        text=True,
        check=False,
    )
    found = mirror_in(done.stdout)
    if found is None:
        raise RuntimeError(
            f"no base image: this machine's apt has no mirror of Debian {SUITE} to make one from. "
            "Set BASE to an image with Python >= 3.11 and venv that buildah can use."
        )
    return found


def mirror_in(targets: str) -> str | None:
    """From lines `URI CODENAME COMPONENT`, as apt-get indextargets gives them."""
    for line in targets.splitlines():
        match line.split():
            case [uri, codename, "main"] if codename == SUITE:
                return uri
    return None


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} failed:\n{(done.stderr or done.stdout).strip()[-2000:]}")
