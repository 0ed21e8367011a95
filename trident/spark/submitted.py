"""A JVM that ``spark-submit`` has started before this process: its settings, and our jars on its class path."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

from pyspark import SparkConf, SparkContext

_GATEWAY = "PYSPARK_GATEWAY_PORT"
# They count when a JVM starts, and not later.
_OF_THE_START = ("spark.driver.memory", "spark.driver.extraJavaOptions", "spark.driver.extraClassPath")


def is_submitted() -> bool:
    """Tells whether ``spark-submit`` runs this process (its client mode, or a cluster mode that has Python)."""
    return _GATEWAY in os.environ


def submitted_settings() -> dict[str, str]:
    """The settings that ``spark-submit`` was given, those of its files among them; none where it did not start this."""
    if not is_submitted():
        return {}
    SparkContext._ensure_initialized()
    return dict(SparkConf().getAll())


def add_jars(jars: Iterable[str]) -> None:
    """Puts jars on the class path of the running JVM, as ``--jars`` does: before the session is made."""
    SparkContext._ensure_initialized()
    jvm: Any = SparkContext._jvm
    # Spark's own loader, which takes more while it runs; all threads that serve Python have it.
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    known = {url.toString() for url in loader.getURLs()}
    for jar in jars:
        if "://" in jar and not jar.startswith("file:"):
            continue  # of the user's, which spark-submit has fetched
        url = jvm.java.io.File(jar.removeprefix("file:")).toURI().toURL()
        if url.toString() not in known:
            loader.addURL(url)


def warn_of_what_came_too_late(asked: Mapping[str, str], submitted: Mapping[str, str]) -> None:
    """Warns of settings of the topology's that had to be there when ``spark-submit`` started the JVM."""
    late = [key for key in _OF_THE_START if key in asked and asked[key] != submitted.get(key)]
    if late:
        warnings.warn(
            f"spark-submit has started Spark's JVM before it knew {', '.join(late)}: they do not count; give them to "
            "spark-submit with --conf",
            stacklevel=4,
        )
