"""The Spark session that the framework needs: how to make one, and how to check one.

:func:`configure_spark` has the settings, with their reasons; the jars come from
``trident.spark.jars``.
Nothing here starts a JVM when the module is imported.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from py4j.clientserver import ClientServer
from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from trident.config import TridentConfig
from trident.coordinators.errors import EnvironmentProblem, SparkSessionProblem, described
from trident.coordinators.processes import find_java, is_secret
from trident.coordinators.tracebacks import first_line
from trident.spark import class_archive, stores
from trident.spark import jars as kept_plans_jar
from trident.spark.cluster_files import PYTHON_ARCHIVE, send_framework, send_python
from trident.spark.jars import RESOLVER_CONFS, delta_jars, delta_package, use_loopback_if_unresolvable
from trident.spark.jvm import ENABLED as UNIX_SOCKETS
from trident.spark.jvm import (
    add_jars,
    check_spark_home,
    check_versions,
    has_own_log4j,
    is_submitted,
    log4j_file,
    socket_settings,
    submitted_settings,
    warn_of_ignored_settings,
)
from trident.spark.jvm_start import importing_during_jvm_start
from trident.spark.stores import spark_defaults
from trident.states.core.addresses import is_local_master
from trident.states.core.place import Place

log = logging.getLogger(__name__)

DELTA_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
DELTA_CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
LOCAL_FS = "com.globalmentor.apache.hadoop.fs.BareLocalFileSystem"
# Below about 350 the JVM of Spark 4.2 does not start; a batch opens more.
_DESCRIPTORS_MIN = 512
_ADDED_TO = ("spark.driver.extraJavaOptions", "spark.driver.extraClassPath", "spark.jars", "spark.sql.extensions")
_default_settings: dict[str, str] = {}
_DEFAULT_MASTER = ("spark.master", "local[*]")
_NO_JVM = "its driver's JVM is elsewhere, and commits need it at hand"


def configure_spark(builder: SparkSession.Builder) -> SparkSession.Builder:
    """Set on a session's builder all that the framework needs.

    The caller's own settings are kept, and our part is added to lists such
    as ``spark.sql.extensions``. Call it after your own ``.master(...)`` and
    ``.config(...)``, before ``getOrCreate()``, and before any other Spark session
    of this process: the class path is fixed when the JVM starts. Sets
    ``PYSPARK_PYTHON`` in the environment unless it is set: in local mode workers
    would otherwise be started with whatever ``python3`` is first on the path.
    Settings in the environment that are credentials read ``none`` in the workers.

    Args:
        builder: ``SparkSession.builder...``

    Returns:
        The same builder.

    Raises:
        JavaProblem: no JDK, or one too old.
        EnvironmentProblem: Delta's jars can neither be found nor downloaded.
        SparkSessionProblem: the builder is one for Spark Connect.
    """
    if isinstance(builder, type) or not callable(getattr(builder, "config", None)):
        raise SparkSessionProblem(
            "configure_spark needs a session's builder", found=described(builder), expected="SparkSession.builder"
        )
    given = {**submitted_settings(), **getattr(builder, "_options", {})}
    _refuse_connect(given)
    check_spark_home()
    find_java()
    if local_cores(given.get("spark.master", "local[*]")) is not None:
        use_loopback_if_unresolvable()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    _let_workers_import()
    confs = session_confs(given)
    if is_submitted():
        add_jars(confs["spark.jars"].split(","))
        if local_cores(given.get("spark.master")) is not None:
            # Local workers have the environment of the JVM, which spark-submit has started before ours was complete.
            confs.setdefault("spark.executorEnv.PYTHONPATH", os.environ["PYTHONPATH"])
    for key, value in confs.items():
        builder.config(key, value)
    return builder


def _refuse_connect(given: Mapping[str, str]) -> None:
    """Raises SparkSessionProblem where PySpark would make a session of Spark Connect."""
    for key, found in {
        "spark.remote": given.get("spark.remote"),
        "the environment variable SPARK_REMOTE": os.environ.get("SPARK_REMOTE"),
        "spark.api.mode": given.get("spark.api.mode"),
        "the environment variable SPARK_API_MODE": os.environ.get("SPARK_API_MODE"),
    }.items():
        if found is not None and (key.endswith(("remote", "REMOTE")) or found.lower() == "connect"):
            raise SparkSessionProblem(
                f"Spark Connect cannot be used: {_NO_JVM}",
                found=f"{key}={found.partition(';')[0]}",  # behind that are the token and other parameters
                expected="a classic session, with spark.master (the setting spark_master)",
                action="unset it for this program",
            )


def check_kind(spark: object) -> None:
    """Raises SparkSessionProblem where it is no session, or one of Spark Connect; asks no JVM."""
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        raise SparkSessionProblem(
            f"a session of Spark Connect cannot be used: {_NO_JVM}",
            found="spark.remote",
            expected="a classic session, with spark.master",
            action="run the program where the driver may be: with spark_master=spark://host:7077 on a cluster",
        )
    if not hasattr(spark, "sparkContext"):
        raise SparkSessionProblem(
            "this is no Spark session",
            found=described(spark),
            expected="a SparkSession; settings are given by name: start(config=TridentConfig(…))",
        )


def _let_workers_import() -> None:
    """Gives Spark's Python workers this process's own places to import from.

    They get PYTHONPATH and nothing else: neither the script's folder, where
    modules beside a topology lie, nor a checkout that is not installed.
    """
    here = [str(Path(__file__).absolute().parents[2])]
    script = sys.modules.get("__main__")
    file = getattr(script, "__file__", None)
    # As Python itself does: the folder of a script is searched, that of a module run with -m is not.
    if file and getattr(script, "__spec__", None) is None:
        here.append(os.path.dirname(os.path.abspath(file)))
    known = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    os.environ["PYTHONPATH"] = os.pathsep.join([*known, *(path for path in here if path not in known)])


def session_confs(given: Mapping[str, str]) -> dict[str, str]:
    """The settings that :func:`configure_spark` adds to those given.

    Resolves the jars, and so may download them.
    """
    given = {**_kept_defaults(), **given}
    cores = local_cores(given.get("spark.master"))
    resolver = {key: given[key] for key in RESOLVER_CONFS if key in given}
    jars = [*delta_jars(resolver), *kept_plans_jar.jars()]
    for_s3 = "s3a" in given.get(stores.STORE, "").split(",")
    if for_s3:
        jars += stores.s3_jars(resolver)
    confs = {
        # Batches of the window run side by side, and share the cores fairly.
        "spark.scheduler.mode": "FAIR",
        "spark.sql.catalog.spark_catalog": DELTA_CATALOG,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **({} if UNIX_SOCKETS in given else socket_settings(cores)),
        **({stores.LOG_STORE_SETTING: stores.LOG_STORE} if for_s3 else {}),
    }
    if cores is not None:
        confs |= {
            # 50 partitions for the log of a small table: seconds instead of milliseconds.
            "spark.databricks.delta.snapshotPartitions": "1",
            # The checksum file is optional in Delta's protocol and costs a third of an
            # append; maintenance writes one with each checkpoint.
            "spark.databricks.delta.writeChecksumFile.enabled": "false",
            "spark.sql.shuffle.partitions": str(cores),
            # VACUUM lists folders with as many tasks as this: 10,000 by default.
            "spark.sql.sources.parallelPartitionDiscovery.parallelism": str(max(2, cores)),
            # Hadoop's own local file system runs a chmod process per file, 16 ms each.
            "spark.hadoop.fs.file.impl": LOCAL_FS,
            # A VPN or a firewall must not come between a driver and itself.
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            # Of a socket that the JVM has closed, Spark's own daemon prints a traceback on the driver's terminal.
            "spark.python.daemon.module": "trident.workers.daemon",
        }
    confs = {key: value for key, value in confs.items() if key not in given}
    # The JVM has its starter's environment, and local workers have the JVM's.
    confs |= {f"spark.executorEnv.{variable}": "none" for variable in os.environ if is_secret(variable)}
    confs["spark.sql.extensions"] = _joined(",", given.get("spark.sql.extensions"), DELTA_EXTENSION)
    # By path and at the JVM's start: Hadoop looks for its file system's class
    # before Spark adds what `spark.jars` names.
    confs["spark.driver.extraClassPath"] = _joined(os.pathsep, *jars, given.get("spark.driver.extraClassPath"))
    if cores is None or is_submitted():
        confs["spark.jars"] = _joined(",", given.get("spark.jars"), *jars)
    options = given.get("spark.driver.extraJavaOptions", "")
    if "log4j" not in options and not has_own_log4j():
        quiet = f'"-Dlog4j2.configurationFile={log4j_file().as_uri()}"'
        confs["spark.driver.extraJavaOptions"] = f"{options} {quiet}".strip()
    archive = class_archive.jvm_options({**spark_defaults(), **given}, jars)
    if archive:
        options = confs.get("spark.driver.extraJavaOptions", options)
        confs["spark.driver.extraJavaOptions"] = f"{options} {archive}".strip()
    return confs


def _kept_defaults() -> dict[str, str]:
    """Of spark-defaults.conf the settings to which our part is added: ours would come in their place."""
    return {name: value for name, value in spark_defaults().items() if name in _ADDED_TO}


def spark_settings(config: TridentConfig, sources: Iterable[Place] = ()) -> dict[str, str]:
    """The Spark settings that follow from the topology's; ``spark-submit`` may say the master.

    Args:
        sources: the stores that its spouts read from.
    """
    settings = {"spark.master": config.spark_master}
    if config.origin("spark_master") == "default":
        settings["spark.master"] = submitted_settings().get("spark.master", config.spark_master)
    if config.driver_memory is not None:
        settings["spark.driver.memory"] = config.driver_memory
    if config.shuffle_partitions is not None:
        settings["spark.sql.shuffle.partitions"] = str(config.shuffle_partitions)
    if not config.class_archive:
        settings[class_archive.SETTING] = "false"
    if config.python_archive is not None:
        settings[PYTHON_ARCHIVE] = config.python_archive
    if config.log_format == "json":
        settings["spark.log.structuredLogging.enabled"] = "true"
    return settings | stores.session_settings(config.warehouse_place(), sources) | dict(config.spark_conf)


def make_session(app_name: str, config: Mapping[str, str] | None = None) -> SparkSession:
    """Make a Spark session for a topology.

    Args:
        app_name: Spark's application name.
        config: Spark settings, which win over ours; ``spark.master`` is
            ``local[*]`` unless given.

    Raises:
        JavaProblem, EnvironmentProblem: as :func:`configure_spark`.
        SparkSessionProblem: this process has another session already, which
            lacks something (or ``config`` turned it off).
    """
    given_settings = {**_default_settings, **{key: str(value) for key, value in (config or {}).items()}}
    submitted = submitted_settings()
    settings = {"spark.master": submitted.get("spark.master", "local[*]"), **given_settings}
    _refuse_connect(settings)  # before the builder is told a master, which PySpark refuses in its own words
    _stop_session_lacking(settings)
    made_before = SparkContext._active_spark_context is not None
    try:
        spark = _made(app_name, settings)
    except PySparkRuntimeError as error:
        # No JVM has started: with a damaged archive of classes it may crash, but there are other reasons. It was the
        # archive only where a JVM starts without it.
        if SparkContext._gateway is not None or not class_archive.is_given():
            raise _does_not_start(error) from error
        try:
            spark = _made(app_name, {**settings, class_archive.SETTING: "false"})
        except PySparkRuntimeError as again:
            raise _does_not_start(again) from again
        class_archive.give_up(f"the JVM did not start with it: {error}")
    except Py4JError as error:
        raise _does_not_start(error) from error
    if submitted:
        warn_of_ignored_settings(given_settings, submitted)
    if made_before:
        _warn_of_ignored_settings(spark, given_settings)
    return check_session(spark)


def _does_not_start(error: Exception) -> SparkSessionProblem:
    said = getattr(error, "java_exception", None)
    return SparkSessionProblem(
        "Spark does not start with these settings",
        found=(str(said.toString()) if said is not None else first_line(error)).splitlines()[0][:500],
        expected="a session",
        action="the lines above say more, where the JVM has ended; see spark_master, driver_memory and the Spark "
        "settings (spark_conf, --conf, spark-defaults.conf)",
    )


def _made(app_name: str, settings: Mapping[str, str]) -> SparkSession:
    builder = SparkSession.builder.appName(app_name)
    for key, value in settings.items():
        builder.config(key, value)
    configure_spark(builder)
    check_descriptors()
    with _secrets_hidden(), importing_during_jvm_start():
        return builder.getOrCreate()


def set_default_settings(settings: Mapping[str, str]) -> None:
    """Sets default Spark settings for the sessions that this process makes from now on.

    ``trident run`` does so before it runs the user's file: an expression there may need a session at once.
    """
    _default_settings.clear()
    _default_settings.update(settings)


def _warn_of_ignored_settings(spark: SparkSession, given_settings: Mapping[str, str]) -> None:
    """A session that was made earlier in this process keeps what is fixed when the JVM starts."""
    has = dict(spark.sparkContext.getConf().getAll())
    # A session takes any name as its own setting, but only those of Spark SQL do anything there. Our part is added to
    # some; and a user who leaves the master at its default takes the session as it is.
    ignored = [
        key
        for key, value in given_settings.items()
        if value not in has.get(key, "") and not key.startswith("spark.sql.") and (key, value) != _DEFAULT_MASTER
    ]
    if ignored:
        warnings.warn(
            f"the Spark session of this process was made before, without {', '.join(ignored)}; it stays as it is. Make "
            "the session with these settings, or give them on the command line: trident run FILE --conf …",
            stacklevel=3,
        )


def check_descriptors() -> None:
    """Raises EnvironmentProblem where the JVM would end, without a word, for want of file descriptors."""
    if os.name != "posix":
        return
    import resource  # not there on Windows

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= _DESCRIPTORS_MIN:
        return

    if SparkContext._gateway is not None:
        return
    raise EnvironmentProblem(
        "this process may open too few files for Spark's JVM to start",
        found=f"ulimit -n is {soft}",
        expected=f"at least {_DESCRIPTORS_MIN}, better 4096",
        action="raise it: ulimit -n 4096"
        + (
            ""
            if hard == resource.RLIM_INFINITY or hard >= _DESCRIPTORS_MIN
            else f" (the hard limit is {hard}: /etc/security/limits.conf, or LimitNOFILE= in a systemd unit)"
        ),
    )


def session_for_analysis() -> SparkSession:
    """A session made only to analyse an expression, while a topology is written and no settings are known yet.

    The next :func:`make_session` takes it over if it has the settings wanted then, and else puts another in its place.
    """
    global _for_analysis
    _for_analysis = make_session("trident")
    return _for_analysis


_for_analysis: SparkSession | None = None


def _stop_session_lacking(settings: Mapping[str, str]) -> None:
    """Stops the session that was made for analysis, if it lacks a setting: a context keeps its master."""
    global _for_analysis
    session, _for_analysis = _for_analysis, None
    if session is None or session.sparkContext._jsc is None:
        return
    conf = session.sparkContext.getConf()
    if any(conf.get(key) != value for key, value in settings.items()):
        session.stop()


@contextmanager
def _secrets_hidden() -> Iterator[None]:
    """The JVM, once started, hands its environment to whatever it starts: it gets no credentials."""
    hidden = {variable: os.environ.pop(variable) for variable in list(os.environ) if is_secret(variable)}
    try:
        yield
    finally:
        os.environ.update(hidden)


def check_session(spark: SparkSession) -> SparkSession:
    """Return the session when the framework can run on it.

    Raises:
        SparkSessionProblem: it cannot; the message names the setting.
    """
    check_kind(spark)
    check_versions(spark)
    if not isinstance(spark.sparkContext._gateway, ClientServer):
        raise SparkSessionProblem(
            "in this session Java cannot call Python back, which commits need, and threads share their jobs' names",
            found="PYSPARK_PIN_THREAD=false",
            expected="PYSPARK_PIN_THREAD not set, or true, before the session is made",
        )
    extensions = (spark.conf.get("spark.sql.extensions", "") or "").split(",")
    if DELTA_EXTENSION not in [name.strip() for name in extensions]:
        raise _lacks("spark.sql.extensions", ",".join(extensions) or None, DELTA_EXTENSION)
    catalog = spark.conf.get("spark.sql.catalog.spark_catalog", None)
    if catalog != DELTA_CATALOG:
        raise _lacks("spark.sql.catalog.spark_catalog", catalog, DELTA_CATALOG)
    context = spark.sparkContext
    try:
        jvm: Any = spark._jvm
        loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
        jvm.java.lang.Class.forName("io.delta.kernel.defaults.engine.DefaultEngine", True, loader)
    except Exception as error:  # py4j's, in which the Java exception is wrapped
        raise _lacks("spark.jars.packages", None, delta_package()) from error
    if is_local_master(context.master) and not _same_python(context.pythonExec):
        raise SparkSessionProblem(
            "the environment variable PYSPARK_PYTHON names another interpreter than this one",
            found=context.pythonExec,
            expected=sys.executable,
            action="set it before the session is made, or use trident.configure_spark(builder)",
        )
    mode = context.getConf().get("spark.scheduler.mode", "FIFO")
    if mode != "FAIR":
        # Commits are put in order by the coordinator, whatever Spark runs first: this costs time alone.
        warnings.warn(
            f"the Spark session's spark.scheduler.mode is {mode}: batches in flight wait for each other's tasks, and "
            "for a MERGE, instead of sharing the cores; results are the same. It cannot be changed any more; a session "
            "made with trident.configure_spark(builder) has FAIR",
            stacklevel=2,
        )
    if context.getConf().get(UNIX_SOCKETS, "false") != "true" and socket_settings(local_cores(context.master)):
        warnings.warn(
            f"the Spark session's {UNIX_SOCKETS} is not true: each pass through Python waits 40 ms longer than over a "
            "Unix socket; results are the same. It cannot be changed any more; a session made with "
            "trident.configure_spark(builder) has it",
            stacklevel=2,
        )
    # On a cluster also what an administrator runs (a MERGE, a repair) is Python of ours on the executors.
    send_python(context, context.getConf().get(PYTHON_ARCHIVE))
    send_framework(context)
    if str(spark.conf.get("spark.sql.ansi.enabled", "true")).lower() == "false":
        warnings.warn(
            "spark.sql.ansi.enabled is false: a sum that does not fit its type, and an impossible cast, give a wrong "
            "number or null where they would fail the batch; set it to true, Spark's default",
            stacklevel=2,
        )
    return spark


def local_cores(master: str | None) -> int | None:
    """The cores of a local master; None for a cluster or when it is not known."""
    if master == "local":
        return 1
    found = re.fullmatch(r"local\[\s*(\*|\d+)\s*(?:,\s*\d+\s*)?\]", master or "")
    if not found:
        return None
    return (os.cpu_count() or 1) if found[1] == "*" else int(found[1])


def _joined(separator: str, *parts: str | None) -> str:
    """The entries of all parts in order, each once, without empty ones."""
    return separator.join(dict.fromkeys(entry for part in parts for entry in (part or "").split(separator) if entry))


def _lacks(conf: str, found: str | None, expected: str) -> SparkSessionProblem:
    return SparkSessionProblem(
        f"the Spark session needs {conf}",
        found=found or "not set",
        expected=expected,
        action="make the session with trident.configure_spark(builder), before any other in this process",
    )


def _same_python(worker: str) -> bool:
    """Tells whether a worker's interpreter is of this interpreter's environment."""
    found = shutil.which(worker)
    return found is not None and _environment(found) == _environment(sys.executable)


def _environment(interpreter: str) -> str:
    """The folder of the environment that an interpreter runs in; two ways to write one path give the same.

    As Python itself finds it: a virtual environment by the ``pyvenv.cfg`` beside the interpreter or above it, without
    following the interpreter's own link (which would make all environments of one Python the same); else the
    installation that the link leads to. bin/python and bin/python3 are one.
    """
    path = os.path.abspath(interpreter)
    folder = os.path.dirname(path)
    if any(os.path.exists(os.path.join(one, "pyvenv.cfg")) for one in (folder, os.path.dirname(folder))):
        return os.path.realpath(folder)
    return os.path.dirname(os.path.realpath(path))
