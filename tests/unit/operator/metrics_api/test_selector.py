"""Label selectors of a query."""

import pytest

from kvik_operator.metrics_api.selector import MAX_LENGTH, parse_selector

LABELS = {"kvik.dev/pool": "chat", "tier": "gold", "empty": ""}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "kvik.dev/pool=chat",
        "kvik.dev/pool==chat,tier",
        "tier!=silver",
        "absent!=x",
        "!absent",
        "tier in (silver, gold)",
        "tier notin (silver),!absent , kvik.dev/pool = chat",
        "absent notin (a,b)",
        "empty=",
        "empty in ()",
        f"!{'a.' * 126}a/{'c' * 63}",
        "!a-b.c/d",
    ],
)
def test_labels_that_meet_every_requirement_match(text: str) -> None:
    assert parse_selector(text).matches(LABELS)


@pytest.mark.parametrize(
    "text",
    ["kvik.dev/pool=other", "absent", "!tier", "tier=gold,absent", "tier notin (gold)", "absent in (x)", "tier="],
)
def test_labels_that_miss_one_do_not(text: str) -> None:
    assert not parse_selector(text).matches(LABELS)


@pytest.mark.parametrize(
    "text",
    [
        *("=chat", "a b", "a=b,", "a in", "a in (b", "a=b c=d", "a>1", "a<1", "-a=b", "a in (b c)", ","),
        *("a..b/c=d", ".a/c", "a./c", "a-/c", "a.-b/c", "A/c", "/c", f"{'a' * 254}/c", "c" * 64),
        "a" * (MAX_LENGTH + 1),
    ],
)
def test_what_is_no_selector_is_refused_and_matches_nothing(text: str) -> None:
    with pytest.raises(ValueError, match="label"):
        parse_selector(text)
