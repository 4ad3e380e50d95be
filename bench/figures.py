"""Measures the engine on this machine, with the embedded model and the openai client alone: `make bench`.

It prints the time to ready, the memory of all of the engine's processes, and for each number of clients what they got:
output tokens a second, time to first token, gaps between tokens. Every line names its clients and lengths.
"""

import argparse
import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import openai

from kvik_engine.bench.figures import percentile

READY_SECONDS = 120
# (prompt words, output tokens) of the requests that every client takes in turn, from its own place in the list.
MIXED = ((8, 64), (120, 32), (30, 96), (400, 16), (16, 128), (60, 48), (250, 64), (4, 80))


@dataclass(slots=True)
class Measured:
    """What all clients of one run saw. Times are seconds."""

    tokens: int = 0
    first: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)


@contextmanager
def engine(options: list[str]) -> Iterator[tuple[int, int]]:
    """A running engine on free ports of the loopback interface; gives its process id and API port, once it is ready."""
    port, metrics_port = free_port(), free_port()
    address = ["--host", "127.0.0.1", "--port", str(port), "--metrics-port", str(metrics_port)]
    started = time.monotonic()
    kvik = Path(sys.executable).with_name("kvik")
    process = subprocess.Popen([kvik, "serve", "demo", *address, *options], stderr=subprocess.DEVNULL)
    try:
        while not answers(f"http://127.0.0.1:{metrics_port}/ready"):
            if process.poll() is not None or time.monotonic() - started > READY_SECONDS:
                raise SystemExit("the engine did not become ready: run `kvik serve demo` to see why")
            time.sleep(0.1)
        print(f"ready after {time.monotonic() - started:.1f} s")
        yield process.pid, port
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2):
            return True
    except OSError:
        return False


def memory(root: int) -> int:
    """Bytes of a process and all of its descendants, shared pages counted once (PSS)."""
    total, waiting = 0, [root]
    while waiting:
        folder = Path("/proc") / str(waiting.pop())
        lines = (folder / "smaps_rollup").read_text().splitlines()
        total += next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
        waiting += [
            int(child) for task in (folder / "task").iterdir() for child in (task / "children").read_text().split()
        ]
    return total


async def client(number: int, turns: int, measured: Measured, api: openai.AsyncOpenAI, model: str) -> None:
    """Streams `turns` answers one after the other, starting at its own place of the list of lengths."""
    for turn in range(turns):
        words, tokens = MIXED[(number + turn) % len(MIXED)]
        prompt = f"Client {number}, turn {turn}. " + " ".join(f"word{(n * 31 + number) % 997}" for n in range(words))
        started = last = time.monotonic()
        stream = await api.completions.create(
            model=model, prompt=prompt, max_tokens=tokens, temperature=0, stream=True, extra_body={"ignore_eos": True}
        )
        async for chunk in stream:
            if not chunk.choices or not chunk.choices[0].text:
                continue
            now = time.monotonic()
            (measured.first if last == started else measured.gaps).append(now - last)
            last = now
        measured.tokens += tokens


async def run(port: int, clients: int, turns: int) -> float:
    """Prints one line, and returns the output tokens a second."""
    measured = Measured()
    async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0) as api:
        model = (await api.models.list()).data[0].id
        started = time.monotonic()
        await asyncio.gather(*(client(number, turns, measured, api, model) for number in range(clients)))
        rate = measured.tokens / (time.monotonic() - started)
    first, gaps = sorted(measured.first), sorted(measured.gaps)
    print(
        f"{clients:>3} clients x {turns} requests: {rate:7.1f} output tokens/s, "
        f"TTFT P50 {percentile(first, 0.5):.3f} s P99 {percentile(first, 0.99):.3f} s, "
        f"ITL P50 {percentile(gaps, 0.5) * 1000:.0f} ms P99 {percentile(gaps, 0.99) * 1000:.0f} ms"
    )
    return rate


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("options", nargs="*", help="options of kvik serve, after --")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the engine ends too

    lengths = ", ".join(f"{words}+{tokens}" for words, tokens in MIXED)
    print(f"{os.cpu_count()} CPUs; prompt words + output tokens, in turn: {lengths}")
    with engine(arguments.options) as (pid, port):
        print(f"{memory(pid) / 2**20:.0f} MiB (PSS of all processes, KV cache untouched)")
        rates = {clients: asyncio.run(run(port, clients, len(MIXED))) for clients in arguments.clients}
        print(f"{memory(pid) / 2**20:.0f} MiB after that")
    fewest, most = min(rates), max(rates)
    print(f"{most} clients get {rates[most] / rates[fewest]:.1f} times the tokens of {fewest}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
