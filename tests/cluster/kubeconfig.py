"""A kubeconfig with embedded certificates."""

import base64
import json
from pathlib import Path


def write_kubeconfig(target: Path, server: str, pki: Path, user: str) -> None:
    """For the API server at `server` and the client pair `user` of `pki`. JSON, which every YAML reader reads."""

    def embedded(name: str) -> str:
        return base64.b64encode((pki / name).read_bytes()).decode()

    cluster = {"server": server, "certificate-authority-data": embedded("ca.crt")}
    client = {"client-certificate-data": embedded(f"{user}.crt"), "client-key-data": embedded(f"{user}.key")}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "kvik",
        "clusters": [{"name": "kvik", "cluster": cluster}],
        "users": [{"name": user, "user": client}],
        "contexts": [{"name": "kvik", "context": {"cluster": "kvik", "user": user}}],
    }
    target.touch(mode=0o600)
    target.write_text(json.dumps(config, indent=1) + "\n")
