"""Class-data sharing: an archive of Spark's classes, from which the JVMs of later processes start with half the work.

The JDK maps an archive of classes that were loaded and checked once. The first process that runs a topology has its JVM
write a list of the classes that it loads; a process beside it, of the lowest priority
(``trident/spark/class_archive_maker.py``), makes an archive of them in the user's cache folder. Archives are
disposable, and each is named by all that it depends on: the Java, the jars and the options of the JVM.

A JVM that an archive does not fit starts as if there were none. An archive is put in its place whole, with its size and
checksum beside it, which the first start after a boot of the machine compares.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import logging
import os
import re
import stat
import subprocess
import sys
import threading
import time
import uuid
import zlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pyspark import SparkContext
from pyspark.find_spark_home import _find_spark_home
from pyspark.sql import SparkSession

from trident.coordinators.processes import boot_id, java_identity, without_secrets
from trident.coordinators.stored_json import Unreadable, as_record, parse_stored
from trident.spark.jars import cache_folder
from trident.states.core import storage
from trident.states.core.imports import import_path

log = logging.getLogger(__name__)

SETTING = "spark.trident.classArchive"
# A topology's first minute is when its user looks; what ends sooner has its archive made as it ends.
MAKE_AFTER_SECS = 60.0
# Why no archive could be made is looked at again after so long.
_REFUSED_SECS = 7 * 86_400.0
_SCHEMA = 1
_VARIABLES = ("SPARK_SUBMIT_OPTS", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")
_OPTIONS = ("spark.driver.defaultJavaOptions", "spark.driver.extraJavaOptions")
# Options with which a user has decided about class-data sharing.
_DECIDED = ("SharedArchiveFile", "SharedClassListFile", "DumpLoadedClassList", "ArchiveClassesAtExit", "-Xshare")
_QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"
# From here on the JVM's references are wide, which an archive of others does not fit.
_WIDE_HEAP_BYTES = 31 << 30
# The JVM that makes an archive takes as much; a container that has less would have a process of its own killed.
_ROOM_BYTES = 1 << 30
_CGROUP = Path("/sys/fs/cgroup")
# A list of classes that is so old belongs to no process that will make an archive of it.
_LIST_SECS = 86_400.0
# By the path that it is given: Python's own would begin with the working folder, whose files are the user's.
_MAKER = (
    "import sys; sys.path[:] = sys.argv[2:]; "
    "from trident.spark.class_archive_maker import main; sys.exit(main(sys.argv[1]))"
)
_UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


@dataclass(frozen=True)
class ArchiveFacts:
    """Lies beside an archive: how it was when it was made, and in which boot it was last found to be so."""

    size: int
    crc32: int
    boot: str


@dataclass(frozen=True)
class Recording:
    """A JVM of this process that writes the list of its classes.

    Attributes:
        classes: the list.
        archive: what is to be made of it.
    """

    classes: Path
    archive: Path


@dataclass(frozen=True)
class MakerJob:
    """Tells the process that makes an archive: paths, and the Java with the options that matter to it."""

    classes: str
    archive: str
    java: str
    options: list[str]
    class_path: str


_recording: Recording | None = None
_given: Path | None = None  # the archive that this process's JVM was told to use
_asked_to_make = False
_lock = threading.Lock()


def jvm_options(given: Mapping[str, str], jars: Iterable[str]) -> str:
    """The options with which a JVM that is about to start uses the archive, or writes the list for one; or none.

    None where the user has turned it off or decides about it, where the JVM runs already, and where there is no cache
    folder to write to.

    Args:
        given: the session's settings.
        jars: what is put on its class path before Spark's own jars.
    """
    global _recording, _given
    options = [*(given.get(name, "") for name in _OPTIONS), *(os.environ.get(name, "") for name in _VARIABLES)]
    if (
        given.get(SETTING, "true").lower() != "true"
        or any(decided in text for text in options for decided in _DECIDED)
        or SparkContext._gateway is not None
        or "PYSPARK_GATEWAY_PORT" in os.environ
    ):
        return ""
    try:
        folder = cache_folder() / "classes"
        storage.make_folder(folder, folder.parent)
        if os.lstat(folder).st_uid == os.getuid() and not folder.is_symlink():
            folder.chmod(0o700)  # what others have put there until now is not this user's
        if not is_own(folder):
            log.warning("Spark's classes are not archived: %s is not this user's folder", folder)
            return ""
        archive = folder / f"{_key(given, options, jars)}.jsa"
        if set(str(archive)) & set(f'"{os.pathsep}%'):
            return ""  # these mean something else in the option
        if is_whole(archive):
            os.utime(archive)  # those that were not used for long are removed
            _given = archive
            return f'"-XX:SharedArchiveFile={archive}" {_QUIET}'
        if _is_refused(archive):
            return ""
        _delete_old_lists(folder)
    except OSError as error:
        log.info("Spark's classes are not archived: %s", error)
        return ""
    _recording = Recording(archive.with_name(f"{archive.stem}-{os.getpid()}-{uuid.uuid4().hex[:6]}.classes"), archive)
    return f'"-XX:DumpLoadedClassList={_recording.classes}"'


def _key(given: Mapping[str, str], options: list[str], jars: Iterable[str]) -> str:
    """Names all that the JVM compares before it takes an archive, so that each combination has its own."""
    spark = Path(_find_spark_home(), "jars")
    files = [*map(Path, jars), *sorted(spark.iterdir())]
    stats = [(str(path), found.st_size, found.st_mtime_ns) for path in files for found in [path.stat()]]
    machine = [one for text in options for one in text.split() if one.startswith(("-X", "--", "-javaagent"))]
    conf = os.environ.get("SPARK_CONF_DIR", ""), given.get("spark.driver.extraClassPath", "")
    facts = [_SCHEMA, java_identity(), stats, machine, conf, is_wide(given.get("spark.driver.memory", "1g"))]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:20]


def is_wide(memory: str) -> bool:
    """Tells whether a heap of this size, as Spark writes sizes, has wide references."""
    found = re.fullmatch(r"(\d+)([kmgt]?)b?", memory.strip().lower())
    return found is not None and int(found[1]) * _UNITS.get(found[2], 1 << 20) >= _WIDE_HEAP_BYTES


# --- archives in the cache folder ------------------------------------------------------------------


def facts_path(archive: Path) -> Path:
    return archive.with_suffix(".json")


def refusal_path(archive: Path) -> Path:
    """A file that says why no archive of this name could be made."""
    return archive.with_suffix(".refused")


def read_facts(archive: Path) -> ArchiveFacts | None:
    try:
        return as_record(parse_stored(storage.read(facts_path(archive))), ArchiveFacts, _SCHEMA)
    except (OSError, Unreadable):
        return None


def write_facts(archive: Path, facts: ArchiveFacts, durable: bool) -> None:
    storage.write(facts_path(archive), json.dumps({"schema": _SCHEMA, **asdict(facts)}).encode(), durable=durable)


def checksum(path: Path) -> int:
    found = 0
    with storage.input(path) as file:
        while block := file.read(1 << 20):
            found = zlib.crc32(block, found)
    return found


def is_own(path: Path) -> bool:
    """Tells whether a file or folder, and not a link to one, is this user's, and no other one may write to it."""
    found = os.lstat(path)
    return found.st_uid == os.getuid() and not stat.S_ISLNK(found.st_mode) and not found.st_mode & 0o022


