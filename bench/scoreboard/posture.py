"""Row 24: what the API server itself says of the pods that run, and of pools that mean harm."""

import json
import subprocess

from bench.scoreboard.installation import Installation
from bench.scoreboard.row import Outcome, Row
from tests.support.hostile_pools import HOSTILE, SOURCE, Hostile
from tests.support.kubectl import KubectlError

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


def _hostile(installation: Installation) -> Outcome:
    """Those that the API server has to refuse; the others are held by the operator or harmless (tests/faults)."""
    to_refuse = {name: hostile for name, hostile in HOSTILE.items() if hostile.refused is not None}
    answers = {name: _refusal(installation, hostile) for name, hostile in to_refuse.items()}
    admitted = [name for name, answer in answers.items() if answer is None]
    unnamed = [name for name, answer in answers.items() if answer and str(to_refuse[name].refused) not in answer]
    reasons = [f"admitted: {', '.join(admitted)}"] if admitted else []
    reasons += [f"refused without the field's name: {', '.join(unnamed)}"] if unnamed else []
    figures: dict[str, float] = {
        "pools tried": len(to_refuse),
        "refused with the field's name": len(to_refuse) - len(unnamed + admitted),
    }
    return Outcome(len(admitted), not reasons, "; ".join(reasons) or None, figures)


def _refusal(installation: Installation, hostile: Hostile) -> str | None:
    """The API server's words; None: it would take the pool."""
    body = {
        "apiVersion": "kvik.dev/v1alpha1",
        "kind": "InferencePool",
        "metadata": {"name": "hostile", **hostile.metadata},
        "spec": {"model": {"source": SOURCE}, "resources": {"device": "CPU"}, **hostile.spec},
    }
    command = ["create", "--dry-run=server", "--validate=strict", "--filename=-"]
    try:
        installation.pools.run(*command, stdin=json.dumps(body))
    except KubectlError as error:
        return str(error)
    return None


ROWS: tuple[Row, ...] = (
    Row(
        id="24a",
        what="Operator and engine pods satisfy the pod security standard `restricted`",
        unit="violations",
        wanted="0",
        how="the namespaces' label `enforce=restricted` tried on the pods that run, by the API server",
        measure=_restricted,
    ),
    Row(
        id="24b",
        what="Pools that mean harm are refused by the API server",
        unit="admitted",
        wanted="0",
        how="`kubectl create --dry-run=server` of each pool in `tests/support/hostile_pools.py` that it must refuse",
        measure=_hostile,
    ),
)
