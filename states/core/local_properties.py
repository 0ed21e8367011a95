"""Properties of the Spark jobs that a thread starts while a block runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark import SparkContext


@contextmanager
def local_properties(context: "SparkContext", values: Mapping[str, str]) -> Iterator[None]:
    """Sets them for this thread, and puts back what was set before."""
    before = {key: context.getLocalProperty(key) for key in values}
    properties: Any = context  # by its types PySpark takes no None, which removes a property
    try:
        for key, value in values.items():
            properties.setLocalProperty(key, value)
        yield
    finally:
        for key, earlier in before.items():
            properties.setLocalProperty(key, earlier)
