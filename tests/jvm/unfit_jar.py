"""The jar as a Spark of another version finds it: each call ends in the JVM's own NoSuchMethodError."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

import pytest
from pyspark.sql import SparkSession

from trident.states.core import spark_jobs


class Unfit:
    """In the place of a class in the jar, which lacks each method but ``has``."""

    def __init__(self, spark: SparkSession, *has: str) -> None:
        jvm: Any = spark._jvm
        self._future, self._has = jvm.java.util.concurrent.CompletableFuture, has
        self._error = jvm.java.lang.NoSuchMethodError("org.apache.spark.sql.classic.Dataset.ofRows")

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name in self._has:
            return lambda *_: None
        return lambda *_: self._future.failedFuture(self._error).join()


@contextmanager
def unfit_jar(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Within it a call of the jar is to fail, once, and the log to say so; other tests find the jar as it was."""
    with monkeypatch.context() as patched:
        patched.setattr(spark_jobs, "_unfit", WeakSet())
        yield
    assert caplog.text.count("the jar of kept plans does not fit") == 1
