"""python3 -m tests.cluster up [--nodes N] | down | env | found | load IMAGE ... | tools | programs

Standard output holds only what a shell can evaluate; progress goes to standard error.
"""

import argparse
import fcntl
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests.cluster import build, target
from tests.cluster.paths import cache_root


def main() -> int:
    arguments = _parser().parse_args()
    try:
        if arguments.command == "tools":
            _print_shell(KUBECTL=build.programs(build.CLIENTS).kubectl, HELM=build.programs(build.CLIENTS).helm)
            return 0
        if arguments.command == "programs":
            build.programs()
            return 0
        with _one_at_a_time():
            _run(arguments)
    except (RuntimeError, TimeoutError, LookupError) as error:
        print(f"cluster: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="cluster", description="The cluster that CLUSTER names: local, kind, existing."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up", help="start it, or find it running; prints the lines for KUBECONFIG and PATH")
    up.add_argument("--nodes", type=int, help="how many it is to have, 1 or 2 (CLUSTER=local); else as many as now")
    commands.add_parser("env", help="like up, but prints KUBECONFIG, KUBECTL, HELM and IMAGE_PREFIX for a shell")
    commands.add_parser("found", help="like env, but starts nothing: prints nothing where the cluster is not up")
    commands.add_parser("down", help="stop it and remove all its traces")
    commands.add_parser("load", help="give it images that were built here").add_argument("image", nargs="+")
    commands.add_parser("programs", help="build all of the local cluster's programs, and start none")
    commands.add_parser("tools", help="build kubectl and helm only, and print KUBECTL and HELM")
    return parser


def _run(arguments: argparse.Namespace) -> None:
    cluster = target.from_environment()
    match arguments.command:
        case "up":
            up = cluster.up(arguments.nodes)
            _print_shell(KUBECONFIG=up.kubeconfig)
            print(f"export PATH={shlex.quote(str(up.kubectl.parent))}:$PATH    # kubectl and helm of this cluster")
        case "env":
            _print_access(cluster.up())
        case "found":
            access = cluster.access()
            if access is not None:
                _print_access(access)
        case "down":
            cluster.down()
            print("cluster: down", file=sys.stderr)
        case "load":
            for image in arguments.image:
                cluster.load(image)


def _print_access(access: target.Access) -> None:
    _print_shell(
        KUBECONFIG=access.kubeconfig, KUBECTL=access.kubectl, HELM=access.helm, IMAGE_PREFIX=access.image_prefix
    )


def _print_shell(**values: object) -> None:
    for name, value in values.items():
        print(f"export {name}={shlex.quote(str(value))}", flush=True)


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Two `up`s at once would clean each other away."""
    cache_root().mkdir(parents=True, exist_ok=True)
    with (cache_root() / "cluster.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("cluster: waiting for another command on this cluster ...", file=sys.stderr, flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    sys.exit(main())
