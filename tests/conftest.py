"""What every test tier shares: shards of a run."""

import hashlib

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shard", metavar="I/N", help="run every Nth test, picked by a hash of its name, I from 0")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves the tests of one shard; which shard a test is in depends on its name alone."""
    shard = config.getoption("--shard")
    if shard is None:
        return
    index, count = (int(part) for part in shard.split("/"))
    picked = [item for item in items if int(hashlib.sha256(item.nodeid.encode()).hexdigest(), 16) % count == index]
    config.hook.pytest_deselected(items=[item for item in items if item not in picked])
    items[:] = picked
