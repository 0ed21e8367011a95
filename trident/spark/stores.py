"""Stores that hold a warehouse, for Spark and Python alike: their jars, their settings, Delta's log store for S3."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark.find_spark_home import _find_spark_home
from pyspark.sql import SparkSession

from trident.coordinators.errors import ConfigError, SparkSessionProblem, StorageProblem
from trident.spark.jars import resolved_jars
from trident.states.core import storage
from trident.states.core.place import Place
from trident.states.core.storage import is_safe_mode, store_problem

# Spark's own file of settings, ``spark-defaults.conf``, which its JVM reads below all that a session is given.


_LINE = re.compile(r"((?:\\.|[^\s=:\\])+)\s*[=:]?\s*(.*)", re.DOTALL)


def spark_defaults() -> dict[str, str]:
    """The settings of the file in ``SPARK_CONF_DIR`` or in Spark's own folder ``conf``; none where there is no file."""
    conf = os.environ.get("SPARK_CONF_DIR") or os.path.join(_find_spark_home(), "conf")
    try:
        return properties(Path(conf, "spark-defaults.conf").read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return {}  # the JVM says it where it cannot read the file


def properties(text: str) -> dict[str, str]:
    """The properties of a text as Java takes them: ``name value``, ``name=value`` or ``name: value`` in a line.

    A backslash at the end of a line goes on with the next; elsewhere it takes the next character as it is. Java's
    ``\\n`` and ``\\u0041``, which no setting needs, are not known here.
    """
    found = {}
    lines = iter(text.splitlines())
    for line in lines:
        line = line.lstrip()
        if not line or line[0] in "#!":
            continue
        while re.search(r"(?<!\\)(?:\\\\)*\\$", line):
            line = line[:-1] + next(lines, "").lstrip()
        if matched := _LINE.match(line):
            name, value = (re.sub(r"\\(.)", r"\1", part) for part in matched.groups())
            found[name] = value.strip()
    return found


log = logging.getLogger(__name__)
# Spark's own setting of a session of ours: the schemes of the stores that it is for, with commas between.
STORE = "spark.trident.store"
LOG_STORE = "trident.stores.ConditionalLogStore"
LOG_STORE_SETTING = "spark.delta.logStore.s3a.impl"

_SDK = "2.35.4"
_S3_PACKAGES = [
    "org.apache.hadoop:hadoop-aws:3.5.0",
    *(f"software.amazon.awssdk:{each}:{_SDK}" for each in ("s3", "s3-transfer-manager", "sts", "apache-client")),
    "software.amazon.s3.analyticsaccelerator:analyticsaccelerator-s3:1.3.1",
]
# The rest Spark has, often newer; the SDK's netty would end a session of Spark 4.
_S3_GROUPS = ("org.apache.hadoop_hadoop-aws", "software.amazon.", "org.reactivestreams_")
_HADOOP = "spark.hadoop."
_SECRETS = ("access.key", "secret.key", "session.token")
_S3A = ("endpoint", "endpoint.region", "path.style.access", "connection.ssl.enabled", *_SECRETS)
_SAFE_MODE_SECS = 120.0
_CHECK_SECS = 1.0
_HDFS = ("dfs.", "hadoop.security.", "hadoop.rpc.", "fs.defaultFS", "fs.viewfs.")


def s3_jars(resolver: Mapping[str, str]) -> list[str]:
    """Paths of the jars by which Spark reaches S3, 20 MB; as ``jars.resolved_jars``."""
    return resolved_jars("S3A", _S3_PACKAGES, _S3_GROUPS, resolver, ["software.amazon.awssdk:bundle"])


def session_settings(warehouse: Place, sources: Iterable[Place] = ()) -> dict[str, str]:
    """The Spark settings of a session for a warehouse, or sources, in stores."""
    schemes = dict.fromkeys(place.root.partition("://")[0] for place in (warehouse, *sources) if not place.is_local)
    return {STORE: ",".join(schemes)} if schemes else {}


def reach(places: Iterable[Place], spark: SparkSession | None) -> None:
    """Has this process reach the stores of sources, as the session does; without one by Spark's own file of settings.

    A store that is reached already stays as it is: it is the warehouse's too, and its settings say more.
    """
    for place in places:
        if place.is_local or storage.settings_of(place.root):
            continue
        if spark is None:
            configure_by(place, spark_defaults())
        else:
            hadoop: Any = spark.sparkContext._jsc.hadoopConfiguration()
            storage.configure(place.root, _wanted(place, hadoop.get, _set_in(spark)))


def require_connector(place: Place, spark: SparkSession) -> None:
    """Raises SparkSessionProblem where Spark cannot read from a store, whose files tasks of ours do not read alone."""
    if place.root.startswith("s3a:"):
        _check_s3_jars(spark, _S3A_CLASS)


def prepare_store(warehouse: Place, spark: SparkSession | None, conf: Mapping[str, str], single_writer: bool) -> None:
    """Has this process reach the store of a topology's warehouse, and looks whether it may hold one.

    Args:
        spark: the session that there is; None: one will be made with ``conf``.
        single_writer: there is one writer at a time, for which the user vouches.

    Raises:
        ConfigError: the settings hold credentials.
        SparkSessionProblem: the session cannot commit to that store.
        StorageProblem: it does not keep two writers apart; or it cannot be written.
    """
    if warehouse.is_local:
        return
    refuse_secrets(conf)
    if spark is not None:
        configure_by_session(warehouse, spark)
    else:
        configure_by(warehouse, {**spark_defaults(), **conf})
    check_store(warehouse, single_writer, _SAFE_MODE_SECS)


def check_store(warehouse: Place, single_writer: bool, safe_mode_secs: float = 0.0) -> None:
    """Makes the warehouse's own folder, and looks whether the store keeps two writers apart.

    Args:
        safe_mode_secs: how long a name node in its safe mode is waited for. Each is in it for a while behind its own
            start, and a standby that starts just then would end for nothing.

    Raises:
        StorageProblem: it does not; or, ``StoreProblem``, it cannot be written.
    """
    until = time.monotonic() + safe_mode_secs
    was_logged = False
    while True:
        try:
            storage.make_warehouse(warehouse)
            exclusive = storage.is_exclusive(warehouse / "_trident")
            break
        except OSError as error:
            if _refuses_conditions(error):
                raise _not_exclusive(warehouse, f"{error.strerror or error}", refused=True) from error
            if not is_safe_mode(error) or time.monotonic() >= until:
                raise store_problem(error, warehouse) from error
        if not was_logged:
            log.warning("the name node of %s is in safe mode; waiting up to %.0f s", warehouse, safe_mode_secs)
            was_logged = True
        time.sleep(_CHECK_SECS)
    if not exclusive and not single_writer:
        raise _not_exclusive(warehouse, "two of four writers that made one file at once both heard that they had")


def _refuses_conditions(error: OSError) -> bool:
    """Tells whether a store takes no PUT with a condition: by S3's protocol it answers 501, NotImplemented."""
    if isinstance(error, storage.NotExclusive):
        return True
    # Of a conditional PUT alone the outcome is said to be unknown.
    return (
        isinstance(error, storage.OutcomeUnknown) and "notimplemented" in str(error.strerror).replace(" ", "").lower()
    )


def _not_exclusive(warehouse: Place, found: str, refused: bool = False) -> StorageProblem:
    """The problem of a store that ignores the condition, or, ``refused``, takes no PUT that has one."""
    if refused:
        what, instead = "refuses If-None-Match: no table version can be committed", ""
    else:
        what = "does not honour If-None-Match: two writers could both win a table version"
        instead = "; or set single_writer, if you vouch for there never being two coordinators at once"
    return StorageProblem(
        f"the store of {warehouse} {what}",
        found=found,
        expected="one writer that wins, as S3 itself has it since 2024",
        action=f"use another store{instead}",
    )


def refuse_secrets(conf: Mapping[str, str]) -> None:
    """Credentials come from the store's own chain, so that no setting that is shown or stored has them.

    Raises:
        ConfigError: a Spark setting of the topology's is one.
    """
    for key in conf:
        if key.startswith("spark.hadoop.fs.s3a.") and key.endswith(_SECRETS):
            raise ConfigError(
                "a topology's settings hold no credentials of a store",
                found=key,
                expected="the environment (AWS_ACCESS_KEY_ID and its like), a role of the machine, spark-defaults.conf",
                action=f"take {key} out of the settings",
            )


def configure_by(warehouse: Place, conf: Mapping[str, str]) -> None:
    """Has this process reach a warehouse's store as Spark would: for commands that run without a session.

    Args:
        conf: settings of Spark; those that begin with ``spark.hadoop.`` count. The rest comes from the store's own
            chain.
    """
    if warehouse.is_local:
        return
    hadoop = {key[len(_HADOOP) :]: value for key, value in conf.items() if key.startswith(_HADOOP)}
    storage.configure(warehouse.root, _wanted(warehouse, hadoop.get, hadoop))


def configure_by_session(warehouse: Place, spark: SparkSession) -> None:
    """Has this process, and each that is sent the place, reach the store as the session does.

    Raises:
        SparkSessionProblem: the session cannot commit to that store.
    """
    if warehouse.is_local:
        return
    hadoop: Any = spark.sparkContext._jsc.hadoopConfiguration()
    set_ = _set_in(spark)
    if warehouse.root.startswith("s3a:"):
        _check_s3(spark)
    storage.configure(warehouse.root, _wanted(warehouse, hadoop.get, set_))


def _set_in(spark: SparkSession) -> dict[str, str]:
    """Hadoop's settings that were set for a session."""
    return {key[len(_HADOOP) :]: value for key, value in spark.sparkContext.getConf().getAll() if _HADOOP in key[:13]}


def _wanted(warehouse: Place, get: Any, set_: Mapping[str, str]) -> dict[str, str]:
    scheme, _, bucket = warehouse.root.partition("://")
    if scheme == "hdfs":
        return {key: value for key, value in set_.items() if key.startswith(_HDFS)}
    found = {}
    for name in _S3A:
        value = get(f"fs.s3a.bucket.{bucket}.{name}") or get(f"fs.s3a.{name}")
        if value:
            found[f"fs.s3a.{name}"] = str(value)
    return found


def _check_s3(spark: SparkSession) -> None:
    """Two writers of Delta's own log store for S3 in two processes both win a table version."""
    found = spark.conf.get(LOG_STORE_SETTING, None)
    if found != LOG_STORE:
        raise SparkSessionProblem(
            f"the Spark session needs {LOG_STORE_SETTING}: with Delta's own log store for S3 two writers could both "
            "win a table version",
            found=found or "not set",
            expected=LOG_STORE,
            action="let the framework make the session, or make it with trident.configure_spark(builder)"
            f'.config("{STORE}", "s3a")',
        )
    _check_s3_jars(spark, _S3A_CLASS, LOG_STORE)


_S3A_CLASS = "org.apache.hadoop.fs.s3a.S3AFileSystem"


def _check_s3_jars(spark: SparkSession, *classes: str) -> None:
    try:
        jvm: Any = spark._jvm
        loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
        for name in classes:
            jvm.java.lang.Class.forName(name, True, loader)
    except Exception as error:  # py4j's, in which the Java exception is wrapped
        raise SparkSessionProblem(
            "the Spark session has not the jars of S3A on its class path",
            expected=", ".join(_S3_PACKAGES),
            action=f'set {STORE} to "s3a" before trident.configure_spark(builder), or add the jars',
        ) from error


# Uploads of large files whose sender has died: their parts cost space, and no listing shows them.


# A file is sent within minutes. After so long the process that sent it is gone, whichever it was.
LEFT_AFTER_SECS = 24 * 3600.0

_log = logging.getLogger(__name__)


def drop_left_uploads(warehouse: Place, spark: SparkSession, left_after_secs: float = LEFT_AFTER_SECS) -> int:
    """Aborts uploads below a warehouse on S3 that were begun long ago and never ended; others are left alone.

    A failure, such as the right to list uploads that this process lacks, is logged and costs nothing but the space.
    Nothing is looked for where the warehouse is the root of a bucket: an upload there may be of any application.

    Returns:
        how many there were.
    """
    prefix = str(warehouse)[len(warehouse.root) + 1 :]
    if not warehouse.root.startswith("s3a:") or not prefix:
        return 0
    jvm: Any = spark._jvm
    limit_ms = (time.time() - left_after_secs) * 1000
    dropped = 0
    try:
        hadoop: Any = spark.sparkContext._jsc.hadoopConfiguration()
        files = jvm.org.apache.hadoop.fs.Path(str(warehouse)).getFileSystem(hadoop)
        uploads = files.listUploads(f"{prefix}/")
        while uploads.hasNext():
            upload = uploads.next()
            if upload.initiated().toEpochMilli() < limit_ms:
                files.abortMultipartUpload(upload)
                dropped += 1
    except Py4JError as error:
        _log.info("uploads below %s that were left cannot be listed: %s", warehouse, error)
    if dropped:
        _log.info("aborted %d uploads below %s that were never ended", dropped, warehouse)
    return dropped
