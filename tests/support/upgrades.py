"""Upgrades of operator, charts and API: the charts as a later version would have them, and what must stay as it is."""

import shutil
from pathlib import Path

import yaml

from tests.support.kubectl import Kubectl

CHARTS = Path(__file__).resolve().parents[2] / "charts"
NEW_FIELD = "fieldOfTheNextVersion"


def write_next_charts(folder: Path) -> Path:
    """Copies of both charts into `folder`: another version, and one more field in the API, which has a default."""
    for name in ("kvik", "kvik-crds"):
        shutil.copytree(CHARTS / name, folder / name)
        chart = folder / name / "Chart.yaml"
        about = yaml.safe_load(chart.read_text())
        chart.write_text(yaml.safe_dump({**about, "version": "0.1.99"}))
    path = folder / "kvik-crds/templates/inferencepools.kvik.dev.yaml"
    crd = yaml.safe_load(path.read_text())
    spec = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    spec["properties"][NEW_FIELD] = {"type": "string", "default": "new", "description": "Of the next version."}
    path.write_text(yaml.safe_dump(crd, width=1_000_000))
    return folder


def identity(kubectl: Kubectl, pool: str) -> dict[str, tuple[str, int | None]]:
    """Of a pool's pods and Deployment: the uid, and the restarts of each pod or the Deployment's generation."""
    seen: dict[str, tuple[str, int | None]] = {}
    for item in kubectl.list("pods,deployments", f"kvik.dev/pool={pool}"):
        metadata, statuses = item["metadata"], item["status"].get("containerStatuses", [])
        number = sum(one["restartCount"] for one in statuses) if item["kind"] == "Pod" else metadata.get("generation")
        seen[f"{item['kind']}/{metadata['name']}"] = (metadata["uid"], number)
    return seen
