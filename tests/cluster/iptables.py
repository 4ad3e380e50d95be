"""Which iptables rules are the cluster's, and the script for iptables-restore that removes exactly those.

kube-proxy and the kubelet make chains of known names; the CNI bridge makes one chain a pod, whose rules carry the
network's name in a comment. Everything else, and its counters, stays as it is.
"""

import re
import subprocess
from collections.abc import Callable

COMMANDS = ("iptables", "ip6tables")
_KUBE_CHAIN = re.compile(
    r"KUBE-(SERVICES|EXTERNAL-SERVICES|NODEPORTS|POSTROUTING|MARK-MASQ|MARK-DROP|FORWARD|FIREWALL|PROXY-FIREWALL"
    r"|PROXY-CANARY|KUBELET-CANARY|IPTABLES-HINT|LOAD-BALANCER|IPVS-FILTER|IPVS-OUT-FILTER|(SVC|SVL|SEP|EXT|FW|XLB)-[A-Z0-9]{16})"
)
_CNI_CHAIN = re.compile(r"CNI-[0-9a-f]{24}")


Own = Callable[[list[str]], list[str]]
"""From the lines of one table in an iptables-save, the chains that are ours."""


def of_cluster(network: str) -> Own:
    """Chains of kubelet and kube-proxy, and those that name the CNI network `network`."""
    return lambda lines: _own_chains(lines, network)


def named(pattern: re.Pattern[str]) -> Own:
    """Chains whose whole name is like `pattern`."""
    return lambda lines: [chain for chain in _chains(lines) if pattern.fullmatch(chain)]


def removal_script(dump: str, own: Own) -> str:
    """The input for `iptables-restore --noflush` that undoes our part of `dump` (an iptables-save).

    Empty when nothing in `dump` is ours.
    """
    tables = [_table_script(table, lines, own(lines)) for table, lines in _tables(dump)]
    return "".join(script for script in tables if script)


def chains_of_others(dump: str, network: str) -> list[str]:
    """The chains of kube-proxy and kubelet in an iptables-save, unless `network` shows that they are ours. Pure.

    Their names are the same in every cluster; ours has pods, of which each has a chain that names the CNI network.
    """
    lines = [line for _, table in _tables(dump) for line in table]
    own = _own_chains(lines, network)
    return [] if any(_CNI_CHAIN.fullmatch(chain) for chain in own) else own


def _tables(dump: str) -> list[tuple[str, list[str]]]:
    tables: list[tuple[str, list[str]]] = []
    for line in dump.splitlines():
        if line.startswith("*"):
            tables.append((line[1:], []))
        elif tables and line and not line.startswith("#") and line != "COMMIT":
            tables[-1][1].append(line)
    return tables


def _table_script(table: str, lines: list[str], ours: list[str]) -> str:
    if not ours:
        return ""
    jumps = [line for line in lines if _chain_of(line) not in ours and _target_of(line) in ours]
    script = [
        f"*{table}",
        *("-D" + line.removeprefix("-A") for line in jumps),
        *(f"-F {chain}" for chain in ours),
        *(f"-X {chain}" for chain in ours),
        "COMMIT",
    ]
    return "\n".join(script) + "\n"


def _own_chains(lines: list[str], network: str) -> list[str]:
    marked = {
        name
        for line in lines
        if f'name: \\"{network}\\"' in line
        for name in (_chain_of(line), _target_of(line))
        if name is not None and _CNI_CHAIN.fullmatch(name)
    }
    return [chain for chain in _chains(lines) if _KUBE_CHAIN.fullmatch(chain) or chain in marked]


def _chains(lines: list[str]) -> list[str]:
    return [line[1:].split()[0] for line in lines if line.startswith(":")]


def _chain_of(line: str) -> str | None:
    match = re.match(r"-A (\S+)", line)
    return match[1] if match else None


def _target_of(line: str) -> str | None:
    match = re.search(r" -[jg] (\S+)", line)
    return match[1] if match else None


def remove(own: Own) -> None:
    """Takes our chains out of the IPv4 and IPv6 tables of this machine.

    Raises:
        RuntimeError: iptables refused.
    """
    for command in COMMANDS:
        script = _script_for(command, own)
        if script:
            restored = subprocess.run(
                [f"{command}-restore", "--noflush", "--wait", "5"],
                input=script,
                capture_output=True,
                text=True,
                check=False,
            )
            if restored.returncode != 0:
                raise RuntimeError(f"{command}-restore: {restored.stderr.strip()}")


def with_traces(own: Own) -> list[str]:
    """Those of COMMANDS whose tables have chains of ours."""
    return [command for command in COMMANDS if _script_for(command, own)]


def foreign_chains(network: str) -> list[str]:
    """The Kubernetes chains of this machine when nothing shows that they are the cluster's."""
    return [chain for command in COMMANDS for chain in chains_of_others(_saved(command), network)]


def _script_for(command: str, own: Own) -> str:
    return removal_script(_saved(command), own)


def _saved(command: str) -> str:
    saved = subprocess.run([f"{command}-save"], capture_output=True, text=True, check=False)
    return saved.stdout if saved.returncode == 0 else ""
