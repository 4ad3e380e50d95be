"""Flags and variables: every value checked, the wrong one named, the flag before the variable."""

from __future__ import annotations

import argparse
import contextlib
import signal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvik_engine import cli
from kvik_engine.cli import values
from kvik_engine.cli.class_defaults import batching
from kvik_engine.cli.devices import resolve_device
from kvik_engine.cli.serve import build_config, resolve
from kvik_engine.cli.serve_options import OPTIONS, read_options
from kvik_engine.cli.sources import default_cache_dir
from kvik_engine.config import DEFAULTS, EngineConfig
from kvik_engine.errors import StartError, StartReason
from kvik_engine.run_dir import RunDir
from tests.support.live_api import engine_config


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("0", 0),
        ("268435456", 1 << 28),
        ("256Mi", 1 << 28),
        ("1Gi", 1 << 30),
        ("1.5k", 1500),
        ("2G", 2 * 10**9),
        ("5MB", 5 * 10**6),
    ],
)
def test_sizes(text: str, want: int) -> None:
    assert values.size(text) == want


@pytest.mark.parametrize("text", ["", "-1", "1mi", "Mi", "1 Mi", "1e9", "0x10", "1Mi5", "nan"])
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="not a size"):
        values.size(text)


@pytest.mark.parametrize(
    ("text", "want"), [("30s", 30.0), ("500ms", 0.5), ("2m", 120.0), ("1h30m", 5400.0), ("0s", 0.0), ("1m500ms", 60.5)]
)
def test_durations(text: str, want: float) -> None:
    assert values.duration(text) == want


@pytest.mark.parametrize("text", ["", "30", "1.5s", "-1s", "1d", "s", "1s ", "99999999s"])
def test_durations_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        values.duration(text)


@given(st.text())
def test_no_text_breaks_a_reader(text: str) -> None:
    for option in OPTIONS:
        if option.read is not str:
            with contextlib.suppress(ValueError):
                option.read(text)


def test_a_flag_wins_over_its_variable() -> None:
    flags = {"max_requests": "7"}
    assert read_options(flags, {"KVIK_MAX_REQUESTS": "9", "KVIK_PORT": "1234", "HOME": "/x"}) == {
        "max_requests": 7,
        "port": 1234,
    }


def test_an_unknown_variable_is_refused_by_name_except_the_test_builds() -> None:
    """A Service named kvik sets KVIK_PORT=tcp://...; typos must not be silent either."""
    assert read_options({}, {"KVIK_FAULTS": "die-at-step=3"}) == {}
    with pytest.raises(StartError, match="KVIK_MAX_REQUEST ") as caught:
        read_options({}, {"KVIK_MAX_REQUEST": "7"})
    assert caught.value.reason is StartReason.CONFIG_INVALID


@pytest.mark.parametrize(
    ("flags", "environment", "name"),
    [
        ({"memory_fraction": "1.5"}, {}, "--memory-fraction"),
        ({"memory_fraction": "1e-320"}, {}, "--memory-fraction"),
        ({"swap_space": "9" * 400}, {}, "--swap-space"),
        ({"block_tokens": "24"}, {}, "--block-tokens"),
        ({}, {"KVIK_PORT": "tcp://10.0.0.1:80"}, "KVIK_PORT"),
    ],
)
def test_a_wrong_value_names_where_it_came_from(flags: dict[str, str], environment: dict[str, str], name: str) -> None:
    with pytest.raises(StartError, match=name):
        read_options(flags, environment)


def test_every_option_is_a_field_of_the_configuration() -> None:
    fields = set(EngineConfig.__dataclass_fields__)
    renamed = {"digest": "model_digest"}
    assert {renamed.get(o.name, o.name) for o in OPTIONS} <= fields


def test_class_values_on_a_gpu_and_capped_on_a_cpu() -> None:
    assert batching("interactive", "cuda", {}) == {
        "max_requests": 32,
        "max_batch_tokens": 2048,
        "chunked_prefill_tokens": 256,
        "max_queued_requests": 64,
    }
    assert batching("batch", "cpu", {}) == {
        "max_requests": 32,
        "max_batch_tokens": 512,
        "chunked_prefill_tokens": 128,
        "max_queued_requests": 4096,
    }


def test_an_explicit_batch_lowers_what_depends_on_it() -> None:
    chosen = batching("balanced", "cuda", {"max_batch_tokens": 48})
    assert (chosen["max_requests"], chosen["chunked_prefill_tokens"]) == (48, 48)


def test_explicit_values_win_over_caps_and_must_fit_each_other() -> None:
    assert batching("balanced", "cpu", {"max_requests": 100})["max_requests"] == 100
    assert batching("balanced", "cpu", {"chunked_prefill_tokens": 1000})["max_batch_tokens"] == 1000
    with pytest.raises(StartError, match="--chunked-prefill-tokens"):
        batching("balanced", "cpu", {"chunked_prefill_tokens": 100, "max_batch_tokens": 50})


def test_auto_is_a_gpu_only_where_there_is_one(tmp_path: Path) -> None:
    assert resolve_device("auto", tmp_path) == "cpu"
    assert resolve_device("gpu", tmp_path) == "cuda"
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "kfd").touch()
    assert resolve_device("auto", tmp_path) == "cuda"
    assert resolve_device("cpu", tmp_path) == "cpu"


