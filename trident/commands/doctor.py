"""``trident doctor``: what this machine has, and with ``--cluster`` what each host of the Spark cluster has."""

from __future__ import annotations

import errno
import os
import platform
import re
import shutil
import socket
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from importlib import metadata

from trident.config import TridentConfig
from trident.config_kinds import listen_address
from trident.coordinators.embedded import EmbeddedZooKeeper
from trident.coordinators.errors import ConfigError, EnvironmentProblem, TridentError, ZooKeeperUnreachable
from trident.coordinators.processes import find_java
from trident.running.cluster_checks import probe_cluster
from trident.running.executor_probe import LIBRARIES, LIBRARIES_OF_COPIES, Found
from trident.running.zookeeper import open_zookeeper, server_folder
from trident.spark.jars import RESOLVER_CONFS, delta_jars, hostname_problem, known_delta_jars
from trident.spark.jvm import check_spark_home
from trident.spark.session import check_descriptors, make_session, spark_settings
from trident.spark.stores import configure_by_session
from trident.states.core import storage
from trident.states.core.addresses import is_local_master
from trident.states.core.place import Place
from trident.states.core.storage import storage_problem_of

# Looks at what a topology needs of this machine: Python, packages, Java, jars, memory, descriptors, ports.


_PACKAGES = ("trident-spark", "pyspark", "delta-spark", *LIBRARIES, *LIBRARIES_OF_COPIES)
_MEMORY_BYTES_LEAST = 2 << 30
_YEAR_LEAST = 2026  # of this release
_UI = "spark.ui.enabled"


@dataclass
class Report:
    """Lines to be printed; ``problems``, with which no topology runs; ``notes``, with which one does."""

    lines: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def say(self, what: str, text: str) -> None:
        self.lines.append(f"{what:<12} {text}")

    def problem(self, what: str, text: str, problem: object) -> None:
        """A line that leads to the problem, which says what to do."""
        self.say(what, f"{text}{': ' if text else ''}see below")
        self.problems.append(str(problem))

    def text(self) -> str:
        output = list(self.lines)
        if self.problems:
            output += ["", "Problems:", *(f"- {one}" for one in dict.fromkeys(self.problems))]
        if self.notes:
            output += ["", "Worth knowing:", *(f"- {one}" for one in dict.fromkeys(self.notes))]
        return "\n".join(output if self.problems else [*output, "", "No problem found."])


def nearest(path: "str | os.PathLike[str]", is_there: Callable[[str], bool] = os.path.lexists) -> str:
    """The path, or the nearest one above it that is there."""
    found = os.fspath(path)
    while not is_there(found) and os.path.dirname(found) != found:
        found = os.path.dirname(found)
    return found


def size(found: int) -> str:
    return f"{found / (1 << 30):.1f} GB"


def check_machine(report: Report, config: TridentConfig) -> bool:
    """Tells whether a JVM starts with the installed Java, at a port of this machine."""
    report.say("Python", f"{platform.python_version()} ({sys.executable})")
    _packages(report)
    _spark(report)
    works = _java(report)
    if works:
        _jars(report, config)
    _limits(report)
    _scratch(report, config)
    _clock(report)
    return _ports(report, config) and works


def _packages(report: Report) -> None:
    report.say("packages", ", ".join(f"{name} {_version(name) or '(missing)'}" for name in _PACKAGES))
    missing = [name for name in _PACKAGES if _version(name) is None and name != "trident-spark"]
    if missing:
        report.problems.append(f"packages are missing: {', '.join(missing)}. Run: pip install {' '.join(missing)}")
    for wanted in metadata.requires("trident-spark") or [] if _version("trident-spark") else []:
        exact = re.match(r"([\w-]+)(?:\[\w+\])?==([\w.]+)", wanted)
        found = exact and _version(exact[1])
        if exact and found and found != exact[2]:
            report.problems.append(
                f"{exact[1]} has another version; found: {found}; expected: exactly {exact[2]}. "
                f"Run: pip install '{exact[1]}=={exact[2]}'"
            )


def _spark(report: Report) -> None:
    try:
        check_spark_home()
    except EnvironmentProblem as problem:
        report.problem("Spark", "", problem)
    if remote := os.environ.get("SPARK_REMOTE"):
        report.problems.append(
            f"SPARK_REMOTE={remote.partition(';')[0]} is set: PySpark would make a session of Spark Connect, which has "
            "no JVM at hand. Unset it for this framework's programs"
        )


