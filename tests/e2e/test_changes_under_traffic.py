"""Rows of the scoreboard as tests: no change or deletion fails a request, and none touches a pod without need.

What they leave out is how fast the machine was. They come first in this folder: they install a release of their own,
and take it away.
"""

import os
from collections.abc import Iterator

import pytest

from bench.scoreboard import deletion, nodes, under_traffic
from bench.scoreboard.installation import Installation
from bench.scoreboard.row import Row

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.long,
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.environ.get("CLUSTER", "local") != "local", reason="changes all of a cluster, and its nodes"),
]

CHANGES = [*under_traffic.ROWS, *nodes.UNDER_TRAFFIC]


@pytest.fixture(scope="module")
def installation() -> Iterator[Installation]:
    installation = Installation.up()
    yield installation
    installation.down()


@pytest.mark.parametrize("row", CHANGES, ids=lambda row: row.id)
def test_a_change_fails_no_request(row: Row, installation: Installation) -> None:
    """dynamo #13559: streams were cut five seconds after SIGTERM, and their clients saw a 500."""
    seen = row.measure(installation)

    assert seen.ok or seen.only_slow, seen.reason


@pytest.mark.parametrize("row", deletion.ROWS, ids=lambda row: row.id)
def test_what_is_deleted_goes_and_its_streams_end_first(row: Row, installation: Installation) -> None:
    """VictoriaMetrics #2726, opensearch #976: a finalizer or a webhook outlived its operator, and nothing could go."""
    seen = row.measure(installation)

    assert seen.ok or seen.only_slow, seen.reason
