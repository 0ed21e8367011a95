"""Stores that hold a warehouse, for Spark and Python alike: their jars, their settings, Delta's log store for S3."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trident.coordinators.errors import ConfigError, SparkSessionProblem, StorageProblem
from trident.spark.jars import resolved_jars
from trident.spark.spark_defaults import spark_defaults
from trident.states.core import storage
from trident.states.core.place import Place
from trident.states.core.store_problems import store_problem

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Spark's own setting of a session of ours: the scheme of the store that it is for.
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
_HDFS = ("dfs.", "hadoop.security.", "hadoop.rpc.", "fs.defaultFS", "fs.viewfs.")


def s3_jars(resolver: Mapping[str, str]) -> list[str]:
    """Paths of the jars by which Spark reaches S3, 20 MB; as ``jars.resolved_jars``."""
    return resolved_jars("S3A", _S3_PACKAGES, _S3_GROUPS, resolver, ["software.amazon.awssdk:bundle"])


def session_settings(warehouse: Place) -> dict[str, str]:
    """The Spark settings of a session for a warehouse in a store."""
    return {} if warehouse.is_local else {STORE: warehouse.root.partition("://")[0]}


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
    check_store(warehouse, single_writer)


def check_store(warehouse: Place, single_writer: bool) -> None:
    """Makes the warehouse's own folder, and looks whether the store keeps two writers apart.

    Raises:
        StorageProblem: it does not; or, ``StoreProblem``, it cannot be written.
    """
    try:
        storage.make_warehouse(warehouse)
        exclusive = storage.is_exclusive(warehouse / "_trident")
    except storage.NotExclusive as error:
        raise _not_exclusive(warehouse, str(error)) from error
    except OSError as error:
        raise store_problem(error, warehouse) from error
    if not exclusive and not single_writer:
        raise _not_exclusive(warehouse, "two of four writers that made one file at once were both told that they had")


def _not_exclusive(warehouse: Place, found: str) -> StorageProblem:
    return StorageProblem(
        f"the store of {warehouse} does not honour If-None-Match: two writers could both win a table version",
        found=found,
        expected="one writer that wins, as S3 itself has it since 2024",
        action="use another store; or set single_writer, if you vouch for there never being two coordinators at once",
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
                expected="the environment (AWS_ACCESS_KEY_ID and its like), a profile, a role of the machine, or a "
                "credential provider of Hadoop's",
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
    set_ = {key[len(_HADOOP) :]: value for key, value in spark.sparkContext.getConf().getAll() if _HADOOP in key[:13]}
    if warehouse.root.startswith("s3a:"):
        _check_s3(spark)
    storage.configure(warehouse.root, _wanted(warehouse, hadoop.get, set_))


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
    try:
        jvm: Any = spark._jvm
        loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
        for name in ("org.apache.hadoop.fs.s3a.S3AFileSystem", LOG_STORE):
            jvm.java.lang.Class.forName(name, True, loader)
    except Exception as error:  # py4j's, in which the Java exception is wrapped
        raise SparkSessionProblem(
            "the Spark session has not the jars of S3A on its class path",
            expected=", ".join(_S3_PACKAGES),
            action=f'set {STORE} to "s3a" before trident.configure_spark(builder), or add the jars',
        ) from error
