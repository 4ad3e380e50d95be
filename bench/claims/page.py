"""From the results' lines to the page of claims."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "bench/results/claims.jsonl"
PAGE = ROOT / "docs/claims.md"


def page(lines: Sequence[dict[str, Any]]) -> str:
    """The whole page: a table of all claims, then each with how it was measured."""
    return "\n".join([*_head(lines), *(text for line in lines for text in _section(line))])


def _head(lines: Sequence[dict[str, Any]]) -> Iterator[str]:
    yield "# Claims, measured"
    yield ""
    yield "What Kvik says of itself, tried on the real engine with the embedded model (SmolLM2-135M-Instruct)."
    yield "`make claims` measures baseline and ours in the same run, writes a line each into"
    yield "`bench/results/claims.jsonl`, and this page from them; `python -m bench.claims --only 3` tries one."
    yield "A claim that does not hold is shown as failed, with the reason; what is not shown has no result yet."
    yield ""
    yield "| | Claim | Baseline | Ours | In | Ratio | Wanted | Holds |"
    yield "|---|---|---|---|---|---|---|---|"
    for line in lines:
        unit = line["unit"].partition(",")[0]
        yield (
            f"| {line['id']} | {line['what']} | {_number(line['baseline'])} | {_number(line['ours'])} | "
            f"{unit} | {_number(line['ratio'])} | {line['wanted']} | {'yes' if line['ok'] else '**no**'} |"
        )
    yield ""


def _section(line: dict[str, Any]) -> Iterator[str]:
    machine = line["machine"]
    yield f"## {line['id']}. {line['what']}"
    yield ""
    yield f"- Baseline: {line['baseline_is']}."
    yield f"- Measured: {line['unit']}; {line['clock']}."
    yield (
        f"- Requests at once: {line['concurrency']}. Prompt tokens: {line['prompt_tokens']}. "
        f"Output tokens: {line['output_tokens']}."
    )
    if line["figures"]:
        yield f"- Seen: {'; '.join(f'{name} {_number(value)}' for name, value in line['figures'].items())}."
    if not line["ok"]:
        yield f"- **Does not hold**: {line['reason']}."
    yield (
        f"- On {machine['cpu']}, {machine['cpus']} CPUs, load {machine['load']} before the run, {machine['dtype']}, "
        f"version {machine['version']}, {machine['date']}."
    )
    yield ""


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
