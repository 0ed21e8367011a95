"""The Spark session: what is set, what is refused, and where the jars come from."""

from __future__ import annotations

import json
import os
import sys
import warnings
from importlib import metadata
from pathlib import Path

import pyspark
import pytest
from pyspark import SparkContext, java_gateway
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from tests.programs import python
from trident import DeltaAppend, FixedBatchSpout, TridentTopology
from trident.commands.doctor import Report, check_machine
from trident.config import TridentConfig
from trident.coordinators.errors import EnvironmentProblem, JavaProblem, SparkSessionProblem
from trident.spark import jars, jvm, jvm_start, session
from trident.spark.jvm import check_versions, warn_of_ignored_settings
from trident.spark.session import check_session, configure_spark, delta_jars, local_cores, make_session, session_confs

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder of the user."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "trident"


@pytest.fixture
def resolver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """A stand-in for the download only; notes each call. The real one runs with the tests' first session."""
    calls: list[list[str]] = []

    def resolve(packages: list[str], *_: object) -> list[str]:
        calls.append(packages)
        jars = [tmp_path / f"io.delta_{n}.jar" for n in range(2)]
        for jar in jars:
            jar.write_bytes(b"jar")
        return [str(jar) for jar in jars]

    monkeypatch.setattr(jars, "_resolve", resolve)
    return calls


# --- a JVM that spark-submit has started ---------------------------------------------------------------


def test_spark_submit_says_the_master_and_its_settings_are_kept(monkeypatch):
    given = {"spark.master": "spark://a:7077", "spark.jars": "/mine.jar", "spark.scheduler.mode": "FIFO"}
    monkeypatch.setattr(session, "submitted_settings", lambda: given)
    monkeypatch.setattr(session, "is_submitted", lambda: True)
    assert session.spark_settings(TridentConfig())["spark.master"] == "spark://a:7077"
    assert session.spark_settings(TridentConfig(spark_master="local[1]"))["spark.master"] == "local[1]"
    confs = session_confs(given)
    assert "spark.scheduler.mode" not in confs and confs["spark.jars"].startswith("/mine.jar,")
    assert "delta-kernel" in session_confs({"spark.master": "local[1]"})["spark.jars"], "the JVM runs without ours"


def test_settings_that_come_too_late_for_spark_submits_jvm_are_named():
    asked = {"spark.driver.memory": "4g", "spark.executor.memory": "1g"}
    with pytest.warns(UserWarning, match=r"before it knew spark.driver.memory: .*--conf"):
        warn_of_ignored_settings(asked, {"spark.driver.memory": "1g"})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_ignored_settings(asked, {"spark.driver.memory": "4g"})


# --- the session of the tests -----------------------------------------------------------------------


def test_the_session_that_is_made_passes_its_own_check(spark):
    assert check_session(spark) is spark


def test_local_files_are_written_without_a_process_per_file(spark):
    path = spark._jvm.org.apache.hadoop.fs.Path("file:///")
    assert path.getFileSystem(spark._jsc.hadoopConfiguration()).getClass().getName() == session.LOCAL_FS


def test_workers_are_this_interpreter(spark):
    def executables(batches):
        import sys

        import pyarrow as pa

        for _ in batches:
            yield pa.RecordBatch.from_pydict({"path": [sys.executable]})

    (row,) = spark.range(1).mapInArrow(executables, "path string").collect()
    assert os.path.dirname(row.path) == os.path.dirname(sys.executable)


@pytest.mark.long
def test_nothing_is_printed_but_what_the_program_prints(spark, tmp_path):
    """Neither Ivy's pages nor Spark's warnings, at a start and at a job, nor when a session is put in another's place.

    While the JVM starts, that which a topology's start needs is imported.
    That an expression was looked at on local[*] must not decide where the topology runs.
    """
    code = f"""
import sys
from trident import FixedBatchSpout, TridentTopology, expr
from trident.spark.session import make_session
stream = TridentTopology("t").new_stream("s", FixedBatchSpout("n long", []))
assert "trident.running.starting" not in sys.modules
stream.where(expr("n > 1"))
assert "trident.running.starting" in sys.modules
spark = make_session("quiet", {{"spark.master": "local[1]", "spark.driver.memory": "512m",
                               "spark.sql.warehouse.dir": {str(tmp_path)!r}}})
assert spark.sparkContext.master == "local[1]", spark.sparkContext.master
assert make_session("again") is spark  # it is in use
print(spark.range(3).count())
spark.stop()
"""
    done = python("-c", code)
    assert done.stdout == "3\n"
    # Java itself prints this one before any of our settings is read.
    said = [line for line in done.stderr.splitlines() if "Using incubator modules" not in line]
    assert said == []


