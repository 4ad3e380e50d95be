import os
from pathlib import Path

from images.base import mirror_in
from images.context import content_hash, copy_context


def sources(folder: Path) -> Path:
    (folder / "package/__pycache__").mkdir(parents=True)
    (folder / "package/module.py").write_text("print()\n")
    (folder / "package/__pycache__/module.pyc").write_bytes(b"\0")
    return folder / "package"


def hash_of(source: Path, target: Path, **settings: str) -> str:
    copy_context({"package": source}, target)
    return content_hash(target, settings)


def test_place_time_mode_and_caches_do_not_change_the_inputs(tmp_path: Path):
    first = sources(tmp_path / "one")
    second = sources(tmp_path / "two")
    os.utime(second / "module.py", (0, 0))
    (second / "module.py").chmod(0o600)
    (second / "__pycache__/module.pyc").write_bytes(b"\1")
    assert hash_of(first, tmp_path / "a") == hash_of(second, tmp_path / "b")


def test_content_settings_and_executability_change_the_inputs(tmp_path: Path):
    source = sources(tmp_path / "one")
    before = hash_of(source, tmp_path / "a", BASE="x")
    assert hash_of(source, tmp_path / "b", BASE="y") != before
    (source / "module.py").chmod(0o755)
    executable = hash_of(source, tmp_path / "c", BASE="x")
    assert executable != before
    (source / "module.py").write_text("print(1)\n")
    assert hash_of(source, tmp_path / "d", BASE="x") != executable


def test_the_mirror_is_that_of_the_suites_main_component():
    targets = "http://a.example/security bookworm-security main\nhttp://b.example/debian bookworm main\n"
    assert mirror_in(targets) == "http://b.example/debian"
    assert mirror_in("http://b.example/ubuntu noble main\n") is None
