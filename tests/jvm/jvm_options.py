"""How the JVMs of the tests start: for code that runs once, and from the archive of classes where there is one."""

from __future__ import annotations

import os
import sys
from pathlib import Path

# Read by Spark's launcher, for the session of a test process and for those of the processes that tests start.
VARIABLE = "SPARK_SUBMIT_OPTS"
ARCHIVE = Path(sys.prefix) / "spark-classes.jsa"
COLD = "-XX:TieredStopAtLevel=1"
_SMALL = "-XX:+UseSerialGC -XX:ReservedCodeCacheSize=256m"


def cold_options() -> str:
    """Most tests run cold code: the second compiler and a parallel collector cost more than they gain."""
    return f"{COLD} {_SMALL}"


def session_options() -> str:
    """Of the session of this test process: the whole sweep does the same so often that compiling it well pays."""
    return _SMALL if os.environ.get("TRIDENT_SWEEP") == "all" else cold_options()


def start_quickly() -> None:
    """Sets the environment of this process; whatever the user has set stays."""
    if VARIABLE not in os.environ:
        # Without an archive of the tests they say -Xshare, so that the product makes none of their classes.
        archive = f" -XX:SharedArchiveFile={ARCHIVE} -Xlog:cds=off -Xlog:cds+dynamic=off"
        archive = archive if ARCHIVE.exists() else " -Xshare:auto"
        os.environ[VARIABLE] = session_options() + archive
