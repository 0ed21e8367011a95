"""How the JVMs of the tests start: for code that runs once, and from the archive of classes where there is one."""

from __future__ import annotations

import os
import sys
from pathlib import Path

# Read by Spark's launcher, for the session of a test process and for those of the processes that tests start.
VARIABLE = "SPARK_SUBMIT_OPTS"
ARCHIVE = Path(sys.prefix) / "spark-classes.jsa"


def cold_options() -> str:
    """The tests run cold code: the second compiler and a parallel collector cost more than they gain."""
    return "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=256m"


def start_quickly() -> None:
    """Sets the environment of this process; whatever the user has set stays."""
    if VARIABLE not in os.environ:
        archive = f" -XX:SharedArchiveFile={ARCHIVE} -Xlog:cds=off -Xlog:cds+dynamic=off" if ARCHIVE.exists() else ""
        os.environ[VARIABLE] = cold_options() + archive
