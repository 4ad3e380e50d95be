"""How a run of test tiers ends."""

import subprocess
from typing import cast

from scripts.tiers import INTERRUPTED, finished


class Interrupted:
    """A tier whose runner gets two interrupts while its tests clean up after themselves."""

    def __init__(self) -> None:
        self.left = 2
        self.killed = False

    def wait(self) -> int:
        if self.left:
            self.left -= 1
            raise KeyboardInterrupt
        return INTERRUPTED

    def kill(self) -> None:
        self.killed = True


def test_an_interrupted_tier_is_left_to_take_away_what_its_tests_made() -> None:
    """`subprocess.run` kills its child a quarter of a second after Ctrl-C: namespaces and clusters stayed."""
    tier = Interrupted()
    assert finished(cast("subprocess.Popen[bytes]", tier)) == INTERRUPTED
    assert not tier.killed
