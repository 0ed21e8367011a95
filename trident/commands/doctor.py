"""``trident doctor``: what this machine has, and with ``--cluster`` what each host of the Spark cluster has."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import closing

from trident.commands.doctor_machine import Report, look_at_machine, size
from trident.commands.doctor_warehouse import look_at_warehouse
from trident.config import TridentConfig
from trident.coordinators.embedded import EmbeddedZooKeeper
from trident.coordinators.errors import ConfigError, EnvironmentProblem, TridentError, ZooKeeperUnreachable
from trident.running.cluster_probe import look_at_cluster
from trident.running.connecting import open_zookeeper, server_folder
from trident.running.executor_look import LIBRARIES, LIBRARIES_OF_COPIES, Found
from trident.spark.session import make_session, spark_settings
from trident.spark.stores import configure_by_session
from trident.states.core import storage
from trident.states.core.host_bound import is_local_master
from trident.states.core.place import Place

_CLOCK_SECS_MAX = 60.0


def doctor(config: TridentConfig, cluster: bool) -> Report:
    """Looks at this machine, and at a cluster's hosts where that is asked: a start would find the same.

    The folder ``_trident`` of the warehouse is made with ``cluster``, as a start makes it, ZooKeeper's root znode
    by connecting, and Delta's jars are downloaded where they are missing. Nothing else stays.

    Raises:
        ConfigError: ``cluster`` with a local master.
    """
    master = spark_settings(config)["spark.master"]
    if cluster and is_local_master(master):
        raise ConfigError(
            "the Spark master is this machine: there is no cluster to look at",
            found=f"{master} ({config.origin('spark_master')})",
            expected="a cluster's, such as spark://host:7077",
            action="name it: --set spark_master=spark://host:7077",
        )
    report = Report()
    java_works = look_at_machine(report, config)
    warehouse = config.warehouse_place()
    look_at_warehouse(report, warehouse)
    _zookeeper(report, config, warehouse, master, java_works)
    if cluster:
        _cluster(report, config, warehouse)
    return report


def _zookeeper(report: Report, config: TridentConfig, warehouse: Place, master: str, java_works: bool) -> None:
    if config.zookeeper == "embedded":
        _embedded(report, warehouse, master, java_works)
        return
    try:
        began = time.monotonic()
        with closing(open_zookeeper(config, warehouse)) as zk:
            took = time.monotonic() - began
            apart = abs(zk.server_time_ms() / 1000 - time.time())
        report.say("ZooKeeper", f"{config.zookeeper} answers, in {took * 1000:.0f} ms")
        if apart > _CLOCK_SECS_MAX:
            report.notes.append(
                f"ZooKeeper's clock and this machine's are {apart:.0f} s apart. No result depends on it, but what logs "
                "say of times does: set both, by NTP for example"
            )
    except (ZooKeeperUnreachable, TridentError) as problem:
        report.problem("ZooKeeper", config.zookeeper, problem)


def _embedded(report: Report, warehouse: Place, master: str, java_works: bool) -> None:
    """The warehouse's own server; where it does not run, another one is started for a moment, in a temporary folder."""
    if not is_local_master(master):
        report.problems.append(
            f"the embedded ZooKeeper serves one machine, and the Spark master is {master}: name an ensemble, "
            "zookeeper=host:port,host:port"
        )
    told = "embedded: this machine's own server"
    try:
        running = EmbeddedZooKeeper.status(server_folder(warehouse))
        if running:
            report.say("ZooKeeper", f"{told}, which runs at 127.0.0.1:{running.port}")
        elif not java_works:
            report.say("ZooKeeper", f"{told}; not tried, see below")
        else:
            began = time.monotonic()
            with tempfile.TemporaryDirectory(prefix="trident-doctor-") as folder:
                EmbeddedZooKeeper.ensure(folder)
                took = time.monotonic() - began
                EmbeddedZooKeeper.stop(folder)
            report.say("ZooKeeper", f"{told}; one that was tried answered after {took:.1f} s")
    except (TridentError, OSError) as problem:
        report.problem("ZooKeeper", told, problem)


def _cluster(report: Report, config: TridentConfig, warehouse: Place) -> None:
    storage.make_warehouse(warehouse)
    spark = make_session("trident doctor", spark_settings(config))
    try:
        configure_by_session(warehouse, spark)  # what it has of credentials goes with the tasks, as at a start
        looked = look_at_cluster(spark, warehouse, config.python_archive)
        report.say("cluster", f"{spark.sparkContext.master}: {len(looked.executors)} executors answered")
    except EnvironmentProblem as problem:
        report.problems.append(str(problem))
        return
    finally:
        spark.stop()
    for one in looked.executors:
        report.lines += ["", *_host(one)]
    report.problems += dict.fromkeys(str(problem) for problem in looked.problems)


def _host(found: Found) -> Iterator[str]:
    """The lines of one executor."""
    yield f"{found['host']:<12} Python {'.'.join(map(str, found['python']))} ({found['executable']})"
    packages = [f"{name} {found['versions'].get(name, '(missing)')}" for name in (*LIBRARIES, *LIBRARIES_OF_COPIES)]
    yield f"{'':<12} {', '.join(packages)}"
    for name in [*LIBRARIES_OF_COPIES]:
        if name in found["missing"]:
            yield f"{'':<12} without {name} it has no local copies of states: look-ups read the tables there"
    yield f"{'':<12} framework: {found['framework'] or 'missing'}"
    yield f"{'':<12} warehouse: {found['error'] or ('read and written' if found['wrote'] else 'not looked at')}"
    yield f"{'':<12} temporary folder: {found['scratch']} ({size(found['scratch_free'])} free)"
