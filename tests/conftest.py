"""What the tests share: one ZooKeeper server and one Spark session a process."""

from __future__ import annotations

import random

import pytest

pytest_plugins = ["tests.zk_fixtures", "tests.spark_fixtures"]


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> random.Random:
    """A random generator whose seed is printed, and can be given again with TRIDENT_SEED."""
    import os

    seed = int(os.environ.get("TRIDENT_SEED") or random.randrange(2**32))
    print(f"seed of {request.node.name}: TRIDENT_SEED={seed}")
    return random.Random(seed)
