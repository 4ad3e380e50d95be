"""What every test tier shares: shards of a run."""

import pytest

from tests.support.shards import in_shard


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shard", metavar="I/N", help="run every Nth test, picked by a hash of its name, I from 0")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves the tests of one shard, if one was asked for."""
    shard = config.getoption("--shard")
    if shard is None:
        return
    config.hook.pytest_deselected(items=[item for item in items if not in_shard(item.nodeid, shard)])
    items[:] = [item for item in items if in_shard(item.nodeid, shard)]
