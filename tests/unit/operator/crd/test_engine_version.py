"""How versions are written, and which is newer."""

import pytest

from kvik_operator.crd.engine_version import Version


@pytest.mark.parametrize("text", ["0.1.0", "1.20.300", "0.2.0-rc.1", "0.2.0-alpha.12"])
def test_a_version_is_printed_as_it_was_written(text: str) -> None:
    assert str(Version.parse(text)) == text


@pytest.mark.parametrize(
    "text", ["", "1", "0.1", "v0.1.0", "0.1.0.0", "01.1.0", "0.1.0-cpu", "0.1.0-rc1", "0.1.0-dev.1", " 0.1.0", "٠.١.٠"]
)
def test_anything_else_is_none(text: str) -> None:
    with pytest.raises(ValueError, match="is no version"):
        Version.parse(text)


def test_versions_are_ordered_as_numbers_and_a_release_follows_its_candidates() -> None:
    texts = ["0.1.0", "0.2.0-alpha.9", "0.2.0-beta.1", "0.2.0-rc.2", "0.2.0-rc.10", "0.2.0", "0.10.0", "1.0.0"]
    assert [str(version) for version in sorted(map(Version.parse, reversed(texts)))] == texts
