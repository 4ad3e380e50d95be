import json
import logging
from collections.abc import Mapping
from typing import Any

from kvik_operator.telemetry.logging import JsonFormatter, log_context


def line(message: str, *, exc: BaseException | None = None, **extra: object) -> Mapping[str, Any]:
    info = (type(exc), exc, exc.__traceback__) if exc is not None else None
    record = logging.LogRecord("kvik.test", logging.INFO, __file__, 1, message, (), info)
    record.__dict__.update(extra)
    parsed: Mapping[str, Any] = json.loads(JsonFormatter().format(record))
    return parsed


def test_a_line_is_one_json_object_with_a_fixed_message_and_values() -> None:
    got = line("scaled", replicas=3, formula="60 %\nof full")
    assert (got["message"], got["level"], got["replicas"]) == ("scaled", "info", 3)
    assert got["time"].endswith("+00:00")


def test_the_pool_comes_from_the_context_and_leaves_with_it() -> None:
    with log_context(pool="demo/chat"):
        assert line("x")["pool"] == "demo/chat"
        with log_context(step="apply"):
            assert (line("x")["pool"], line("x")["step"]) == ("demo/chat", "apply")
        assert "step" not in line("x")
    assert "pool" not in line("x")


def test_whole_objects_that_libraries_attach_stay_out() -> None:
    assert "k8s_ref" not in line("x", k8s_ref={"a": "whole object"})


def test_an_exception_is_told_with_its_traceback() -> None:
    try:
        raise ZeroDivisionError("why")
    except ZeroDivisionError as error:
        got = line("reconcile failed: this is a bug", exc=error)
    assert "ZeroDivisionError: why" in got["exception"]
    assert "Traceback" in got["exception"]
