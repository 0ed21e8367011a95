"""What the tests share: one ZooKeeper server and one Spark session a process."""

from __future__ import annotations

import gc
import random

import pytest
from hypothesis import HealthCheck, settings

from tests.jvm.jvm_options import start_quickly

start_quickly()
# No example fails because the machine is busy; one that fails prints how it is run again.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("tests")

pytest_plugins = [
    "tests.servers.zk_fixtures",
    "tests.jvm.spark_fixtures",
    "tests.topology_helpers",
    "tests.servers.redis_fixtures",
    "tests.servers.postgres_fixtures",
    "tests.servers.zk_security",
    "tests.servers.kafka_fixtures",
    "tests.watching.lineage_fixtures",
]


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> random.Random:
    """A random generator whose seed is printed, and can be given again with TRIDENT_SEED."""
    import os

    seed = int(os.environ.get("TRIDENT_SEED") or random.randrange(2**32))
    print(f"seed of {request.node.name}: TRIDENT_SEED={seed}")
    return random.Random(seed)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--share", default="1/1", help="K/N: every N-th test only, from the K-th on: tests/proof")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    share, shares = map(int, config.getoption("--share").split("/"))
    left = [item for number, item in enumerate(items) if number % shares != share - 1]
    items[:] = items[share - 1 :: shares]
    config.hook.pytest_deselected(items=left)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    """Gives caplog its format back: pytest adds it to loggers that do not propagate, and PySpark's make it JSON."""
    plugin = item.config.pluginmanager.get_plugin("logging-plugin")
    if plugin is not None:
        plugin.caplog_handler.setFormatter(plugin.formatter)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Modules and tests stay: the garbage collector looks at them no more, a quarter of the time of pure tests."""
    gc.freeze()


def pytest_terminal_summary(terminalreporter, exitstatus, config) -> None:
    """Says loudly what could not be tested here, and how much of it."""
    skipped = terminalreporter.stats.get("skipped", [])
    untested = [report for report in skipped if "NOT TESTED" in str(report.longrepr)]
    if untested:
        terminalreporter.write_sep("=", f"NOT TESTED HERE: {len(untested)} tests", red=True, bold=True)
        for reason in sorted({str(report.longrepr[-1]) for report in untested}):
            terminalreporter.write_line(reason)
