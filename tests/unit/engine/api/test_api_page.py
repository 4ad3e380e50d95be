"""docs/api.md against the code: which statuses can come, and which fields are refused."""

from __future__ import annotations

import re
from http import HTTPStatus
from pathlib import Path

import kvik_engine.api
from kvik_engine.api.schema import HARMLESS

PAGE = (Path(__file__).resolve().parents[4] / "docs" / "api.md").read_text()
API = Path(kvik_engine.api.__path__[0])
BY_THE_ROUTER = {HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED}


def statuses_in_code() -> set[int]:
    """Named anywhere in the API's code, or the status of an error class."""
    named = {
        HTTPStatus[name] for path in API.glob("*.py") for name in re.findall(r"HTTPStatus\.([A-Z_]+)", path.read_text())
    }
    of_errors = re.findall(r"^    status = (\d+)$", (API.parent / "errors.py").read_text(), re.MULTILINE)
    return {*map(int, named), *map(int, of_errors), *map(int, BY_THE_ROUTER)} - {HTTPStatus.OK}


def test_the_page_lists_every_status_that_can_be_sent_and_no_other() -> None:
    table = PAGE.partition("## Errors")[2].partition("\n## ")[0]
    listed = [int(status) for row in re.findall(r"^\| ([\d, ]+) \|", table, re.MULTILINE) for status in row.split(", ")]
    assert sorted(listed) == sorted(statuses_in_code())


def test_the_page_names_every_refused_field() -> None:
    paragraph = PAGE.partition("Refused for now")[2].partition("\n## ")[0]
    assert {field for field in HARMLESS if f"`{field}`" not in paragraph and f"`{field}:" not in paragraph} == set()
