"""TCP ports for programs that are told where to listen: nobody uses them, and nobody else gets them before they do.

The kernel's own choice, once closed again, may go to the next client, or to the test that runs beside this one. These
are below its range and below that of NodePorts, and each process goes through them from a place of its own.
"""

import itertools
import random
import socket

FIRST, END = 15_000, 30_000
_turns = itertools.count(random.SystemRandom().randrange(END - FIRST))


def free_ports(address: str, count: int) -> list[int]:
    """So many ports, all different, that can be listened on at `address`. Raises OSError if there are none."""
    found: list[int] = []
    for turn in itertools.islice(_turns, END - FIRST):
        if len(found) == count:
            return found
        port = FIRST + turn % (END - FIRST)
        if _is_free(address, port):
            found.append(port)
    raise OSError(f"no {count} ports from {FIRST} to {END - 1} are free at {address}")


def _is_free(address: str, port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((address, port))
        except OSError:
            return False
    return True
