"""From the results' lines to the page of reliability."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "bench/results/scoreboard.jsonl"
PAGE = ROOT / "docs/reliability.md"

ABOUT = """
What Kvik promises of changes, tried on a real Kubernetes of one node on one machine, and of two nodes on it where a row
says so. `make scoreboard` writes a line for each row into `bench/results/scoreboard.jsonl`, and this page from them;
`python -m bench.scoreboard --only 7a` tries one.
A row that fails is shown as failed, with the reason; what is not shown has no result yet.
"""
HOW = """
Requests come from pods of the same cluster, through the pool's Service: each client keeps its connection, streams one
answer after the other and never tries again. A request has failed unless its stream ends with a `finish_reason` and
`[DONE]`. Engines are stand-ins that follow the same contract ([contract.md](contract.md)) and take little of the
machine, but for the rows that name the real one. With stand-ins, four clients of rows 7 and 20 stream for six seconds
each besides, so that some streams are open on every pod at any moment, also when it gets its SIGTERM. A load above the
number of CPUs means that other work was done on the machine: a row that fails there may hold elsewhere, and one that
holds did so in spite of it.
"""
NOT_MEASURED = """
## Not measured

- Nodes on machines of their own: the second one is a kubelet and a containerd with a network of their own.
- GPUs, and the real engine but for the rows that name it.
- Rows of the scoreboard that have no line above: `python -m bench.scoreboard --help` lists all.
- Ingress controllers and load balancers between client and Service.
- Upgrades from published versions: there is none yet. Rows 20 upgrade to copies of this version.
"""


def page(lines: Sequence[dict[str, Any]]) -> str:
    """The whole page: a table of all rows, then each with how it was tried."""
    return "\n".join(
        [*_head(lines), *(text for line in lines for text in _section(line)), *NOT_MEASURED.splitlines()[1:], ""]
    )


def _head(lines: Sequence[dict[str, Any]]) -> Iterator[str]:
    yield "# Reliability, tried"
    yield from (*ABOUT.splitlines(), "")
    yield f"Made from {_runs(lines)}. A + means that files differed from the commit. Later changes of the"
    yield "code are not in these figures."
    yield ""
    yield "| | Promise | Seen | Wanted | Kept |"
    yield "|---|---|---|---|---|"
    for line in lines:
        kept = "yes" if line["ok"] else "**no**"
        yield f"| {line['id']} | {line['what']} | {_seen(line)} | {line['wanted']} | {kept} |"
    yield from (*HOW.splitlines(), "")


def _runs(lines: Sequence[dict[str, Any]]) -> str:
    runs = sorted({(line["machine"]["date"], line["machine"]["commit"]) for line in lines})
    return "; ".join(f"commit {commit} on {date}" for date, commit in runs) or "no run"


def _section(line: dict[str, Any]) -> Iterator[str]:
    machine = line["machine"]
    yield f"## {line['id']}. {line['what']}"
    yield ""
    yield f"- Done: {line['how']}."
    yield f"- Seen: {_seen(line)}."
    if line["figures"]:
        yield f"- Besides: {'; '.join(f'{name} {_number(value)}' for name, value in line['figures'].items())}."
    if not line["ok"]:
        yield f"- **Not kept**: {line['reason']}."
    yield (
        f"- On {machine['cpu']}, {machine['cpus']} CPUs, load {machine['load']} before the row, version "
        f"{machine['version']}, commit {machine['commit']}, {machine['date']}."
    )
    yield ""


def _seen(line: dict[str, Any]) -> str:
    return "nothing" if line["value"] is None else f"{_number(line['value'])} {line['unit']}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
