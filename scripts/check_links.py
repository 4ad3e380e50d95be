"""Links of our own pages to pages and headings that are not there.

python3 scripts/check_links.py
"""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NO_PAGE = "engine/kvik_engine/sample_text.md"
"""What a start reads to measure its cache: parts of pages, which stay as they are."""
FENCED = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*$", re.MULTILINE)
LINK = re.compile(r"\]\(([^()\s]+)\)")
ELSEWHERE = re.compile(r"[a-z][a-z+.-]*:", re.IGNORECASE)
"""A scheme: no file of ours."""


def anchors(text: str) -> set[str]:
    """Of every heading of a page, as forges make them: lower case, dashes for spaces, `-1` on the second of a name."""
    found: dict[str, int] = {}
    names: set[str] = set()
    for heading in HEADING.findall(FENCED.sub("", text)):
        shown = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        name = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
        seen = found.get(name, 0)
        found[name] = seen + 1
        names.add(f"{name}-{seen}" if seen else name)
    return names


def dead_links(page: Path, text: str, read: Callable[[Path], str | None]) -> Iterator[str]:
    """Of one page; `read` gives the text of a file, empty for what is no page, None where there is none."""
    for target in LINK.findall(FENCED.sub("", text)):
        if ELSEWHERE.match(target):
            continue
        path, _, anchor = target.partition("#")
        there = text if not path else read((page.parent / path).resolve())
        if there is None or (anchor and anchor not in anchors(there)):
            yield target


def main() -> int:
    command = ["git", "ls-files", "*.md", f":!{NO_PAGE}"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    pages = [ROOT / name for name in listed.stdout.splitlines()]
    dead = [f"{page.relative_to(ROOT)}: {link}" for page in pages for link in dead_links(page, page.read_text(), _read)]
    for each in dead:
        print(f"{each} leads nowhere")
    return 1 if dead else 0


def _read(path: Path) -> str | None:
    if path.suffix == ".md":
        return path.read_text() if path.is_file() else None
    return "" if path.exists() else None


if __name__ == "__main__":
    sys.exit(main())
