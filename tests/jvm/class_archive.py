"""Makes the archive of Spark's classes with which the JVMs of the tests start in two thirds of the time.

    python -m tests.jvm.class_archive .venv/spark-classes.jsa

The JDK's class data sharing: classes that were loaded and checked once are mapped into the next JVM. The suite starts
some forty. A JVM that the archive does not fit (another JDK, another class path) starts as if there were none.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from tests.jvm.jvm_options import VARIABLE, cold_options

END_SECS = 300


def make(archive: Path) -> None:
    """Runs a topology with what most tests use, and has its JVM write down the classes as it ends."""
    from tests.jvm.spark_fixtures import spark_confs
    from trident import Count, DeltaAppend, DeltaMapState, FixedBatchSpout, TridentTopology
    from trident.spark.session import make_session

    os.environ[VARIABLE] = f"{cold_options()} -XX:ArchiveClassesAtExit={archive} -Xlog:cds=off -Xlog:cds+dynamic=off"
    with tempfile.TemporaryDirectory() as folder:
        spark = make_session("classes", spark_confs(folder))
        topology = TridentTopology("classes")
        stream = topology.new_stream("lines", FixedBatchSpout("text string", [[("a b",), ("b",)], [("c a",)]]))
        words = stream.each("text", str.split, "word string")
        words.group_by("word").persistent_aggregate(DeltaMapState("counts"), Count(), "n")
        words.partition_persist(DeltaAppend("words"))
        query = topology.start(spark, warehouse=f"{folder}/warehouse", zookeeper="embedded")
        query.process_all_available(END_SECS)
        query.stop(END_SECS)
        spark.read.format("delta").load(f"{folder}/warehouse/counts").orderBy("word").toPandas()
        java = spark.sparkContext._gateway.proc
        spark.stop()
        java.stdin.close()
        java.wait(END_SECS)


if __name__ == "__main__":
    make(Path(sys.argv[1]).resolve())
