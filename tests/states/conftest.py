"""What tests of states share: Kernel's engine, topologies over one warehouse, and no fault that a test leaves armed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.topology_helpers import Starter, starter
from trident.coordinators import faults
from trident.states.delta.kernel import KernelEngine


@pytest.fixture(scope="session")
def engine(spark: SparkSession) -> KernelEngine:
    return KernelEngine(spark)


@pytest.fixture
def start(spark: SparkSession, zk_server: str, zk_root: str, tmp_path: Path) -> Iterator[Starter]:
    with starter(spark, zk_server, zk_root, tmp_path) as made:
        yield made


@pytest.fixture(autouse=True)
def no_fault_left() -> Iterator[None]:
    yield
    faults.disarm()
