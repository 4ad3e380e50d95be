"""Events as lines, and a log pipe that nobody reads must not stop the server."""

from __future__ import annotations

import json
import logging
import subprocess
import sys

from kvik_engine.log import DroppingQueueHandler, JsonFormatter, TerminalFormatter


def record(**extra: object) -> logging.LogRecord:
    made = logging.LogRecord("kvik", logging.WARNING, "", 0, "core %s", ("died",), None)
    vars(made).update(extra)
    return made


def test_an_event_is_one_json_object_with_its_key_values() -> None:
    line = JsonFormatter("api").format(record(pid=7, path="/x\n"))
    parsed = json.loads(line)
    assert "\n" not in line
    assert (parsed["event"], parsed["level"], parsed["process"]) == ("core died", "warning", "api")
    assert (parsed["pid"], parsed["path"]) == (7, "/x\n")


def test_a_terminal_gets_a_readable_line() -> None:
    assert TerminalFormatter("api").format(record(pid=7)).endswith("api    core died  pid=7")


def test_how_many_records_were_dropped_is_told_once_there_is_room() -> None:
    handler = DroppingQueueHandler(size=3)
    for _ in range(5):
        handler.handle(record())
    for _ in range(3):
        handler.queue.get()
    for _ in range(2):
        handler.handle(record(pid=7))
    told = [json.loads(JsonFormatter("api").format(handler.queue.get())) for _ in range(3)]
    assert [line["event"] for line in told] == ["log records were dropped", "core died", "core died"]
    assert (told[0]["records"], told[0]["level"]) == (2, "warning")


def test_a_blocked_log_pipe_blocks_nobody() -> None:
    script = (
        "import logging, time, os\n"
        "from kvik_engine.log import configure_logging\n"
        "configure_logging('api', queued=True)\n"
        "started = time.monotonic()\n"
        "[logging.info('x' * 1000) for _ in range(20000)]\n"
        "print(time.monotonic() - started, flush=True)\n"
        "os._exit(0)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    line = process.stdout.readline()  # stderr is not read: its pipe fills at 64 KiB
    process.communicate(timeout=20)
    assert 0 < float(line) < 20
