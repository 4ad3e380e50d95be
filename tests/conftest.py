"""What every test tier shares: shards of a run, how hypothesis draws, how torch's threads wait."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

from tests.support.noted_failures import NotedFailures
from tests.support.shards import in_shard

# The same examples on every machine, however slow it is: a run that turns red was turned red by a change.
settings.register_profile("kvik", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("kvik")
# Hypothesis also draws constants that it finds in those of our modules that are loaded by then. They are other ones in
# every worker and order of tests, after a change of any literal anywhere, and none where the path has a folder `tests`.
providers._get_local_constants = providers.Constants

# As `launch` has it: threads that spin while they wait starve the tests and engines beside them. Before torch is there.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shard", metavar="I/N", help="run every Nth test, picked by a hash of its name, I from 0")
    parser.addoption("--note-failures", metavar="FILE", help="add the name of each test that fails, as soon as it does")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Notes failures where asked to. With workers, in the process that hears of all of them."""
    noted = config.getoption("--note-failures")
    if noted is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(NotedFailures(Path(noted)))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves the tests of one shard, if one was asked for."""
    shard = config.getoption("--shard")
    if shard is None:
        return
    config.hook.pytest_deselected(items=[item for item in items if not in_shard(item.nodeid, shard)])
    items[:] = [item for item in items if in_shard(item.nodeid, shard)]