@pytest.mark.parametrize("runs", [False, True])
def test_imports_are_made_behind_the_start_of_the_jvms_process_and_for_none_that_runs(monkeypatch, runs):
    told: list[str] = []

    def fails() -> None:
        told.append("fails")
        raise ImportError("no such module")

    monkeypatch.setattr(jvm_start, "_waiting", [lambda: told.append("imported"), fails])
    monkeypatch.setattr(SparkContext, "_gateway", object() if runs else None)
    monkeypatch.setattr(java_gateway, "Popen", lambda *_, **__: told.append("started"))
    start = java_gateway.Popen
    with jvm_start.importing_during_jvm_start():
        assert told == []
        java_gateway.Popen(["spark-submit"])
        java_gateway.Popen(["spark-submit"])
    assert told == (["started", "started"] if runs else ["started", "fails", "imported", "started"])
    assert java_gateway.Popen is start


@pytest.mark.parametrize(
    ("conf", "value"),
    [
        ("spark.sql.extensions", ""),
        ("spark.sql.extensions", "org.example.Other"),
        ("spark.sql.catalog.spark_catalog", "org.example.Other"),
        ("spark.sql.catalog.spark_catalog", None),
    ],
)
def test_a_session_that_lacks_a_setting_is_refused_by_its_name(spark, conf, value):
    lacking = _View(spark, conf, value)
    with pytest.raises(SparkSessionProblem, match=conf):
        check_session(lacking)


def test_a_fifo_session_is_taken_with_a_warning(spark):
    """As Delta's own configure_spark_with_delta_pip makes it, and managed notebooks: results do not depend on it."""
    with pytest.warns(UserWarning, match=r"spark\.scheduler\.mode is FIFO.*trident\.configure_spark"):
        check_session(_View(spark, "spark.scheduler.mode", "FIFO"))


def test_a_session_whose_workers_are_reached_over_tcp_is_taken_with_a_warning(spark):
    with pytest.warns(UserWarning, match=r"spark\.python\.unix\.domain\.socket\.enabled is not true.*configure_spark"):
        check_session(_View(spark, "spark.python.unix.domain.socket.enabled", "false"))


def test_one_interpreter_may_be_written_in_several_ways(tmp_path, monkeypatch):
    for name in ("one", "other"):
        folder = tmp_path / name
        (folder / "bin").mkdir(parents=True)
        (folder / "pyvenv.cfg").write_text("")
        for interpreter in ("python", "python3"):
            (folder / "bin" / interpreter).symlink_to(os.path.realpath(sys.executable))
    (tmp_path / "linked").symlink_to(tmp_path / "one")
    (tmp_path / "python").symlink_to(tmp_path / "one" / "bin" / "python")  # runs, but not in the environment
    (tmp_path / "deep").mkdir()
    monkeypatch.chdir(tmp_path / "deep")
    one = str(tmp_path / "one")
    ways = [
        f"{one}/bin/python",
        f"{one}/bin/python3",
        f"{one}/../one/bin/python",
        "../one/bin/python",
        str(tmp_path / "linked/bin/python"),
    ]
    for found in ways:
        for own in ways:
            monkeypatch.setattr(sys, "executable", own)
            assert session._same_python(found), (found, own)
            assert not session._same_python(str(tmp_path / "other/bin/python"))
            assert not session._same_python(str(tmp_path / "python"))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert session._same_python(os.path.realpath(tmp_path / "python"))


def test_another_interpreter_for_workers_is_refused(spark, tmp_path, monkeypatch):
    (tmp_path / "python3").symlink_to(sys.executable)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(tmp_path / "python3"))
    with pytest.raises(SparkSessionProblem, match="PYSPARK_PYTHON"):
        check_session(spark)


class _View:
    """The real session, seen with one setting changed."""

    def __init__(self, spark: SparkSession, conf: str, value: str | None) -> None:
        self._spark, self._changed = spark, {conf: value}
        self.conf = self.sparkContext = self

    def __getattr__(self, name: str):
        return getattr(self._spark, name, None) or getattr(self._spark.sparkContext, name)

    def get(self, key: str, default: str | None = None) -> str | None:
        return self._changed.get(key) or default if key in self._changed else self._spark.conf.get(key, default)

    def getConf(self) -> _View:
        return self


# --- what is set ------------------------------------------------------------------------------------


