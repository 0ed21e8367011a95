"""Sends a cluster what its executors need, and checks, before a topology runs, that each of them has the rest.

Without it each lack shows as a batch that fails eight times, with a path or the
name of a module. Every executor that there is at the start is asked; hosts that
join later are not.
"""

from __future__ import annotations

import logging
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from pyspark.sql import SparkSession

from trident.coordinators.errors import ClusterProblem, StoreProblem
from trident.coordinators.stored_json import Unreadable
from trident.running.executor_look import DRIVERS, LIBRARIES, LIBRARIES_OF_COPIES, Found, ask
from trident.running.source_folders import sample, unseen
from trident.spark.cluster_files import send_framework, send_python, send_user_modules
from trident.spark.stores import prepare_store
from trident.states.core import storage
from trident.states.core.host_bound import is_local_master
from trident.states.core.place import Place
from trident.states.core.store_problems import stores_told

log = logging.getLogger(__name__)
# Network file systems show a new file of another host a little later.
_SEEN_SECS = 10.0


@dataclass(frozen=True)
class Looked:
    """The answers of a cluster's executors, and the lacks that follow from them."""

    executors: list[Found]
    problems: list[ClusterProblem]
    modules: list[str]
    sees_warehouse: bool


def prepare_cluster(
    spark: "SparkSession",
    warehouse: Place | None,
    python_archive: str | None = None,
    folders: Mapping[str, str] = MappingProxyType({}),
    single_writer: bool = False,
) -> None:
    """Sends what executors need, and asks them whether they have the rest. Nothing with a local master.

    Where one does not see a warehouse that is in a store, or the driver does not, the store is tried as at the start,
    and they are asked once more: its name node may have been started again meanwhile.

    Args:
        warehouse: the folder that all hosts share; None: it is not used on executors.
        python_archive: as in the settings; of a session that the user has made, too.
        folders: those that tasks read, each with its reader: see ``source_folders.py``.
        single_writer: as in the settings.

    Raises:
        ClusterProblem: an executor lacks something; says which host, what, and what to do.
        StorageProblem, SparkSessionProblem: as :func:`trident.spark.stores.prepare_store`.
    """
    if is_local_master(spark.sparkContext.master):
        return

    def look() -> Looked:
        with stores_told():
            return look_at_cluster(spark, warehouse, python_archive, folders)

    if warehouse is None or warehouse.is_local:
        looked = look()
    else:
        try:
            looked = look()
            again = not looked.sees_warehouse
        except StoreProblem as error:
            log.warning("%s", error)
            again = True
        if again:
            log.warning("the store of %s failed while the executors were asked: they are asked once more", warehouse)
            prepare_store(warehouse, spark, {}, single_writer)
            looked = look()
    if looked.problems:
        first, *more = looked.problems
        if more:
            log.error("the cluster lacks more than one thing: %s", "; ".join(str(one) for one in more))
        raise first
    for name in LIBRARIES_OF_COPIES:
        hosts = sorted({one["host"] for one in looked.executors if name in one["missing"]})
        if hosts:
            log.warning(
                "the executors on %s have no %s: batches that look up states with functions of yours read the tables "
                "there, which is slower than a local copy; install it there",
                ", ".join(hosts),
                name,
            )


