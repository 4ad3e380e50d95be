"""Which cluster and namespace are meant, and that every failure is one line."""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvik_kubectl.__main__ import run
from kvik_kubectl.connection import connect
from kvik_kubectl.errors import PluginError
from kvik_kubectl.session import Session, seconds
from tests.support.plugin_api import PluginApi, plugin

NOBODY = "https://127.0.0.1:1"


def kubeconfig(path: Path, current: str | None, **namespaces: str | None) -> Path:
    """A context for each namespace, all of one cluster that does not answer."""
    contexts = [
        {"name": name, "context": {"cluster": "c", "user": "u"} | ({} if space is None else {"namespace": space})}
        for name, space in namespaces.items()
    ]
    config: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": NOBODY}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": contexts,
    }
    if current is not None:
        config["current-context"] = current
    path.write_text(json.dumps(config))
    return path


def namespace(path: Path | str, context: str | None = None, namespace: str | None = None) -> str:
    return connect(str(path), context, namespace, "test").namespace


def test_the_namespace_is_the_flags_then_the_contexts_then_default(tmp_path: Path) -> None:
    config = kubeconfig(tmp_path / "config", "one", one="team", two=None)
    assert namespace(config) == "team"
    assert namespace(config, "two") == "default"
    assert namespace(config, "two", "mine") == namespace(config, None, "mine") == "mine"


def test_several_files_are_merged_and_no_current_context_is_needed_with_a_named_one(tmp_path: Path) -> None:
    first = kubeconfig(tmp_path / "first", "one", one="team")
    second = kubeconfig(tmp_path / "second", None, three="other")
    assert namespace(f"{first}:{second}", "three") == "other"
    assert namespace(second, "three") == "other"


@pytest.mark.parametrize("content", ["", "[", "{}", "apiVersion: v1\nkind: Config\n"])
def test_a_file_that_is_no_kubeconfig_is_told(tmp_path: Path, content: str) -> None:
    path = tmp_path / "config"
    path.write_text(content)
    with pytest.raises(PluginError) as told:
        namespace(path)
    assert "\n" not in str(told.value)


def test_a_context_that_is_not_there_is_named(tmp_path: Path) -> None:
    config = kubeconfig(tmp_path / "config", "one", one="team")
    with pytest.raises(PluginError, match="four"):
        namespace(config, "four")


def test_the_flags_stand_before_or_after_the_command() -> None:
    seen: list[argparse.Namespace] = []

    def session_of(options: argparse.Namespace) -> Session:
        seen.append(options)
        raise PluginError("enough")

    for arguments in (("-n", "x", "--context=c", "history", "chat"), ("history", "chat", "-n", "x", "--context", "c")):
        assert run(arguments, session_of) == 1
    assert [(one.namespace, one.context, one.kubeconfig) for one in seen] == [("x", "c", None)] * 2


def test_wrong_usage_is_2() -> None:
    for arguments in (
        (),
        ("fly",),
        ("upgrade",),
        ("drain", "p", "--timeout=soon"),
        ("upgrade", "p", "--wait", "--dry-run"),
    ):
        with pytest.raises(SystemExit) as ended:
            plugin(PluginApi(), *arguments)
        assert ended.value.code == 2


def test_a_missing_pool_and_a_missing_kvik_are_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    assert [plugin(PluginApi(), "history", "nobody")[0], plugin(PluginApi(installed=False), "history", "chat")[0]] == [
        1,
        1,
    ]
    assert capsys.readouterr().err.splitlines() == [
        "kubectl kvik: there is no pool nobody in namespace demo",
        "kubectl kvik: this cluster does not serve inferencepools.kvik.dev: is Kvik installed?",
    ]


def test_a_server_that_does_not_answer_is_one_line_and_exit_code_1(tmp_path: Path) -> None:
    """The whole console script, in a process of its own."""
    config = kubeconfig(tmp_path / "config", "one", one="team")
    done = subprocess.run(
        [sys.executable, "-m", "kvik_kubectl", "history", "chat", f"--kubeconfig={config}"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"kubectl kvik: the API server at {NOBODY} does not answer: ")


def test_kubectl_finds_it_by_its_name() -> None:
    assert Path(sys.executable).with_name("kubectl-kvik").exists()


@pytest.mark.parametrize(("text", "want"), [("90", 90), ("90s", 90), ("5m", 300), ("1h", 3600), ("0", 0)])
def test_durations_are_read_as_kubectl_reads_them(text: str, want: float) -> None:
    assert seconds(text) == want


@pytest.mark.parametrize("text", ["", "s", "-1", "1.5m", "5x", "∞"])
def test_other_durations_are_wrong_usage(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        seconds(text)
