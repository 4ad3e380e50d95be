"""Row 24: what the API server itself says of the pods that run."""

import subprocess

from bench.scoreboard.installation import Installation
from bench.scoreboard.row import Outcome, Row

POOL = "posture"


def _restricted(installation: Installation) -> Outcome:
    """A namespace's label is tried on what runs in it, and each pod that violates the standard is a warning."""
    installation.ensure_pool(installation.pools, POOL, replicas=1)
    warnings, pods = [], 0
    for kubectl in (installation.system, installation.pools):
        pods += len(kubectl.list("pods"))
        label = "pod-security.kubernetes.io/enforce=restricted"
        kubectl.run("label", "namespace", kubectl.namespace, "pod-security.kubernetes.io/enforce-")
        try:
            tried = kubectl.command("label", "namespace", kubectl.namespace, label, "--dry-run=server")
            told = subprocess.run(tried, capture_output=True, text=True, timeout=60, check=True).stderr
            warnings += [one for one in told.splitlines() if one.startswith("Warning:")]
        finally:
            kubectl.run("label", "namespace", kubectl.namespace, label, "--overwrite")
    return Outcome(len(warnings), not warnings, "; ".join(warnings) or None, {"pods looked at": pods})


ROWS: tuple[Row, ...] = (
    Row(
        id="24a",
        what="Operator and engine pods satisfy the pod security standard `restricted`",
        unit="violations",
        wanted="0",
        how="the namespaces' label `enforce=restricted` tried on the pods that run, by the API server",
        measure=_restricted,
    ),
)
