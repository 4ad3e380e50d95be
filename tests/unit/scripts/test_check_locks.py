from pathlib import Path

from packaging.requirements import Requirement

from scripts.check_locks import asked, pinned, unmet

PIN = "aiohttp==3.14.5 \\\n    --hash=sha256:00\n    # via -r engine.in\n"


def test_a_lock_without_a_package_that_is_asked_for_is_reported() -> None:
    assert unmet("engine", {"aiohttp": "3.14.5"}, [Requirement("torch>=2.11")], "engine.in") == [
        "engine.txt: torch is missing, engine.in needs it"
    ]


def test_a_pin_below_the_floor_is_reported() -> None:
    found = unmet("engine", {"torch": "2.10.0"}, [Requirement("torch>=2.11")], "engine.in")

    assert found == ["engine.txt: torch==2.10.0 is not what engine.in needs: torch>=2.11"]


def test_a_requirement_of_another_platform_or_an_extra_asks_for_nothing() -> None:
    requirements = [Requirement("colorama; sys_platform == 'win32'"), Requirement("pytest; extra == 'test'")]

    assert unmet("engine", {}, requirements, "engine.in") == []


def test_names_are_compared_in_their_canonical_form() -> None:
    assert unmet("engine", {"huggingface-hub": "2.4.0"}, [Requirement("Huggingface_Hub>=2")], "engine.in") == []


def test_an_included_file_asks_as_well(tmp_path: Path) -> None:
    (tmp_path / "engine.in").write_text("aiohttp>=3 # a comment\n")
    (tmp_path / "dev.in").write_text("-r engine.in\n\npytest\n")

    assert [str(requirement) for requirement in asked("dev", tmp_path)] == ["aiohttp>=3", "pytest"]


def test_a_pin_of_another_platform_is_not_counted(tmp_path: Path) -> None:
    (tmp_path / "engine.txt").write_text(f"{PIN}colorama==0.4.6 ; sys_platform == 'win32' \\\n    --hash=sha256:01\n")

    assert pinned("engine", tmp_path) == ({"aiohttp": "3.14.5"}, [])


def test_a_pin_without_a_hash_and_a_line_that_is_no_pin_are_reported(tmp_path: Path) -> None:
    (tmp_path / "engine.txt").write_text(f"{PIN}torch==2.15.0\nnumpy>=2\n")

    _, problems = pinned("engine", tmp_path)

    assert problems == ["engine.txt: torch has no hash", "engine.txt: not a plain pin: numpy>=2"]