def build(source: str, tmp_path: Path, **given: Any) -> EngineConfig:
    config: EngineConfig = build_config(
        source, resolve({"device": "cpu", "cache_dir": str(tmp_path)} | given), tmp_path / "run"
    )
    return config


def test_a_folder_is_named_after_its_last_part_and_pull_notes_are_read(tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / ".kvik.json").write_text('{"source": "hf://o/m@main", "revision": "abc", "finished_at": "x"}')
    config = build(str(folder), tmp_path)
    assert (config.model_name, config.model_revision, config.max_requests) == ("my-model", "abc", 32)
    assert build(str(folder), tmp_path, model_name="other").model_name == "other"


def test_a_missing_path_is_model_not_found(tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"/nothing does not exist$") as caught:
        build(str(tmp_path / "nothing"), tmp_path)
    assert caught.value.reason is StartReason.MODEL_NOT_FOUND
    with pytest.raises(StartError, match="nothing does not exist; a model is demo, a path, or hf://ORG/NAME@REV"):
        build("nothing", tmp_path)


def test_help_shows_every_flag_with_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["serve", "--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    for option in OPTIONS:
        assert option.flag in text
    assert text.count("(default:") == len(OPTIONS)
    assert "hf://ORG/NAME@REV" in text


def test_the_help_reads_defaults_from_the_configuration() -> None:
    """They stood in four places; the one that served was not always the one that was shown."""
    shown = {option.name: option.full_help for option in OPTIONS if option.default is None}
    assert all(DEFAULTS[name] is not None for name in shown)
    assert shown["port"].endswith("(default: 8000)")
    assert shown["drain_timeout"].endswith("(default: 120s)")
    assert {"max_requests", "max_queued_requests"}.isdisjoint(DEFAULTS), "the class decides"


def test_the_command_list_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    text = capsys.readouterr().out
    assert all(name in text for name in ("serve", "model", "drain", "version"))


def test_an_unknown_command_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["surve"])
    assert caught.value.code == 2
    assert "invalid choice: 'surve'" in capsys.readouterr().err


def test_a_start_error_is_one_line_and_code_78(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["model", "digest", str(tmp_path / "none")]) == 78
    assert capsys.readouterr().err.startswith("ModelNotFound: ")


def test_a_run_folder_that_cannot_be_made_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    (tmp_path / "file").touch()
    try:
        assert cli.main(["serve", str(tmp_path), f"--run-dir={tmp_path / 'file'}", "--device=cpu"]) == 78
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    assert "ConfigInvalid: --run-dir" in capsys.readouterr().err


def test_the_cache_is_xdgs_or_below_home_or_temporary() -> None:
    assert default_cache_dir({"XDG_CACHE_HOME": "/x", "HOME": "/h"}) == Path("/x/kvik")
    assert default_cache_dir({"HOME": "/h"}) == Path("/h/.cache/kvik")
    assert default_cache_dir({}).name == "kvik-cache"


def test_a_run_dir_whose_sockets_would_have_too_long_a_path_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = tmp_path / ("x" * 100)
    assert cli.main(["serve", str(tmp_path), f"--run-dir={base}", "--device=cpu"]) == 78
    assert "can hold no socket: AF_UNIX path too long" in capsys.readouterr().err
    assert not list(base.glob("kvik-*"))


def test_drain_without_an_engine_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["drain", "--run-dir", str(tmp_path)]) == 1
    assert "0 engines match" in capsys.readouterr().err


def test_drain_of_an_engine_that_still_starts_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """launch first makes the folder, then config.json; the API process makes the socket much later."""
    run_dir = RunDir.create(tmp_path)
    try:
        for _ in range(2):
            assert cli.main(["drain", "--run-dir", str(tmp_path)]) == 1
            assert "it is starting or ending; send it SIGTERM" in capsys.readouterr().err
            engine_config(tmp_path).write(run_dir.config_file)
        assert cli.main(["drain", "--run-dir", str(tmp_path), "--port", "1"]) == 1
        assert "ports of running engines: 8000" in capsys.readouterr().err
    finally:
        run_dir.remove()


def test_a_configuration_is_replaced_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`kvik drain` reads it while convert writes it anew: it must never see half of one."""
    path = tmp_path / "config.json"
    first, second = engine_config(tmp_path), engine_config(tmp_path, port=1)
    first.write(path)
    write_text = Path.write_text

    def half(target: Path, text: str) -> int:
        write_text(target, text[:20])
        assert EngineConfig.read(path) == first
        return write_text(target, text)

    monkeypatch.setattr(Path, "write_text", half)
    second.write(path)
    assert EngineConfig.read(path) == second
    assert list(tmp_path.iterdir()) == [path]


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["version"]) == 0
    assert capsys.readouterr().out.startswith("kvik 0.")


def test_options_of_serve_do_not_read_the_environment_themselves() -> None:
    parser = argparse.ArgumentParser()
    from kvik_engine.cli import serve

    serve.add_arguments(parser)
    assert vars(parser.parse_args(["demo"]))["port"] is None
