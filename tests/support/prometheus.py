"""Prometheus and promtool: those on the PATH, or Debian's, unpacked into the user's cache folder and never installed.

`python -m tests.support.prometheus` fetches them; afterwards, and where both are on the PATH, nothing is downloaded.
"""

import contextlib
import fcntl
import json
import shutil
import subprocess
import sys
import tempfile
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.free_ports import free_ports
from tests.cluster.paths import cache_root
from tests.support.waiting import wait_until

PROGRAMS = ("prometheus", "promtool")


def program(name: str) -> Path:
    """Raises RuntimeError where there is none and none can be fetched."""
    found = shutil.which(name)
    if found is not None:
        return Path(found)
    folder = cache_root() / "prometheus"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with (folder.parent / "prometheus.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.exists():
                _fetch(folder)
    return folder / "usr" / "bin" / name


def _fetch(folder: Path) -> None:
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise RuntimeError("prometheus and promtool are not on the PATH, and there is no apt-get to fetch them with")
    print("prometheus: fetching Debian's package (20 MB) ...", flush=True, file=sys.stderr)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        try:
            _run("apt-get", "download", "--quiet", "prometheus", cwd=scratch)
        except RuntimeError:  # a new machine knows of no package yet
            _run("apt-get", "update", "--quiet", cwd=scratch)
            _run("apt-get", "download", "--quiet", "prometheus", cwd=scratch)
        (package,) = Path(scratch).glob("prometheus_*.deb")
        unpacked = Path(scratch) / "unpacked"
        _run("dpkg-deb", "--extract", str(package), str(unpacked), cwd=scratch)
        unpacked.rename(folder)


def _run(*command: str, cwd: str) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr.strip()[-2000:]}")


def promtool(*arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    command = [program("promtool"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@dataclass(frozen=True, slots=True)
class RunningPrometheus:
    port: int

    def get(self, path: str, **parameters: str) -> Any:
        """`data` of an answer of the HTTP API. Raises urllib.error.HTTPError for a query that does not parse."""
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=30) as answer:
            return json.load(answer)["data"]

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Labels and value of each sample of now."""
        return [(item["metric"], float(item["value"][1])) for item in self.get("query", query=expression)["result"]]


@contextlib.contextmanager
def running_prometheus(folder: Path, config: dict[str, Any]) -> Iterator[RunningPrometheus]:
    """A real one on a free port of 127.0.0.1, ready for queries, with everything it writes in `folder`."""
    (port,) = free_ports("127.0.0.1", 1)
    folder.mkdir(parents=True, exist_ok=True)
    file, log = folder / "prometheus.yaml", folder / "log"
    file.write_text(yaml.safe_dump(config))
    server = RunningPrometheus(port)
    command = [
        str(program("prometheus")),
        f"--config.file={file}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with log.open("ab") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, cwd=folder)

    def ready() -> bool:
        assert process.poll() is None, log.read_text()[-3000:]
        with contextlib.suppress(OSError):
            return bool(server.get("status/runtimeinfo"))
        return False

    try:
        wait_until(ready, pause=0.2)
        yield server
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def main() -> int:
    try:
        for name in PROGRAMS:
            program(name)
    except RuntimeError as error:
        print(f"prometheus: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