def test_what_the_user_set_is_kept_and_lists_are_added_to(cache, resolver):
    given = {
        "spark.master": "local[4]",
        "spark.ui.enabled": "true",
        "spark.sql.shuffle.partitions": "7",
        "spark.sql.extensions": "org.example.Mine",
        "spark.driver.extraClassPath": "/mine.jar",
        "spark.driver.extraJavaOptions": "-Dlog4j2.configurationFile=mine",
    }
    confs = session_confs(given)
    assert not {"spark.ui.enabled", "spark.sql.shuffle.partitions", "spark.driver.extraJavaOptions"} & set(confs)
    assert confs["spark.sql.extensions"] == f"org.example.Mine,{session.DELTA_EXTENSION}"
    assert confs["spark.driver.extraClassPath"].endswith(os.pathsep + "/mine.jar")
    assert confs["spark.scheduler.mode"] == "FAIR"
    # Twice is as good as once.
    again = session_confs({**given, **confs})
    assert again["spark.sql.extensions"] == confs["spark.sql.extensions"]
    assert again["spark.driver.extraClassPath"] == confs["spark.driver.extraClassPath"]


def test_a_cluster_gets_the_jars_and_none_of_the_settings_for_a_local_disk(cache, resolver):
    confs = session_confs({"spark.master": "spark://host:7077"})
    assert confs["spark.jars"].split(",") == confs["spark.driver.extraClassPath"].split(os.pathsep)
    assert not {"spark.hadoop.fs.file.impl", "spark.driver.host", "spark.sql.shuffle.partitions"} & set(confs)


@pytest.mark.parametrize(
    ("master", "cores"),
    [
        ("local", 1),
        ("local[3]", 3),
        ("local[2, 4]", 2),
        ("local[*]", os.cpu_count()),
        ("local[*,3]", os.cpu_count()),
        ("local-cluster[2,1,1024]", None),
        ("yarn", None),
        (None, None),
    ],
)
def test_the_cores_of_a_master(master, cores):
    assert local_cores(master) == cores


def test_spark_connect_is_refused(monkeypatch):
    with pytest.raises(SparkSessionProblem, match="Spark Connect cannot be used.*found: spark.remote=sc://host/; "):
        configure_spark(SparkSession.builder.config("spark.remote", "sc://host/;token=secret"))
    with pytest.raises(SparkSessionProblem, match="spark.api.mode=connect"):
        configure_spark(SparkSession.builder.config("spark.api.mode", "connect"))
    monkeypatch.setenv("SPARK_REMOTE", "sc://host/;token=secret")
    with pytest.raises(SparkSessionProblem, match="the environment variable SPARK_REMOTE=sc://host/; ") as raised:
        make_session("x")
    assert "secret" not in str(raised.value) and "unset it" in str(raised.value).lower()


def test_what_is_no_session_of_this_framework_is_refused_before_anything_is_asked_of_it():
    # By its name alone: the class itself needs grpcio.
    connect = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    topology = TridentTopology("t")
    topology.new_stream("s", FixedBatchSpout("word string", [[("a",)]])).partition_persist(DeltaAppend("out"))
    with pytest.raises(SparkSessionProblem, match="a session of Spark Connect cannot be used"):
        topology.start(connect)
    with pytest.raises(SparkSessionProblem, match="no Spark session; found: TridentConfig.*start.config="):
        topology.start(TridentConfig())


@pytest.mark.parametrize("found", ["4.1.4", "4.2.1"])
def test_a_spark_of_another_version_than_pyspark_is_refused_by_the_pair(tmp_path, monkeypatch, spark, found):
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / f"spark-core_2.13-{found}.jar").write_bytes(b"jar")
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    pair = rf"Spark {found} \(in {tmp_path} \(SPARK_HOME\)\) and PySpark {pyspark.__version__}"
    with pytest.raises(SparkSessionProblem, match=pair):
        configure_spark(SparkSession.builder)
    report = Report()
    check_machine(report, TridentConfig())
    assert any(f"Spark {found}" in one and "Unset SPARK_HOME" in one for one in report.problems)
    # Only the JVM knows the version of a session that the user has made.
    monkeypatch.setattr(pyspark, "__version__", "4.9.0")
    with pytest.raises(SparkSessionProblem, match=f"Spark {spark.version} .*and PySpark 4.9.0"):
        check_versions(spark)


@pytest.mark.parametrize("found", ["{}", "{}-amzn-1", "{}-SNAPSHOT"])
def test_a_platforms_build_of_the_same_version_is_taken(tmp_path, monkeypatch, found):
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / f"spark-core_2.13-{found.format(pyspark.__version__)}.jar").write_bytes(b"jar")
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    jvm.check_spark_home()


def test_a_jar_of_delta_of_another_version_is_refused(spark, monkeypatch):
    assert jvm._jar_of_delta(spark).endswith(f"delta-spark_4.2_2.13-{metadata.version('delta-spark')}.jar")
    monkeypatch.setattr(jvm, "_jar_of_delta", lambda _: "/opt/spark/jars/delta-spark_4.1_2.13-4.3.1.jar")
    with pytest.raises(SparkSessionProblem, match="found: delta-spark 4.3.1 for Spark 4.1 .*expected: io.delta:delta-"):
        check_versions(spark)


