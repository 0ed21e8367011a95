"""Makes an archive of Spark's classes from a list: a process of its own, which has the lowest priority.

``class_archive.start_maker`` starts it.

Of two processes that make archives at once, one does nothing. An archive gets its name once it is whole, durable, and
a JVM has started from it.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from trident.coordinators.processes import boot_id
from trident.spark.class_archive import (
    ArchiveFacts,
    MakerJob,
    checksum,
    facts_path,
    is_whole,
    refusal_path,
    write_facts,
)
from trident.states.core import storage
from trident.states.core.storage import LockHeld

_LOWEST = 19
_TIMEOUT_SECS = 1_800.0
# Of a list of 20,000 classes the JVM needs a quarter of a gigabyte.
_HEAP = "-Xmx768m"
# Archives of so many combinations of Java and jars are kept, each for so long without a use.
_KEPT = 3
_UNUSED_SECS = 30 * 86_400.0
_LEFT_OVER_SECS = 86_400.0


class NotMade(Exception):
    """The JVM has made no archive, or none that works."""


def main(text: str) -> int:
    """Does the job that is given as JSON.

    Returns:
        the exit code: 0, there is an archive.
    """
    job = MakerJob(**json.loads(text))
    _lower_priority()
    archive = Path(job.archive)
    folder = archive.parent
    try:
        with storage.lock(folder / "making.lock", folder, timeout_secs=0):
            try:
                if not is_whole(archive):
                    _make(job, archive)
            except (NotMade, subprocess.SubprocessError) as error:
                storage.write(refusal_path(archive), f"{error}\n".encode(), durable=False)
                return 1
            _prune(folder, keep=archive)
    except LockHeld:
        return 2
    except OSError:  # a full disk, a folder that was removed: the next process tries again
        return 1
    finally:
        storage.try_delete(job.classes)
    return 0


def _lower_priority() -> None:
    """Has the kernel prefer every other process, also where memory is short."""
    os.nice(_LOWEST)
    with suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")


def _make(job: MakerJob, archive: Path) -> None:
    listed, made = archive.with_suffix(f".{os.getpid()}.list"), archive.with_suffix(f".{os.getpid()}.making")
    try:
        # The JVM that writes the list may be in the middle of a line.
        storage.write(listed, storage.read(job.classes).rpartition(b"\n")[0] + b"\n", durable=False)
        _java(job, "-Xshare:dump", f"-XX:SharedClassListFile={listed}", f"-XX:SharedArchiveFile={made}", _HEAP)
        if storage.stat(made) is None:
            raise NotMade("the JVM made no archive and did not say why")
        _java(job, "-Xshare:on", f"-XX:SharedArchiveFile={made}", "-version")
        storage.flush(made)
        facts = ArchiveFacts(os.path.getsize(made), checksum(made), boot_id().partition(" ")[0])
        os.replace(made, archive)
        storage.flush(archive.parent)
        write_facts(archive, facts, durable=True)
    finally:
        storage.try_delete(listed)
        storage.try_delete(made)


def _java(job: MakerJob, *options: str) -> None:
    command = [job.java, "-cp", job.class_path, *job.options, "-Xlog:disable", "-Xlog:all=error:stderr", *options]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_SECS
    )
    if done.returncode:
        raise NotMade(f"java {options[0]} ended with {done.returncode}: {(done.stderr + done.stdout).strip()[-2000:]}")


def _prune(folder: Path, keep: Path) -> None:
    """Removes archives that were not used for long, the oldest above a number, and what killed processes have left."""
    now = time.time()
    ages: list[tuple[float, Path]] = []
    for name in storage.list_names(folder):
        path = folder / name
        found = storage.stat(path)
        if found is None or path == keep:
            continue
        age = now - found.mtime_ns / 1e9
        if path.suffix == ".jsa":
            ages.append((age, path))
        elif path.suffix in (".classes", ".list", ".making") and age > _LEFT_OVER_SECS:
            storage.try_delete(path)
    for number, (age, path) in enumerate(sorted(ages), 2):
        if number > _KEPT or age > _UNUSED_SECS:
            storage.try_delete(facts_path(path))
            storage.try_delete(path)
