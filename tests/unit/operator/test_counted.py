import pytest

from kvik_operator.counted import counted


@pytest.mark.parametrize(
    ("count", "what", "want"),
    [(1, "pod", "1 pod"), (2, "pod", "2 pods"), (0, "old one", "0 old ones"), (1, "more pod", "1 more pod")],
)
def test_one_is_told_as_one(count: int, what: str, want: str) -> None:
    assert counted(count, what) == want
