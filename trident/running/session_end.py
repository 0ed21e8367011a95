"""Detects the end of a running topology's Spark session: it was stopped, or its JVM has died."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trident.coordinators.errors import SessionEnded

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def session_end(spark: "SparkSession", ask: bool = False) -> SessionEnded | None:
    """Why nothing can run on the session any more; None while it can. Cheap enough to be asked all the time.

    Args:
        ask: also asks the JVM, which costs a call.
    """
    context = spark.sparkContext
    process = getattr(getattr(context, "_gateway", None), "proc", None)
    if process is not None and process.poll() is not None:
        return _jvm_gone(f"its process {process.pid} ended with {process.returncode}")
    if context._jsc is None:
        return _stopped()
    if ask:
        try:
            if context._jsc.sc().isStopped():
                return _stopped()
        except Exception as error:  # py4j's: no JVM answers
            return _jvm_gone(f"it does not answer: {type(error).__name__}")
    return None


def _stopped() -> SessionEnded:
    return SessionEnded(
        "the Spark session was stopped while the topology ran",
        found="spark.stop()",
        expected="query.stop() before spark.stop()",
        action="start the topology again, with a new session: it goes on from its last transaction",
    )


def _jvm_gone(found: str) -> SessionEnded:
    return SessionEnded(
        "the JVM of the Spark session is gone",
        found=found,
        expected="a JVM that lives as long as the topology; the system's log says whether it ran out of memory",
        action="start the topology again in a new process: it goes on from its last transaction",
    )
