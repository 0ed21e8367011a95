"""The versions that have to fit: PySpark, the Spark whose JVM it starts, and Delta's jar in it."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pyspark
from pyspark.find_spark_home import _find_spark_home
from pyspark.sql import SparkSession

from trident.coordinators.errors import SparkSessionProblem
from trident.spark.jars import delta_package

_SPARK_JAR = re.compile(r"spark-core_[\d.]+-(.+)\.jar")
_DELTA_JAR = re.compile(r"delta-spark_([\d.]+)_[\d.]+-([^/]+)\.jar$")


def check_spark_home() -> None:
    """Looks, before a JVM starts, whether it would be of PySpark's version.

    Raises:
        SparkSessionProblem: it would not: ``SPARK_HOME`` names another Spark.
    """
    home = _find_spark_home()
    found = [match[1] for jar in Path(home, "jars").glob("spark-core_*.jar") if (match := _SPARK_JAR.match(jar.name))]
    if found and _numbers(pyspark.__version__) not in map(_numbers, found):
        raise _other_spark(found[0], f"in {home}" + (" (SPARK_HOME)" if os.environ.get("SPARK_HOME") else ""))


def check_versions(spark: SparkSession) -> None:
    """Looks whether a session's JVM is of PySpark's version, and its jar of Delta is for both.

    Raises:
        SparkSessionProblem: they do not fit; the message names the pair.
    """
    if _numbers(spark.version) != _numbers(pyspark.__version__):
        home = os.environ.get("SPARK_HOME")
        raise _other_spark(spark.version, f"SPARK_HOME={home}" if home else "the session's JVM")
    name = delta_package()
    wanted = _DELTA_JAR.search(name.split(":", 1)[1].replace(":", "-") + ".jar")
    found = _DELTA_JAR.search(_jar_of_delta(spark))
    if found and wanted and found.groups() != wanted.groups():
        raise SparkSessionProblem(
            "the session's jar of Delta is of another version than this framework uses",
            found=f"delta-spark {found[2]} for Spark {found[1]} ({found[0]}), beside PySpark {pyspark.__version__}",
            expected=name,
            action="take the other out of spark.jars, spark.jars.packages and the folder jars of Spark; "
            "trident.configure_spark(builder) adds the one that fits",
        )


def _numbers(version: str) -> str:
    """The numbers alone: a platform's own build has something behind them, 4.2.0-amzn-1."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    return found[0].rstrip(".") if found else version


def _other_spark(found: str, where: str) -> SparkSessionProblem:
    return SparkSessionProblem(
        "Spark's JVM and PySpark are of two versions",
        found=f"Spark {found} ({where}) and PySpark {pyspark.__version__} ({os.path.dirname(pyspark.__file__)})",
        expected=f"Spark {pyspark.__version__}, for which the jar of Delta is ({delta_package()})",
        action="unset SPARK_HOME, so that PySpark's own Spark is used; on a platform with a Spark of its own, install "
        f"Spark {pyspark.__version__} there",
    )


def _jar_of_delta(spark: SparkSession) -> str:
    """The path of the jar that the JVM has Delta from; "" where it does not say."""
    jvm: Any = spark._jvm
    try:
        loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
        loaded = jvm.java.lang.Class.forName("io.delta.sql.DeltaSparkSessionExtension", False, loader)
        return str(loaded.getProtectionDomain().getCodeSource().getLocation().getPath())
    except Exception:  # py4j's: a class from elsewhere, or a security manager
        return ""
