"""The picture of the comparison: every policy's dot lies where its figures put it, in the panel of its trace."""

from itertools import pairwise
from typing import Any
from xml.etree import ElementTree as ET

from bench.scaling.plot import BOTTOM, HEIGHT, LEFT, RIGHT, ROOM, TOP, WIDTH, picture

SVG = "{http://www.w3.org/2000/svg}"


def line(trace: str, policy: str, misses: int, hours: float) -> dict[str, Any]:
    return {"trace": trace, "policy": policy, "requests": 100, "slo_misses": misses, "pod_hours": hours}


LINES = [line("step", "kvik", 5, 2.0), line("step", "a < b", 20, 1.0), line("zero", "kvik", 0, 1.0)]


def panels(svg: str) -> dict[str, list[tuple[str, float, float]]]:
    """Trace to what each of its dots says, and where it lies."""
    found = {}
    for panel in ET.fromstring(svg).iter(f"{SVG}g"):
        dots = [
            (dot[0].text or "", float(dot.attrib["cx"]), float(dot.attrib["cy"])) for dot in panel.iter(f"{SVG}circle")
        ]
        found[panel[0].text or ""] = dots
    return found


def test_fewer_misses_lie_lower_and_fewer_hours_further_left() -> None:
    (other, ours), ((_, x, y),) = panels(picture(LINES)).values()
    wide, high = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    assert (other[0], ours[0]) == ("a < b: 20.0 %, 1.00 h", "kvik: 5.0 %, 2.00 h")
    assert ours[1] == round(wide / ROOM, 1)
    assert other[1] == round(wide / ROOM / 2, 1)
    assert ours[2] > other[2] > 0
    assert (x, y) == (round(wide / ROOM, 1), high)


def test_panels_stand_beside_each_other_without_touching() -> None:
    lines = [line(f"trace {number}", "kvik", number, 1.0) for number in range(7)]
    svg = ET.fromstring(picture(lines))
    places = [group.attrib["transform"] for group in svg.iter(f"{SVG}g")]
    assert len(set(places)) == 7
    xs = [float(place.partition("(")[2].split()[0]) for place in places]
    assert all(right - left >= WIDTH for left, right in pairwise(xs[:5]))
    assert xs[5] == xs[0]


def test_a_policy_has_one_colour_in_all_panels() -> None:
    dots = list(ET.fromstring(picture(LINES)).iter(f"{SVG}circle"))
    assert len({dot.attrib["fill"] for dot in dots}) == 2
