"""Take a running engine on this machine out of service: not ready at once, then as after SIGTERM.

It accepts requests for 5 s more, refuses new ones, lets streams finish and exits.
"""

from __future__ import annotations

import argparse
import json
import socket
import sys
from pathlib import Path

HELP = "drain a running engine"
_REPLY_SECONDS = 10.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--port", type=int, metavar="PORT", help="which engine, where several run (its --port)")
    parser.add_argument("--run-dir", metavar="DIR", help="the engine's --run-dir (default: /tmp/kvik-UID)")


def run(arguments: argparse.Namespace) -> int:
    from kvik_engine.run_dir import default_base, running

    base = Path(arguments.run_dir) if arguments.run_dir else default_base()
    engines = {path: _port(path) for path in running(base)}
    found = [path for path, port in engines.items() if arguments.port in (None, port)]
    if len(found) != 1:
        ports = ", ".join(sorted("starting" if port is None else str(port) for port in engines.values())) or "none"
        print(f"kvik drain: {len(found)} engines match; ports of running engines: {ports}", file=sys.stderr)
        return 1
    try:
        reply = ask_to_drain(found[0])
    except (OSError, ValueError) as error:
        print(
            f"kvik drain: the engine does not answer ({error}): it is starting or ending; send it SIGTERM",
            file=sys.stderr,
        )
        return 1
    print(f"draining, {reply['running']} requests running")
    return 0


def _port(run_dir: Path) -> int | None:
    """None for an engine that has not written its configuration yet."""
    try:
        port: int = json.loads((run_dir / "config.json").read_text())["port"]
    except FileNotFoundError:
        return None
    return port


def ask_to_drain(run_dir: Path) -> dict[str, int]:
    """Send the command over the engine's Unix socket; its answer.

    OSError or ValueError when nothing answers there: the API process makes the socket once the tokenizer is loaded.
    """
    from kvik_engine.api.admin_socket import ADMIN_SOCKET

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_REPLY_SECONDS)
        connection.connect(str(run_dir / ADMIN_SOCKET))
        connection.sendall(b"drain\n")
        with connection.makefile("r") as lines:
            reply: dict[str, int] = json.loads(lines.readline())
    return reply
