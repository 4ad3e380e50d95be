"""Hypothesis draws the same examples in every run, whatever was imported before."""

import importlib
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st


def drawn() -> list[int]:
    seen: list[int] = []

    @settings(max_examples=200)
    @given(st.integers())
    def draw(number: int) -> None:
        seen.append(number)

    draw()
    return seen


def test_a_module_that_is_loaded_changes_no_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its constants are drawn otherwise: tests that ran before, on the same worker, decided what others tried."""
    before = drawn()
    (tmp_path / "constants.py").write_text(f"NUMBERS = {[1_000_003 * number for number in range(1, 99)]}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "constants", importlib.import_module("constants"))

    assert drawn() == before
