"""What tests of states share: Kernel's engine."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from trident.states.delta.kernel import KernelEngine


@pytest.fixture(scope="session")
def engine(spark: SparkSession) -> KernelEngine:
    return KernelEngine(spark)
