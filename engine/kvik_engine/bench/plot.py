"""The latencies of a run as a picture: one panel each, how much of the run was as fast as that or faster. Plain SVG.

A curve ascends from the fastest value on the left to the slowest on the right. Each panel's scale is its own, from 0 to
a little more than its largest value or bound. Bounds of goodput are dashed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final
from xml.sax.saxutils import escape

from kvik_engine.bench.figures import Latencies, Result, Slo, answered, percentile

WIDTH, HEIGHT = 240, 190
"""Of a panel, in pixels."""
LEFT, TOP, RIGHT, BOTTOM = 46, 24, 14, 30
"""Free around its plot."""
TITLE: Final = 26
ROOM: Final = 1.08
"""How much larger than the largest value a scale is."""
POINTS: Final = 100
"""Of a curve at most, with its two ends: as many as its pixels can show."""
MARKED: Final = (0.5, 0.9, 0.99)


def picture(title: str, results: Sequence[Result], slo: Slo) -> str:
    """The SVG document. A latency that no request had has an empty panel."""
    values = Latencies.of(answered(results))
    panels = (("TTFT", values.ttft, slo.ttft), ("TPOT", values.tpot, slo.tpot), ("ITL", values.itl, None))
    drawn = [*panels, ("E2E", values.e2e, None)]
    width, height = len(drawn) * WIDTH, TITLE + HEIGHT
    size = f'width="{width}" height="{height}"'
    box = f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="10"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} {box}>',
            f'<rect {size} fill="white"/>',
            f'<text x="12" y="17" font-size="12">{escape(title)}</text>',
            *(part for place, panel in enumerate(drawn) for part in _panel(place, *panel)),
            "</svg>\n",
        ]
    )


def _panel(place: int, name: str, seconds: Sequence[float], bound: float | None) -> Iterator[str]:
    wide, high = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    yield f'<g transform="translate({place * WIDTH + LEFT} {TITLE + TOP})">'
    yield f'<text x="0" y="-8" font-weight="bold">{name}</text>'
    yield f'<path d="M0 0V{high}H{wide}" fill="none" stroke="#999"/>'
    yield f'<text x="{wide}" y="{high + 14}" text-anchor="end" fill="#555">per cent of {len(seconds)}</text>'
    ordered = sorted(seconds)
    if ordered:
        top = ROOM * max(ordered[-1], bound or 0.0) or 1.0
        yield f'<text x="-4" y="8" text-anchor="end" fill="#555">{1000 * top:.3g} ms</text>'
        if bound is not None:
            y = f"{high * (1 - bound / top):.1f}"
            yield f'<path d="M0 {y}H{wide}" stroke="#c1121f" stroke-dasharray="4 3"/>'
        count = min(POINTS, len(ordered))
        places = [number / (count - 1) for number in range(count)] if count > 1 else [0.0, 1.0]
        curve = " ".join(_at(share, percentile(ordered, share) / top, wide, high) for share in places)
        yield f'<polyline points="{curve}" fill="none" stroke="#4361ee" stroke-width="1.5"/>'
        for share in MARKED:
            value = percentile(ordered, share)
            x, y = _at(share, value / top, wide, high).split(",")
            said = f"P{100 * share:.0f}: {1000 * value:.1f} ms"
            yield f'<circle cx="{x}" cy="{y}" r="3" fill="#4361ee"><title>{escape(said)}</title></circle>'
    yield "</g>"


def _at(share: float, height: float, wide: float, high: float) -> str:
    return f"{wide * share:.1f},{high * (1 - height):.1f}"