def is_whole(archive: Path) -> bool:
    """Tells whether the archive is as it was made; reads it where this was not looked at since the machine's boot."""
    facts, found = read_facts(archive), storage.stat(archive)
    if facts is None or found is None or found.size != facts.size or not is_own(archive):
        return False
    boot = boot_id().partition(" ")[0]
    if facts.boot != boot:
        if checksum(archive) != facts.crc32:
            storage.try_delete(archive)
            return False
        write_facts(archive, replace(facts, boot=boot), durable=False)
    return True


def _delete_old_lists(folder: Path) -> None:
    """Deletes lists of processes that were killed before they had an archive made."""
    for name in storage.list_names(folder):
        found = storage.stat(folder / name) if name.endswith(".classes") else None
        if found is not None and time.time() - found.mtime_ns / 1e9 > _LIST_SECS:
            storage.try_delete(folder / name)


def _is_refused(archive: Path) -> bool:
    found = storage.stat(refusal_path(archive))
    return found is not None and time.time() - found.mtime_ns / 1e9 < _REFUSED_SECS


# --- having one made --------------------------------------------------------------------------------


def make_later(spark: SparkSession) -> None:
    """Unless there is an archive, has one made of the classes that the session's JVM has loaded.

    In a minute, or as this process ends. Called once the JVM has done what later ones will do. Never raises.
    """
    global _asked_to_make
    with _lock:
        if _asked_to_make:
            return
        _asked_to_make = True
    try:
        if _given is not None and _has_archive(spark, _given) and not is_used(spark):
            give_up(f"the JVM does not take {_given}")
        job = None if _recording is None else _job(spark, _recording)
    except Exception as error:  # py4j's: of a session that is being stopped, or of a JVM that is no HotSpot
        log.info("Spark's classes are not archived: %s", error)
        return
    if job is not None:
        once = _Once(job)
        atexit.register(once)
        timer = threading.Timer(MAKE_AFTER_SECS, once.and_wait)
        timer.daemon = True
        timer.start()


