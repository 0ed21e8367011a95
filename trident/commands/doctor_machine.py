"""Looks at what a topology needs of this machine: Python, packages, Java, jars, memory, descriptors, ports."""

from __future__ import annotations

import os
import platform
import re
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import metadata

from trident.config import TridentConfig
from trident.config_kinds import listen_address
from trident.coordinators.errors import EnvironmentProblem, TridentError
from trident.coordinators.java import find_java
from trident.running.executor_look import LIBRARIES, LIBRARIES_OF_COPIES
from trident.spark.jars import RESOLVER_CONFS, delta_jars, known_delta_jars
from trident.spark.own_host import own_host_problem
from trident.spark.session import check_descriptors, spark_settings
from trident.spark.versions import check_spark_home
from trident.states.core.host_bound import is_local_master

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
        told = list(self.lines)
        if self.problems:
            told += ["", "Problems:", *(f"- {one}" for one in dict.fromkeys(self.problems))]
        if self.notes:
            told += ["", "Worth knowing:", *(f"- {one}" for one in dict.fromkeys(self.notes))]
        return "\n".join(told if self.problems else [*told, "", "No problem found."])


def nearest(path: "str | os.PathLike[str]", is_there: Callable[[str], bool] = os.path.lexists) -> str:
    """The path, or the nearest one above it that is there."""
    found = os.fspath(path)
    while not is_there(found) and os.path.dirname(found) != found:
        found = os.path.dirname(found)
    return found


def size(found: int) -> str:
    return f"{found / (1 << 30):.1f} GB"


def look_at_machine(report: Report, config: TridentConfig) -> bool:
    """Returns whether there is a Java with which a JVM starts, at a port of this machine's own."""
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
    unknown = own_host_problem()
    if unknown and not is_local_master(spark_settings(config)["spark.master"]):
        report.problems.append(unknown)
    told = "127.0.0.1 answers"
    if config.http:
        told += f", http={config.http} {_http(report, config.http)}"
    report.say("ports", told)
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
