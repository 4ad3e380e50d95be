"""Which links of a page lead nowhere."""

from pathlib import Path

from scripts.check_links import anchors, dead_links

PAGE = Path("/docs/pools.md")
THERE = {Path("/docs/kubectl.md"): "# kubectl kvik\n\n## top\n", Path("/examples/hpa.yaml"): ""}


def dead(text: str) -> list[str]:
    return list(dead_links(PAGE, text, THERE.get))


def test_a_heading_has_the_anchor_that_forges_give_it() -> None:
    text = "# A page\n## `--swap-space`, and *why*\n### startup, drain\n## What [it](x.md) is\n## top\n## top\n"
    assert anchors(text) == {"a-page", "--swap-space-and-why", "startup-drain", "what-it-is", "top", "top-1"}


def test_what_stands_in_a_code_block_is_neither_heading_nor_link() -> None:
    text = "```\n# no heading\n[x](nowhere.md)\n```\n"
    assert anchors(text) == set()
    assert dead(text) == []


def test_a_link_to_a_heading_that_is_gone_is_found_on_its_own_page_and_on_others() -> None:
    text = "### startup, drain\n[drains](#drain) [so](#startup-drain) [top](kubectl.md#top) [more](kubectl.md#bottom)"
    assert dead(text) == ["#drain", "kubectl.md#bottom"]


def test_a_file_that_is_not_there_is_found_and_other_sites_are_not_asked() -> None:
    text = "[a](scaling.md) [b](../examples/hpa.yaml) [c](https://kvik.dev/#any) [d](kubectl.md)"
    assert dead(text) == ["scaling.md"]
