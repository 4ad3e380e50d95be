"""The certificates of a control plane, made with openssl: one authority, one serving pair, client pairs."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

DAYS = "365"
_CONFIG = """[req]
distinguished_name = subject
prompt = no
x509_extensions = extensions
[subject]
{subject}
[extensions]
{extensions}
"""


def write_pki(folder: Path, addresses: Sequence[str]) -> None:
    """Fills `folder` with ca, apiserver, admin, front-proxy and sa (the service accounts' signing key)."""
    if (folder / "complete").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    _authority(folder)
    names = [f"IP:{address}" for address in addresses] + ["DNS:localhost", "DNS:kubernetes.default.svc"]
    _pair(folder, "apiserver", "CN = kube-apiserver", "serverAuth", names)
    _pair(folder, "admin", "O = system:masters\nCN = admin", "clientAuth")
    _pair(folder, "front-proxy", "CN = front-proxy", "clientAuth")
    _openssl("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", str(folder / "sa.key"))
    _openssl("pkey", "-in", str(folder / "sa.key"), "-pubout", "-out", str(folder / "sa.pub"))
    (folder / "complete").touch()


def write_kubelet_pair(folder: Path, name: str, node: str, address: str) -> None:
    """The pair `name` for the kubelet of this node, as a client and as a server; `folder` has an authority."""
    if not (folder / f"{name}.crt").exists():
        identity = f"O = system:nodes\nCN = system:node:{node}"
        _pair(folder, name, identity, "serverAuth, clientAuth", [f"DNS:{node}", f"IP:{address}"])


def _authority(folder: Path) -> None:
    _certificate(folder, "ca", "CN = kvik-local-ca", ["basicConstraints = critical, CA:TRUE"], [])


def _pair(folder: Path, name: str, subject: str, usage: str, alternative_names: Sequence[str] = ()) -> None:
    extensions = ["basicConstraints = critical, CA:FALSE", f"extendedKeyUsage = {usage}"]
    if alternative_names:
        extensions.append("subjectAltName = " + ", ".join(alternative_names))
    _certificate(folder, name, subject, extensions, ["-CA", str(folder / "ca.crt"), "-CAkey", str(folder / "ca.key")])


def _certificate(folder: Path, name: str, subject: str, extensions: Sequence[str], signer: Sequence[str]) -> None:
    config = folder / f"{name}.cnf"
    config.write_text(_CONFIG.format(subject=subject, extensions="\n".join(extensions)))
    key, certificate = folder / f"{name}.key", folder / f"{name}.crt"
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    _openssl(
        *("req", "-x509", *curve, "-config", str(config), "-days", DAYS),
        *("-keyout", str(key), "-out", str(certificate), *signer),
    )


def _openssl(*arguments: str) -> None:
    done = subprocess.run(["openssl", *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"openssl {arguments[0]} failed: {done.stderr.strip()}")
