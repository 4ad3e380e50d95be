"""The chart's rule file, and the alerts in it by name."""

from pathlib import Path
from typing import Any

import yaml

RULES = Path(__file__).resolve().parents[2] / "charts" / "kvik" / "rules" / "kvik.rules.yaml"


def alerts() -> dict[str, dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"] if "alert" in rule}
