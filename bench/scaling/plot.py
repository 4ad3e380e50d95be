"""The comparison as a picture: for each trace, misses against pod hours, one dot a policy. Plain SVG.

Down and to the left is better. Each panel has scales of its own, from 0 to a little more than its largest figure.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from xml.sax.saxutils import escape

Line = Mapping[str, Any]

COLUMNS: Final = 5
WIDTH, HEIGHT = 200, 150
"""Of a panel, in pixels."""
LEFT, TOP, RIGHT, BOTTOM = 34, 24, 12, 26
"""Free around its plot."""
LEGEND: Final = 44
ROOM: Final = 1.08
"""How much larger than the largest figure a scale is."""
COLOURS: Final = ("#c1121f", "#4361ee", "#2a9d8f", "#8d99ae", "#e09f3e", "#7b2cbf", "#6c584c", "#00b4d8", "#588157")


def picture(lines: Sequence[Line]) -> str:
    """The SVG document. Policies have their colours in the order in which they come first."""
    traces: dict[str, list[Line]] = {}
    for line in lines:
        traces.setdefault(line["trace"], []).append(line)
    colours = dict(zip(dict.fromkeys(line["policy"] for line in lines), COLOURS, strict=False))
    width = COLUMNS * WIDTH
    height = LEGEND + -(-len(traces) // COLUMNS) * HEIGHT
    size = f'width="{width}" height="{height}"'
    box = f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="10"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} {box}>',
            f'<rect {size} fill="white"/>',
            *_legend(colours),
            *(part for place, trace in enumerate(traces.values()) for part in _panel(place, trace, colours)),
            "</svg>\n",
        ]
    )


def _legend(colours: Mapping[str, str]) -> Iterator[str]:
    for place, (policy, colour) in enumerate(colours.items()):
        x = 12 + place * 108
        yield f'<circle cx="{x}" cy="14" r="4" fill="{colour}"/><text x="{x + 8}" y="17">{escape(policy)}</text>'
    yield '<text x="12" y="36" fill="#555">across: pod hours; up: requests that missed, in per cent</text>'


def _panel(place: int, trace: Sequence[Line], colours: Mapping[str, str]) -> Iterator[str]:
    x, y = (place % COLUMNS) * WIDTH, LEGEND + (place // COLUMNS) * HEIGHT
    wide, high = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    hours = ROOM * max(line["pod_hours"] for line in trace)
    missed = ROOM * max(_missed(line) for line in trace) or 1.0
    yield f'<g transform="translate({x + LEFT} {y + TOP})">'
    yield f'<text x="0" y="-8" font-weight="bold">{escape(trace[0]["trace"])}</text>'
    yield f'<path d="M0 0V{high}H{wide}" fill="none" stroke="#999"/>'
    yield f'<text x="-4" y="8" text-anchor="end" fill="#555">{missed:.0f} %</text>'
    yield f'<text x="{wide}" y="{high + 12}" text-anchor="end" fill="#555">{hours:.1f} h</text>'
    for line in reversed(trace):  # ours comes first, and lies on top
        cx, cy = wide * line["pod_hours"] / hours, high * (1 - _missed(line) / missed)
        said = f"{line['policy']}: {_missed(line):.1f} %, {line['pod_hours']:.2f} h"
        dot = f'<circle cx="{cx:.1f}" cy="{cy:.1f}" r="4" fill="{colours[line["policy"]]}">'
        yield f"{dot}<title>{escape(said)}</title></circle>"
    yield "</g>"


def _missed(line: Line) -> float:
    """In per cent."""
    return float(100 * line["slo_misses"] / line["requests"])
