"""Spark's JVM: versions that fit, its log, its sockets to workers, and one that ``spark-submit`` has started."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shutil
import socket
import stat
import tempfile
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyspark
from pyspark import SparkConf, SparkContext
from pyspark.find_spark_home import _find_spark_home
from pyspark.sql import SparkSession

from trident.coordinators import processes
from trident.coordinators.errors import SparkSessionProblem
from trident.spark.jars import cache_folder, delta_package
from trident.states.core import storage

# The versions that have to fit: PySpark, the Spark whose JVM it starts, and Delta's jar in it.


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
            found=f"delta-spark {found[2]} for Spark {found[1]} ({found[0]}), next to PySpark {pyspark.__version__}",
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


# A JVM that ``spark-submit`` has started before this process: its settings, and our jars on its class path.


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


def warn_of_ignored_settings(given_settings: Mapping[str, str], submitted: Mapping[str, str]) -> None:
    """Warns of settings of the topology that have no effect, since ``spark-submit`` had started the JVM."""
    late = [key for key in _OF_THE_START if key in given_settings and given_settings[key] != submitted.get(key)]
    if late:
        warnings.warn(
            f"spark-submit has started Spark's JVM before it knew {', '.join(late)}: they do not count; give them to "
            "spark-submit with --conf",
            stacklevel=4,
        )


# Says what Spark's JVM prints, where the user has no log4j configuration of their own.


# A task that fails is told by the error of its job, which names the user's function and line. The loggers turned
# off here print pages of Java about the same, and more when the driver process is killed.
_LOG4J = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
logger.executor.name = org.apache.spark.executor
logger.executor.level = off
logger.scheduler.name = org.apache.spark.scheduler
logger.scheduler.level = off
logger.tasks.name = org.apache.spark.TaskContextImpl
logger.tasks.level = off
logger.merge.name = org.apache.spark.sql.delta.commands.MergeIntoCommand
logger.merge.level = off
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
"""


def has_own_log4j() -> bool:
    conf = os.environ.get("SPARK_CONF_DIR") or os.path.join(os.environ.get("SPARK_HOME", ""), "conf")
    return any(os.path.exists(os.path.join(conf, name)) for name in ("log4j2.properties", "log4j2.xml"))


def log4j_file() -> Path:
    try:
        path = cache_folder() / "log4j2.properties"
    except OSError:
        path = Path(tempfile.mkdtemp(prefix="trident-"), "log4j2.properties")
    if not path.exists() or path.read_text(encoding="utf-8") != _LOG4J:
        storage.write(path, _LOG4J.encode(), durable=False)
    return path


# Unix sockets between Spark's JVM and its Python workers, and the folder that they are in.
#
# Over TCP each pass through Python waits some 40 ms for its last rows: the JVM's socket holds a small segment back
# until
# the worker's kernel acknowledges the one before, which it delays. A Unix socket has no such wait. Spark 4.1 has the
# setting, and puts its sockets into the JVM's temporary folder, where those of a killed driver stay for ever and where
# a
# long path makes ``bind`` fail. So a driver on one machine gets a folder of its own, which only its user may enter, and
# removes those of drivers that are gone.


log = logging.getLogger(__name__)

ENABLED = "spark.python.unix.domain.socket.enabled"
FOLDER = "spark.python.unix.domain.socket.dir"

# A socket's name is ".", 36 characters, ".sock"; the kernel takes paths of 107 bytes, macOS 103.
_PATH_BYTES_MAX = 103 - len("/.") - 36 - len(".sock")
_BASE = "/tmp"


def socket_settings(cores: int | None, base: str = _BASE) -> dict[str, str]:
    """The Spark settings for Unix sockets to Python workers; none where they are not possible.

    Args:
        cores: of a local master; None for a cluster. There it is TCP: a folder that each host has, may write and
            whose path is short enough is not known here. An executor's own temporary folder often has a path that
            is too long (YARN's has some 110 bytes), and then every task in Python would fail.
        base: the folder in which the user's folder of sockets is made.
    """
    if cores is None or not hasattr(socket, "AF_UNIX"):
        return {}
    try:
        folder = _own_folder(base)
    except OSError as error:
        log.warning("Spark's Python workers are reached over TCP, which costs each pass 40 ms: %s", error)
        return {}
    return {ENABLED: "true", FOLDER: folder}


def _own_folder(base: str) -> str:
    """This process's folder of sockets, made where it is missing; folders of processes that are gone are removed."""
    users = Path(base, f"trident-{os.getuid()}")
    users.mkdir(mode=0o700, exist_ok=True)
    found = users.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(f"{users} is no folder that only this user may enter")
    started = processes.started(os.getpid()) or processes.UNKNOWN
    # Containers may share the folder, and each counts its processes itself.
    host = hashlib.sha256(processes.boot_id().encode()).hexdigest()[:8]
    own = users / f"{host}-{os.getpid()}-{started}"
    if len(os.fsencode(own)) > _PATH_BYTES_MAX:
        raise OSError(f"the path {own} is too long for sockets in it: at most {_PATH_BYTES_MAX} bytes")
    own.mkdir(mode=0o700, exist_ok=True)
    for other in users.iterdir():
        of_host, pid, start = (*other.name.split("-", 2), "", "")[:3]
        if of_host == host and pid.isdigit() and processes.has_ended(int(pid), start):
            shutil.rmtree(other, ignore_errors=True)
    return str(own)
