"""Looks at what a topology needs of its warehouse: files that one writer gets, that last, space, a clock."""

from __future__ import annotations

import errno
import os
import shutil
import time
import uuid

from trident.commands.doctor_machine import Report, nearest, size
from trident.states.core import storage
from trident.states.core.place import Place
from trident.states.core.store_problems import told_by_storage

_FREE_BYTES_LEAST, _FREE_BYTES_GOOD = 256 << 20, 5 << 30
_FLUSHES = 5
_FLUSH_SECS_GOOD = 0.05
_CLOCK_SECS_MAX = 60.0
_SHARED = ("nfs", "nfs4", "cifs", "smb3", "ceph", "glusterfs", "lustre", "gpfs", "beegfs", "9p", "virtiofs")
_LOST = ("tmpfs", "ramfs", "overlay")


def look_at_warehouse(report: Report, warehouse: Place) -> None:
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
        report.problem("warehouse", str(warehouse), told_by_storage(error, warehouse) or error)
        return
    if warehouse.is_local:
        _disk(report, nearest(warehouse, os.path.isdir))


def _tried_where_it_is_written(report: Report, warehouse: Place) -> str:
    """Tries the warehouse and, where it is there, the framework's own folder in it, which may be another user's."""
    if not warehouse.is_local:
        return _tried(report, warehouse, warehouse)
    told = ""
    for above in dict.fromkeys((nearest(warehouse / "_trident"), nearest(warehouse))):
        folder = Place(above) / f".trident-doctor-{uuid.uuid4().hex}"
        storage.make_path(folder)
        try:
            told = _tried(report, warehouse, folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return told


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
