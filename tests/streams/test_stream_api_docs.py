"""Every line of the operation reference runs, and gives what the reference says."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

REFERENCE = Path(__file__).resolve().parents[2] / "docs" / "stream-api.md"


@pytest.mark.long
def test_the_operation_reference_is_true(spark: SparkSession) -> None:
    # Tracebacks are compared by their last line.
    failed, ran = doctest.testfile(str(REFERENCE), module_relative=False, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert failed == 0
    assert ran > 55
