"""The picture of a run: curves and marks lie where the latencies put them."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from kvik_engine.bench.figures import Answer, Failure, Result, Slo
from kvik_engine.bench.plot import BOTTOM, HEIGHT, LEFT, POINTS, RIGHT, ROOM, TOP, WIDTH, picture

SVG = "{http://www.w3.org/2000/svg}"
WIDE, HIGH = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM


def answers(*ttfts: float) -> list[Result]:
    return [Answer(0.0, ttft, ttft + 1.0, (0.5, 0.5), 3, 10) for ttft in ttfts]


def panels(svg: str) -> dict[str, ET.Element]:
    return {panel[0].text or "": panel for panel in ET.fromstring(svg).iter(f"{SVG}g")}


def curve(panel: ET.Element) -> list[tuple[float, ...]]:
    (line,) = panel.iter(f"{SVG}polyline")
    return [tuple(map(float, point.split(","))) for point in line.attrib["points"].split()]


def test_a_curve_ascends_from_the_fastest_request_to_the_slowest() -> None:
    points = curve(panels(picture("run", answers(4.0, 1.0, 2.0), Slo()))["TTFT"])
    heights = [round(HIGH * (1 - ttft / 4.0 / ROOM), 1) for ttft in (1.0, 2.0, 4.0)]
    assert points == list(zip((0.0, WIDE / 2, float(WIDE)), heights, strict=True))


def test_many_values_are_as_many_points_as_can_be_seen_and_keep_their_ends() -> None:
    points = curve(panels(picture("run", answers(*map(float, range(1, 1001))), Slo()))["TTFT"])
    assert len(points) == POINTS
    assert (points[0][1], points[-1][1]) == (round(HIGH * (1 - 0.001 / ROOM), 1), round(HIGH * (1 - 1 / ROOM), 1))


def test_marks_say_their_percentile() -> None:
    marks = panels(picture("run", answers(1.0, 2.0, 3.0), Slo()))["TTFT"].iter(f"{SVG}circle")
    assert [mark[0].text for mark in marks] == ["P50: 2000.0 ms", "P90: 2800.0 ms", "P99: 2980.0 ms"]


def test_a_bound_above_all_values_lies_inside_its_panel_and_nowhere_else() -> None:
    found = panels(picture("run", answers(1.0, 2.0), Slo(ttft=8.0)))
    dashed = {
        name: [path.attrib["d"] for path in panel.iter(f"{SVG}path") if "stroke-dasharray" in path.attrib]
        for name, panel in found.items()
    }
    assert dashed == {"TTFT": [f"M0 {HIGH * (1 - 1 / ROOM):.1f}H{WIDE}"], "TPOT": [], "ITL": [], "E2E": []}
    assert curve(found["TTFT"])[-1][1] == round(HIGH * (1 - 2 / (8 * ROOM)), 1)


def test_what_no_request_had_has_an_empty_panel() -> None:
    one_token = Answer(0.0, 1.0, 1.0, (), 1, 10)
    found = panels(picture("a < b", [one_token, Failure("timed out", "60 s", 0, 2)], Slo()))
    assert [name for name, panel in found.items() if panel.find(f"{SVG}polyline") is None] == ["TPOT", "ITL"]
    assert len(panels(picture("none", [Failure("timed out", "60 s", 0, 2)], Slo()))) == 4
