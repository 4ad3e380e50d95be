"""What was measured of the real engine, in the file that the simulated pod is made from.

`python -m bench.scaling.calibrate` measures and writes it; a page that is made from it names the machine.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

FILE: Final = Path(__file__).resolve().parents[1] / "results/pod_calibration.json"


@dataclass(frozen=True, slots=True)
class Calibration:
    """The embedded model in one thread of one machine."""

    machine: str
    """Processor, how many, Python."""
    load_average: float
    """Of the minute before: other work on the machine."""
    prefill_tokens_per_second: float
    """Of a prompt alone."""
    step_seconds: float
    """Of a step that decodes, without its rows."""
    row_seconds: float
    """What each decoding row adds to a step."""


def read(file: Path = FILE) -> Calibration:
    return Calibration(**json.loads(file.read_text()))


def write(calibration: Calibration, file: Path = FILE) -> None:
    file.write_text(json.dumps(asdict(calibration), indent=2) + "\n")
