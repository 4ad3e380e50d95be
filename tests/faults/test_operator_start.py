"""The operator's first moments, without any API server: whoever ends it then need not wait for a kill."""

import json
import time
from pathlib import Path

import pytest

from tests.support.operator_process import OperatorProcess
from tests.support.operator_rig import eventually

NOWHERE = {
    "apiVersion": "v1",
    "kind": "Config",
    "current-context": "nowhere",
    "clusters": [{"name": "nowhere", "cluster": {"server": "http://127.0.0.1:1"}}],
    "users": [{"name": "nobody", "user": {}}],
    "contexts": [{"name": "nowhere", "context": {"cluster": "nowhere", "user": "nobody"}}],
}


@pytest.mark.parametrize("after", [0.0, 0.03, 0.06, 0.12, 0.24])
def test_a_sigterm_while_it_starts_ends_it_in_time(tmp_path: Path, after: float) -> None:
    """Its threads read the credentials one after the other; most of them wait for that when the signal comes."""
    kubeconfig, log = tmp_path / "kubeconfig", tmp_path / "log"
    kubeconfig.write_text(json.dumps(NOWHERE))
    with OperatorProcess(kubeconfig, log, lease_namespace="system", lease_name="operator") as operator:
        eventually("its first words", lambda: '"starting"' in log.read_text(), 30, operator.log_tail)
        time.sleep(after)
        assert operator.terminate() == 0
