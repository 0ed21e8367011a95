"""``trident doctor``: what this machine has, and with ``--cluster`` what each host of the Spark cluster has."""

from __future__ import annotations

import platform
import shutil
import sys
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import metadata

from trident.config import TridentConfig
from trident.coordinators.errors import ConfigError, EnvironmentProblem, TridentError, ZooKeeperUnreachable
from trident.coordinators.java import find_java
from trident.running.cluster_probe import look_at_cluster
from trident.running.connecting import open_zookeeper
from trident.running.executor_look import LIBRARIES, LIBRARIES_OF_COPIES, Found
from trident.spark.session import make_session, spark_settings
from trident.states.core import storage
from trident.states.core.host_bound import is_local_master
from trident.states.core.place import Place
from trident.states.core.store_problems import told_by_a_store

_DRIVERS = ("trident-spark", "pyspark", "delta-spark", *LIBRARIES, *LIBRARIES_OF_COPIES)


@dataclass
class Report:
    """Lines to be printed, and what is wrong."""

    lines: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def say(self, what: str, text: str) -> None:
        self.lines.append(f"{what:<12} {text}")

    def text(self) -> str:
        wrong = (
            ["", "Problems:", *(f"- {one}" for one in self.problems)] if self.problems else ["", "No problem found."]
        )
        return "\n".join([*self.lines, *wrong])


def doctor(config: TridentConfig, cluster: bool) -> Report:
    """Looks at this machine, and at a cluster's hosts where that is asked: a start would find the same.

    The folder ``_trident`` of the warehouse is made with ``cluster``, as a start makes it, and ZooKeeper's root znode
    by connecting. Nothing else stays.

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
    _this_machine(report)
    warehouse = config.warehouse_place()
    _warehouse(report, warehouse)
    _zookeeper(report, config, warehouse, master)
    if cluster:
        _cluster(report, config, warehouse)
    return report


def _this_machine(report: Report) -> None:
    report.say("Python", f"{platform.python_version()} ({sys.executable})")
    report.say("packages", ", ".join(f"{name} {_version(name)}" for name in _DRIVERS))
    try:
        java, major = find_java()
        report.say("Java", f"{major} ({java})")
    except EnvironmentProblem as problem:
        report.say("Java", "see below")
        report.problems.append(str(problem))


def _version(package: str) -> str:
    with suppress(metadata.PackageNotFoundError):
        return metadata.version(package)
    return "(missing)"


def _warehouse(report: Report, warehouse: Place) -> None:
    try:
        there = storage.is_folder(warehouse)
    except OSError as problem:
        report.say("warehouse", f"{warehouse} (see below)")
        report.problems.append(str(told_by_a_store(problem) or problem))
        return
    if not there:
        report.say("warehouse", f"{warehouse} (not there yet: a start makes it)")
        return
    probe = warehouse / f".trident-doctor-{uuid.uuid4().hex}"
    try:
        storage.write(probe, b"probe")
        written = storage.read(probe) == b"probe"
    except OSError as problem:
        report.say("warehouse", f"{warehouse} (see below)")
        told = told_by_a_store(problem) or f"the warehouse {warehouse} cannot be written to: {problem}"
        report.problems.append(str(told))
        return
    finally:
        storage.try_delete(probe)
    free = f", {_size(shutil.disk_usage(warehouse).free)} free" if warehouse.is_local else ""
    report.say("warehouse", f"{warehouse} ({'writable' if written else 'reads back other bytes'}{free})")


def _zookeeper(report: Report, config: TridentConfig, warehouse: Place, master: str) -> None:
    if config.zookeeper == "embedded":
        report.say("ZooKeeper", "embedded: this machine's own server")
        if not is_local_master(master):
            report.problems.append(
                f"the embedded ZooKeeper serves one machine, and the Spark master is {master}: name an ensemble, "
                "zookeeper=host:port,host:port"
            )
        return
    try:
        open_zookeeper(config, warehouse).close()
        report.say("ZooKeeper", f"{config.zookeeper} answers")
    except (ZooKeeperUnreachable, TridentError) as problem:
        report.say("ZooKeeper", f"{config.zookeeper} (see below)")
        report.problems.append(str(problem))


def _cluster(report: Report, config: TridentConfig, warehouse: Place) -> None:
    storage.make_warehouse(warehouse)
    spark = make_session("trident doctor", spark_settings(config))
    try:
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
    yield f"{'':<12} temporary folder: {found['scratch']} ({_size(found['scratch_free'])} free)"


def _size(size: int) -> str:
    return f"{size / (1 << 30):.1f} GB"
