"""Writes the last part of ARCHITECTURE.md, one line a file, from the files' own docstrings.

python3 scripts/architecture.py [--check]
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "ARCHITECTURE.md"
HEADING = "## Every file\n"
PACKAGES = ("engine/kvik_engine", "kernels/kvik_kernels", "kubectl/kvik_kubectl", "operator/kvik_operator")
FIRST_SENTENCE = re.compile(r"^(.+?[.!?])(?= [A-Z`]|$)")


def line_of(source: str) -> str:
    """The first sentence of a module's docstring; empty without one."""
    docstring = ast.get_docstring(ast.parse(source)) or ""
    paragraph = " ".join(docstring.split("\n\n")[0].split())
    match = FIRST_SENTENCE.match(paragraph)
    return match[1] if match else paragraph


def listing(package: Path) -> Iterator[str]:
    """One section a folder: the folder's own line, then its files."""
    for init in sorted(package.rglob("__init__.py")):
        folder = init.parent
        yield f"\n### {folder.relative_to(ROOT)}\n{line_of(init.read_text())}\n"
        for path in sorted(folder.glob("*.py")):
            if path != init:
                yield f"- `{path.name}`: {line_of(path.read_text())}"


def main() -> int:
    text = PAGE.read_text()
    kept, found, _ = text.partition(HEADING)
    if not found:
        raise SystemExit(f"{PAGE.name} lacks the heading {HEADING.strip()!r}")
    lines = [line for package in PACKAGES for line in listing(ROOT / package)]
    current = kept + HEADING + "\n".join(lines) + "\n"
    if current == text:
        return 0
    if "--check" in sys.argv:
        print(f"{PAGE.name} is not what the files' docstrings say: make fmt writes it anew")
        return 1
    PAGE.write_text(current)
    return 0


if __name__ == "__main__":
    sys.exit(main())