def _version(package: str) -> str | None:
    with suppress(metadata.PackageNotFoundError):
        return metadata.version(package)
    return None


def _java(report: Report) -> bool:
    try:
        java, major = find_java()
    except EnvironmentProblem as problem:
        report.problem("Java", "", problem)
        return False
    report.say("Java", f"{major} ({java})")
    return True


def _jars(report: Report, config: TridentConfig) -> None:
    """Delta's jars; downloaded as a first start does where they are not there."""
    settings = spark_settings(config)
    resolver = {key: settings[key] for key in RESOLVER_CONFS if key in settings}
    there = known_delta_jars(resolver)
    began = time.monotonic()
    try:
        jars = there or delta_jars(resolver)
    except (EnvironmentProblem, OSError) as problem:
        report.problem("jars", "of Delta Lake", problem)
        return
    how = "in the cache" if there else f"downloaded in {time.monotonic() - began:.0f} s, and in the cache now"
    report.say("jars", f"{len(jars)} of Delta Lake, {how} ({os.path.dirname(jars[0])})")


def _limits(report: Report) -> None:
    try:
        check_descriptors()
    except EnvironmentProblem as problem:
        report.problem("files", "", problem)
    memory = _memory()
    if memory is None:
        return
    report.say("memory", f"{size(memory)} available, {os.cpu_count()} cores")
    if memory < _MEMORY_BYTES_LEAST:
        report.notes.append(
            f"only {size(memory)} of memory is available. Spark's JVM takes 1 GB (driver_memory), Python's workers and "
            "the MERGE some hundred MB each: give the machine, or the container, 2 GB or more"
        )


def _scratch(report: Report, config: TridentConfig) -> None:
    """The folders in which Python, Spark's tasks and the MERGE keep files while they run."""
    of_spark = spark_settings(config).get("spark.local.dir") or os.environ.get("SPARK_LOCAL_DIRS", "")
    for folder in dict.fromkeys((tempfile.tempdir or "", *filter(None, of_spark.split(",")))):
        try:
            with tempfile.TemporaryFile(dir=nearest(os.path.abspath(folder)) if folder else None) as file:
                file.write(b"probe")
                file.flush()
        except OSError as error:
            report.problem(
                "temporary",
                folder,
                f"no temporary file can be written{' in ' + folder if folder else ''}; found: {error}; expected: a "
                "folder with some room, in which this process may make files. Set TMPDIR to another one, or "
                "spark.local.dir where Spark has one of its own",
            )


def _memory() -> int | None:
    """Bytes that are available, in this container or else on this machine; None: it is not known."""
    with suppress(OSError, ValueError, StopIteration):
        with open("/proc/meminfo", encoding="ascii") as lines:
            found = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable"))
        with suppress(OSError, ValueError):  # a container without a bound has "max" there
            with open("/sys/fs/cgroup/memory.max", encoding="ascii") as bound:
                with open("/sys/fs/cgroup/memory.current", encoding="ascii") as used:
                    found = min(found, int(bound.read()) - int(used.read()))
        return found
    return None


def _clock(report: Report) -> None:
    now = time.gmtime()
    report.say("clock", time.strftime("%Y-%m-%d %H:%M:%S UTC", now))
    if now.tm_year < _YEAR_LEAST:
        report.problems.append(
            f"this machine's clock is wrong; found: the year {now.tm_year}. Set it, by NTP for example: certificates "
            "of Maven, stores and servers count as not yet valid"
        )


