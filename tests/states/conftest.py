"""What tests of states share: Kernel's engine, and what is flushed to the disk."""

from __future__ import annotations

import os

import pytest
from pyspark.sql import SparkSession

from trident.states.delta.kernel import KernelEngine


@pytest.fixture(scope="session")
def engine(spark: SparkSession) -> KernelEngine:
    return KernelEngine(spark)


@pytest.fixture
def flushed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Paths of the files and folders that are flushed, in order."""
    paths: list[str] = []
    fsync = os.fsync

    def recorded(handle: int) -> None:
        paths.append(os.readlink(f"/proc/self/fd/{handle}"))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", recorded)
    return paths
