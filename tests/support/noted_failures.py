"""The names of tests that fail, in a file, for whoever may have to end the run before it says so itself."""

from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True, slots=True)
class NotedFailures:
    """A plugin of pytest. A name is noted before the test's clean-up begins, and again if that fails, too."""

    path: Path

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            with self.path.open("a") as file:
                file.write(f"{report.nodeid}\n")
