"""python3 -m tests.cluster up | down | load IMAGE ... | paths"""

import argparse
import fcntl
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests.cluster import build
from tests.cluster.down import down
from tests.cluster.load_image import Loader
from tests.cluster.paths import cache_root, local_cluster
from tests.cluster.up import up


def main() -> int:
    parser = argparse.ArgumentParser(prog="cluster", description="The local Kubernetes cluster of this machine.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("up", help="start it, or find it running")
    commands.add_parser("down", help="stop it and remove all its traces")
    commands.add_parser("build", help="build its programs only, and print their folder")
    commands.add_parser("load", help="give it images of buildah's store").add_argument("image", nargs="+")
    arguments = parser.parse_args()
    folder = local_cluster()
    try:
        with _one_at_a_time():
            match arguments.command:
                case "up":
                    up(folder)
                    print(f"export KUBECONFIG={folder.kubeconfig}")
                case "down":
                    down(folder)
                    print("cluster: down")
                case "build":
                    print(build.programs().folder)
                case "load":
                    for image in arguments.image:
                        Loader(folder).load(image)
    except (RuntimeError, TimeoutError, LookupError) as error:
        print(f"cluster: {error}", file=sys.stderr)
        return 1
    return 0


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Two `up`s at once would clean each other away."""
    cache_root().mkdir(parents=True, exist_ok=True)
    with (cache_root() / "cluster.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    sys.exit(main())