def look_at_cluster(
    spark: "SparkSession",
    warehouse: Place | None,
    python_archive: str | None = None,
    folders: Mapping[str, str] = MappingProxyType({}),
) -> Looked:
    """Sends what executors need, and tells what each of them has and lacks; see :func:`prepare_cluster`.

    Raises:
        ClusterProblem: Python does not run on one of them.
    """
    context = spark.sparkContext
    send_python(context, python_archive)
    framework, modules = send_framework(context), send_user_modules(context)
    folder = None if warehouse is None else warehouse / "_trident" / f".probe-{uuid.uuid4().hex}"
    nonce = uuid.uuid4().hex
    try:
        if folder is not None:
            storage.make_folder(folder, folder.parent)
            storage.write(folder / DRIVERS, nonce.encode())
        task = {
            "folder": None if folder is None else str(folder),
            "store": (folder.root, dict(storage.settings_of(folder.root))) if folder and not folder.is_local else None,
            "nonce": nonce,
            "sources": (sources := sample(folders)),
            "modules": modules,
            "libraries": (*LIBRARIES, *LIBRARIES_OF_COPIES),
        }
        executors: list[Found] = [*ask(spark, task)]
        problems = [problem for one in executors for problem in _problems(one, framework)]
        apart: list[ClusterProblem] = []
        if folder is not None:
            apart = [*_unshared(executors, folder, nonce, warehouse)]
            problems += apart
        problems += unseen(executors, sources, folders)
        return Looked(executors, problems, modules, not apart)
    finally:
        if folder is not None:
            storage.try_delete(folder)  # a few bytes in a hidden folder


def _problems(found: Found, framework: str) -> Iterator[ClusterProblem]:
    """The lacks of one executor, but for the warehouse."""
    host, here = found["host"], ".".join(map(str, sys.version_info[:2]))
    there = ".".join(map(str, found["python"][:2]))
    if there != here:
        yield ClusterProblem(
            f"the executors on {host} have another version of Python",
            found=f"{there} ({found['executable']})",
            expected=f"{here}, as the driver has",
            action="set PYSPARK_PYTHON to a Python of that version, at a path that every host has",
        )
    for name, problem in found["missing"].items():
        if name in LIBRARIES:
            yield ClusterProblem(
                f"the executors on {host} cannot import {name}",
                found=f"{problem} (in {found['executable']})",
                expected="pyarrow, pandas and numpy, in the Python of every host",
                action="install them there, or send an environment with python_archive=env.tar.gz",
            )
        elif name not in LIBRARIES_OF_COPIES:
            yield ClusterProblem(
                f"the executors on {host} cannot import {name}, which was sent to them",
                found=problem,
                action="the log of the executor has more; or install it on every host",
            )
    if framework and framework not in (found["framework"] or "") and "trident" not in found["missing"]:
        yield ClusterProblem(
            f"the executors on {host} have another version of this framework",
            found=found["framework"],
            expected=framework,
            action="take it out of PYTHONPATH and of spark.submit.pyFiles there: it is sent",
        )


def _unshared(found: Sequence[Found], folder: Place, nonce: str, warehouse: Place | None) -> Iterator[ClusterProblem]:
    """That each sees what the other wrote: a folder of the same name on another disk would do for one of them."""
    deadline = time.monotonic() + _SEEN_SECS
    for one in found:
        if one["read"] is None and one["error"] is None:
            continue  # it cannot import the framework, which is told
        if one["error"] is not None:
            yield _not_shared(warehouse, one["host"], one["error"])
        elif one["read"] != nonce:
            yield _not_shared(warehouse, one["host"], f"{one['read']!r} in the driver's file")
        else:
            while not _holds(folder / one["wrote"], nonce):
                if time.monotonic() > deadline:
                    yield _not_shared(warehouse, one["host"], "a file that it wrote there is not here")
                    break
                storage.list_names(folder)  # NFS: asks the server again
                time.sleep(0.1)


def _holds(path: Place, text: str) -> bool:
    try:
        return storage.read(path) == text.encode()
    except (OSError, Unreadable):
        return False


def _not_shared(warehouse: Place | None, host: str, found: str) -> ClusterProblem:
    if warehouse is not None and not warehouse.is_local:
        return ClusterProblem(
            f"the executors on {host} do not see the warehouse {warehouse} as the driver does",
            found=found,
            expected="the same store, which every host reaches with the settings of the session",
            action="check that host's network, its credentials, and the package of this store in its Python",
        )
    return ClusterProblem(
        f"the warehouse {warehouse} is not one folder for the driver and the executors on {host}",
        found=found,
        expected="a folder of a file system that every host has mounted at this path, and may write to",
        action="set warehouse to such a folder (NFS, CephFS, …), or run with spark_master=local[*]",
    )