def _ports(report: Report, config: TridentConfig) -> bool:
    """Python and the JVM talk over the loopback interface; returns whether that is possible."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname()[:2], timeout=5).close()
    except OSError as error:
        report.problem(
            "ports",
            "",
            f"this machine does not reach itself at 127.0.0.1; found: {error}. Python, the JVM and the embedded "
            "ZooKeeper talk there: bring the interface lo up, and let a firewall leave it alone",
        )
        return False
    unknown = hostname_problem()
    if unknown and not is_local_master(spark_settings(config)["spark.master"]):
        report.problems.append(unknown)
    output = "127.0.0.1 answers"
    if config.http:
        output += f", http={config.http} {_http(report, config.http)}"
    report.say("ports", output)
    if spark_settings(config).get(_UI) == "true":
        report.notes.append("Spark's web pages are on (spark.ui.enabled): at every address, without a password")
    return True


def _http(report: Report, address: str) -> str:
    from trident.drpc.http import AddressInUse, listen  # time, where there is an address

    try:
        listen(address).close()
        return "is free"
    except AddressInUse:
        report.notes.append(
            f"another process listens at http={address}. If it is this topology's leader all is well: a standby takes "
            f"the address when that has gone. Else set http to another port than {listen_address(address)[1]}"
        )
        return "is taken"
    except TridentError as problem:
        report.problems.append(str(problem))
        return "cannot be listened at"


# Looks at what a topology needs of its warehouse: files that one writer gets, that last, space, a clock.


_FREE_BYTES_LEAST, _FREE_BYTES_GOOD = 256 << 20, 5 << 30
_FLUSHES = 5
_FLUSH_SECS_GOOD = 0.05
_CLOCK_SECS_MAX = 60.0
_SHARED = ("nfs", "nfs4", "cifs", "smb3", "ceph", "glusterfs", "lustre", "gpfs", "beegfs", "9p", "virtiofs")
_LOST = ("tmpfs", "ramfs", "overlay")


def check_warehouse(report: Report, warehouse: Place) -> None:
    """Makes a folder wherever a start would write first, with some small files in it, and removes all that again."""
    try:
        there = storage.is_folder(warehouse)
        if not there and storage.exists(warehouse):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(warehouse))
        found = [] if there else ["not there yet: a start makes it"]
        if there or not str(warehouse).startswith("hdfs:"):  # where the folder would stay
            found.append(_tried_where_it_is_written(report, warehouse))
        report.say("warehouse", f"{warehouse} ({'; '.join(found)})")
    except OSError as error:
        report.problem("warehouse", str(warehouse), storage_problem_of(error, warehouse) or error)
        return
    if warehouse.is_local:
        _disk(report, nearest(warehouse, os.path.isdir))


def _tried_where_it_is_written(report: Report, warehouse: Place) -> str:
    """Tries the warehouse and, where it is there, the framework's own folder in it, which may be another user's."""
    if not warehouse.is_local:
        return _tried(report, warehouse, warehouse)
    output = ""
    for above in dict.fromkeys((nearest(warehouse / "_trident"), nearest(warehouse))):
        folder = Place(above) / f".trident-doctor-{uuid.uuid4().hex}"
        storage.make_path(folder)
        try:
            output = _tried(report, warehouse, folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return output


def _tried(report: Report, warehouse: Place, folder: Place) -> str:
    """Writes and reads a file in a folder, lets four writers make one, and times what is flushed to the disk."""
    probe = folder / f".trident-doctor-{uuid.uuid4().hex}"
    try:
        storage.write(probe, b"probe")
        if storage.read(probe) != b"probe":
            report.problems.append(
                f"the warehouse {warehouse} gives back other bytes than were written: use another one"
            )
        found = storage.stat(probe)
        seconds = []
        for number in range(_FLUSHES):
            began = time.monotonic()
            storage.write(probe, b"%d" % number)
            seconds.append(time.monotonic() - began)
        exclusive = _exclusive(folder)
    finally:
        storage.try_delete(probe)
    apart = 0.0 if found is None else abs(found.mtime_ns / 1e9 - time.time())
    if apart > _CLOCK_SECS_MAX + sum(seconds):
        report.notes.append(
            f"the clock of the warehouse and this machine's are {apart:.0f} s apart. No result depends on it, but "
            "times in logs and tables do, and a store may refuse: set both, by NTP for example"
        )
    if not exclusive:
        report.problems.append(
            f"the warehouse {warehouse} lets two writers make the same file: two coordinators could both win a table "
            "version; expected: that one of them wins, as on a local disk, NFS 4, S3 and HDFS. Use another place, or "
            "set single_writer=true, if you vouch for there never being two coordinators at once"
        )
    flush = sorted(seconds)[_FLUSHES // 2]
    if flush > _FLUSH_SECS_GOOD and warehouse.is_local:
        report.notes.append(
            f"writing a small file durably takes {flush * 1000:.0f} ms in the warehouse, and a transaction waits for "
            "some: a disk with a cache that survives a loss of power is faster"
        )
    won = "one of four writers wins" if exclusive else "two writers win"
    return f"writable, {won}, a durable write takes {flush * 1000:.1f} ms"


def _exclusive(folder: Place) -> bool:
    try:
        return storage.is_exclusive(folder)
    except storage.NotExclusive:
        return False


def _disk(report: Report, folder: str) -> None:
    free, kind = shutil.disk_usage(folder).free, _file_system(folder)
    own = "this machine's own, as its kind tells (a standby on another machine needs a warehouse that both share)"
    shared = "shared with other machines" if kind in _SHARED else own
    report.say("disk", f"{size(free)} free" + (f", {kind}: {shared}" if kind else ""))
    inodes = os.statvfs(folder)
    if free < _FREE_BYTES_LEAST or (inodes.f_files and not inodes.f_favail):
        what = f"{size(free)} free" if free < _FREE_BYTES_LEAST else "no file more can be made (df -i)"
        report.problems.append(
            f"the disk of the warehouse is full; found: {what}; expected: {size(_FREE_BYTES_LEAST)} at the very least. "
            "Make room: delete what is not needed, VACUUM the tables, or set warehouse to a larger disk"
        )
    elif free < _FREE_BYTES_GOOD:
        report.notes.append(
            f"the disk of the warehouse has {size(free)} left. Files that MERGEs replace stay until a VACUUM: watch it"
        )
    if kind in _LOST:
        report.notes.append(
            f"the warehouse lies on a {kind}, which goes with this "
            + (
                "container: mount a volume for it"
                if kind == "overlay"
                else "machine's memory: choose a folder on a disk"
            )
        )


def _file_system(folder: str) -> str:
    """The kind of the file system, as Linux mounts name it; "" elsewhere."""
    best = ("", "")
    try:
        with open("/proc/self/mounts", encoding="utf-8", errors="replace") as mounts:
            for line in mounts:
                _, place, kind = line.split()[:3]
                place = place.replace("\\040", " ")
                inside = os.path.realpath(folder) == place or os.path.realpath(folder).startswith(
                    place.rstrip("/") + "/"
                )
                if inside and len(place) >= len(best[0]):
                    best = (place, kind)
    except OSError:
        pass
    return best[1]


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
            "the Spark master is this machine: there is no cluster to check",
            found=f"{master} ({config.origin('spark_master')})",
            expected="a cluster's, such as spark://host:7077",
            action="name it: --set spark_master=spark://host:7077",
        )
    report = Report()
    java_works = check_machine(report, config)
    warehouse = config.warehouse_place()
    check_warehouse(report, warehouse)
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
    output = "embedded: this machine's own server"
    try:
        running = EmbeddedZooKeeper.status(server_folder(warehouse))
        if running:
            report.say("ZooKeeper", f"{output}, which runs at 127.0.0.1:{running.port}")
        elif not java_works:
            report.say("ZooKeeper", f"{output}; not tried, see below")
        else:
            began = time.monotonic()
            with tempfile.TemporaryDirectory(prefix="trident-doctor-") as folder:
                EmbeddedZooKeeper.ensure(folder)
                took = time.monotonic() - began
                EmbeddedZooKeeper.stop(folder)
            report.say("ZooKeeper", f"{output}; one that was tried answered after {took:.1f} s")
    except (TridentError, OSError) as problem:
        report.problem("ZooKeeper", output, problem)


def _cluster(report: Report, config: TridentConfig, warehouse: Place) -> None:
    storage.make_warehouse(warehouse)
    spark = make_session("trident doctor", spark_settings(config))
    try:
        configure_by_session(warehouse, spark)  # what it has of credentials goes with the tasks, as at a start
        probed = probe_cluster(spark, warehouse, config.python_archive)
        report.say("cluster", f"{spark.sparkContext.master}: {len(probed.executors)} executors answered")
    except EnvironmentProblem as problem:
        report.problems.append(str(problem))
        return
    finally:
        spark.stop()
    for one in probed.executors:
        report.lines += ["", *_host(one)]
    report.problems += dict.fromkeys(str(problem) for problem in probed.problems)


def _host(found: Found) -> Iterator[str]:
    """The lines of one executor."""
    yield f"{found['host']:<12} Python {'.'.join(map(str, found['python']))} ({found['executable']})"
    packages = [f"{name} {found['versions'].get(name, '(missing)')}" for name in (*LIBRARIES, *LIBRARIES_OF_COPIES)]
    yield f"{'':<12} {', '.join(packages)}"
    for name in [*LIBRARIES_OF_COPIES]:
        if name in found["missing"]:
            yield f"{'':<12} without {name} it has no local copies of states: look-ups read the tables there"
    yield f"{'':<12} framework: {found['framework'] or 'missing'}"
    yield f"{'':<12} warehouse: {found['error'] or ('read and written' if found['wrote'] else 'not checked')}"
    yield f"{'':<12} temporary folder: {found['scratch']} ({size(found['scratch_free'])} free)"