class _Once:
    """Starts the process that makes the archive, once; does nothing where it has not the memory."""

    def __init__(self, job: MakerJob) -> None:
        self._job, self._lock, self._done = job, threading.Lock(), False
        self._process: "subprocess.Popen[bytes] | None" = None

    def __call__(self) -> None:
        with self._lock:
            if self._done:
                return
            self._done = True
            if not has_memory():
                log.info("Spark's classes are not archived: the container has less than 1 GB of memory left")
                storage.try_delete(self._job.classes)
                return
            try:
                self._process = start_maker(self._job)
            except OSError as error:
                log.info("Spark's classes are not archived: %s", error)

    def and_wait(self) -> None:
        """As a call, and takes note of the process's end: the system keeps it until then."""
        self()
        if self._process is not None:
            self._process.wait()


def has_memory() -> bool:
    """Tells whether the cgroup of this process, if it has a limit, has memory for the JVM that makes an archive."""
    try:
        limit = (_CGROUP / "memory.max").read_text().strip()
        used = int((_CGROUP / "memory.current").read_text())
        kept = [line.split() for line in (_CGROUP / "memory.stat").read_text().splitlines()]
        free_at_once = sum(int(size) for name, size in kept if name == "inactive_file")
        return limit == "max" or int(limit) - used + free_at_once >= _ROOM_BYTES
    except (OSError, ValueError):
        return True  # no cgroup of version 2 with a limit


def start_maker(job: MakerJob) -> "subprocess.Popen[bytes]":
    """The process that makes the archive; it goes on when this one ends, for a minute at the most."""
    return subprocess.Popen(
        [sys.executable, "-c", _MAKER, json.dumps(asdict(job)), *import_path()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env=without_secrets(os.environ),
    )


def make_now(spark: SparkSession, timeout_secs: float) -> bool:
    """Makes the archive while the caller waits.

    Returns:
        whether an archive was made; False where this session's JVM does not write a list, too.
    """
    job = None if _recording is None else _job(spark, _recording)
    if job is None:
        return False
    return start_maker(job).wait(timeout_secs) == 0 and is_whole(Path(job.archive))


def _job(spark: SparkSession, recording: Recording) -> MakerJob | None:
    """The job for the session's JVM; None where that is not the one that writes the list."""
    jvm: Any = spark._jvm
    runtime = jvm.java.lang.management.ManagementFactory.getRuntimeMXBean()
    arguments = _arguments(spark)
    if not any(argument.endswith(str(recording.classes)) for argument in arguments):
        return None
    kept = ("--", "-XX:+Use", "-XX:-Use", "-XX:+Ignore", "-XX:ObjectAlignment")
    options = [argument for argument in arguments if argument.startswith(kept)]
    if _option(jvm, "UseCompressedOops") == "false":
        options.append("-XX:-UseCompressedOops")
    java = os.path.join(str(jvm.java.lang.System.getProperty("java.home")), "bin", "java")
    return MakerJob(str(recording.classes), str(recording.archive), java, options, str(runtime.getClassPath()))


def _arguments(spark: SparkSession) -> list[str]:
    jvm: Any = spark._jvm
    return list(jvm.java.lang.management.ManagementFactory.getRuntimeMXBean().getInputArguments())


def _has_archive(spark: SparkSession, archive: Path) -> bool:
    """Tells whether the session's JVM was started with the archive: a session of the user's own may not have been."""
    return f"-XX:SharedArchiveFile={archive}" in _arguments(spark)


def is_used(spark: SparkSession) -> bool:
    """Tells whether the session's JVM runs from an archive of its user's choice, not only from the JDK's own."""
    jvm: Any = spark._jvm
    return bool(_option(jvm, "SharedArchiveFile")) and _option(jvm, "UseSharedSpaces") == "true"


def _option(jvm: Any, name: str) -> str:
    """An option of the JVM as it is in force; empty where it has none of this name."""
    with suppress(Exception):  # py4j's
        kind = jvm.java.lang.Class.forName("com.sun.management.HotSpotDiagnosticMXBean")
        bean = jvm.java.lang.management.ManagementFactory.getPlatformMXBean(kind)
        return str(bean.getVMOption(name).getValue())
    return ""


def is_given() -> bool:
    """Tells whether a JVM of this process was to use an archive."""
    return _given is not None


def give_up(reason: str) -> None:
    """Removes the archive that this process's JVM was told to use, so that later ones start without it for a week."""
    global _given
    archive, _given = _given, None
    if archive is None:
        return
    log.warning("the archive of Spark's classes is removed; the next starts take longer: %s", reason)
    with suppress(OSError):
        storage.write(refusal_path(archive), f"{reason}\n".encode(), durable=False)
    storage.try_delete(facts_path(archive))
    storage.try_delete(archive)