def test_a_spark_that_does_not_start_is_no_error_of_the_framework(monkeypatch):
    def not_made(*_):
        raise PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={})

    monkeypatch.setattr(session, "_made", not_made)
    with pytest.raises(SparkSessionProblem, match="Spark does not start with these settings; found: .*JAVA_GATEWAY"):
        make_session("x")


def test_a_session_in_which_java_cannot_call_python_back_is_refused(monkeypatch, spark):
    monkeypatch.setattr(spark.sparkContext, "_gateway", object())  # py4j's other kind, without pinned threads
    with pytest.raises(SparkSessionProblem, match="PYSPARK_PIN_THREAD"):
        check_session(spark)


def test_without_java_there_is_one_clear_error_and_no_output_of_spark():
    code = """
from trident.spark.session import make_session
from trident.coordinators.errors import JavaProblem
try:
    make_session("x", {})
except JavaProblem as problem:
    print("JavaProblem", problem)
"""
    done = python("-c", code, JAVA_HOME="/nonexistent")
    assert done.stdout.startswith("JavaProblem")
    assert done.stderr == ""
    assert issubclass(JavaProblem, EnvironmentProblem)


# --- the jars -----------------------------------------------------------------------------------------


def test_jars_are_resolved_once_and_then_taken_by_path(cache, resolver):
    first = delta_jars({})
    assert delta_jars({}) == first
    assert len(resolver) == 1
    # Another cache of Spark's is another list.
    delta_jars({"spark.jars.ivy": "/elsewhere"})
    assert len(resolver) == 2


@pytest.mark.parametrize(
    "damage", ["", "{", "[]", "null", '{"schema": 1}', '{"schema": 1, "packages": [], "jars": {}}']
)
def test_a_half_written_list_is_resolved_again(cache, resolver, damage):
    jars = delta_jars({})
    (listed,) = cache.glob("jars-*.json")
    listed.write_text(damage)
    assert delta_jars({}) == jars
    assert len(resolver) == 2
    assert json.loads(listed.read_text())["jars"]


@pytest.mark.parametrize("change", [os.unlink, lambda jar: Path(jar).write_bytes(b"ja")], ids=["gone", "cut short"])
def test_a_jar_that_is_gone_or_cut_short_is_resolved_again(cache, resolver, change):
    change(delta_jars({})[0])
    delta_jars({})
    assert len(resolver) == 2


def test_a_cache_that_cannot_be_written_costs_time_and_nothing_else(tmp_path, resolver, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert delta_jars({}) == delta_jars({})
    assert len(resolver) == 2


@pytest.mark.long
def test_jars_that_cannot_be_had_are_an_error_with_the_resolvers_words(tmp_path, monkeypatch):
    monkeypatch.setattr(jars, "LOCAL_FS_PACKAGE", "org.example.nothing:nothing:0.0.0")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    settings = tmp_path / "ivysettings.xml"
    settings.write_text(
        '<ivysettings><settings defaultResolver="none"/><resolvers>'
        f'<filesystem name="none"><artifact pattern="{tmp_path}/none/[artifact].jar"/></filesystem>'
        "</resolvers></ivysettings>"
    )
    with pytest.raises(EnvironmentProblem, match="nothing") as caught:
        delta_jars({"spark.jars.ivySettings": str(settings), "spark.jars.ivy": str(tmp_path / "ivy")})
    assert "not found" in str(caught.value.found)
    assert not list((tmp_path / "trident").glob("jars-*.json"))


def test_a_session_that_hides_overflows_is_warned_about(spark):
    spark.conf.set("spark.sql.ansi.enabled", "false")
    try:
        with pytest.warns(UserWarning, match="ansi.enabled is false.*set it to true"):
            check_session(spark)
    finally:
        spark.conf.unset("spark.sql.ansi.enabled")


DESCRIPTORS = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (300, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
from trident.errors import EnvironmentProblem
from trident.spark.session import make_session
try:
    make_session("few", {"spark.master": "local[1]"})
except EnvironmentProblem as problem:
    print(problem)
"""


def test_too_few_file_descriptors_are_told_before_the_jvm_dies_of_them():
    done = python("-c", DESCRIPTORS)
    assert "found: ulimit -n is 300; expected: at least 512" in done.stdout, done.stderr[-2000:]
    assert "ulimit -n 4096" in done.stdout


def test_settings_that_come_too_late_are_named(spark, monkeypatch):
    monkeypatch.setattr("trident.spark.session._default_settings", {})
    session.set_default_settings({"spark.executor.memory": "9g"})
    with pytest.warns(UserWarning, match="without spark.executor.memory, spark.master, spark.driver.memory"):
        assert make_session("late", {"spark.master": "local[7]", "spark.driver.memory": "9g"}) is not None
    session.set_default_settings({})
