"""Checks, before a topology runs, that a cluster's executors have what they need: files, folders, no single host."""

from __future__ import annotations

import logging
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from pyspark.sql import SparkSession

from trident.config import TridentConfig
from trident.coordinators.errors import ClusterProblem, StoreProblem, TopologyError
from trident.coordinators.stored_json import Unreadable
from trident.operations.state_nodes import PersistNode
from trident.operations.state_queries import StateQueryNode
from trident.planning.nodes import SourceNode, TopologyGraph
from trident.running.executor_probe import DRIVERS, LIBRARIES, LIBRARIES_OF_COPIES, Found, probe_executors
from trident.spark.cluster_files import send_framework, send_python, send_user_modules
from trident.spark.session import spark_settings
from trident.spark.stores import prepare_store
from trident.states.core import storage
from trident.states.core.addresses import check_hosts, is_bound, is_local_master
from trident.states.core.place import Place
from trident.states.core.storage import explained_storage_errors
from trident.udf.expressions import current_session

# Refuses, before anything runs, parts of a topology that live on one host and so cannot serve a Spark cluster.


def master_of(spark: SparkSession | None, config: TridentConfig) -> str:
    """The Spark master that a topology will run on: that of a session that there is, else what the settings say."""
    spark = spark or current_session()
    return spark_settings(config)["spark.master"] if spark is None else str(spark.sparkContext.master)


def check_topology(graph: TopologyGraph, config: "TridentConfig", master: str) -> None:
    """Raises TopologyError, with the name of what lives on one host, if the master is a cluster's.

    Args:
        config: its settings; the embedded ZooKeeper is one of them.
    """
    for thing, what in _spouts_and_states(graph):
        check_hosts(thing, what, master)
    if config.zookeeper == "embedded" and not is_local_master(master):
        raise TopologyError(
            "the embedded ZooKeeper serves one machine, and Spark runs on a cluster",
            found=f"zookeeper=embedded ({config.origin('zookeeper')}) with the Spark master {master}",
            expected="an ensemble that every host reaches, or a local master: local[…]",
            action="set zookeeper=host:port,host:port (TRIDENT_ZOOKEEPER, or --set zookeeper=…)",
        )


def _spouts_and_states(graph: TopologyGraph) -> Iterator[tuple[Any, str]]:
    for node in graph.nodes:
        if isinstance(node, SourceNode):
            queue = getattr(node.spout, "queue", None)
            if is_bound(queue):
                yield queue, f"the queue of stream {node.tx_id!r}"
            else:
                yield node.spout, f"the spout of stream {node.tx_id!r}"
        elif isinstance(node, PersistNode):
            yield _store(node.binding.state), f"state {node.binding.name!r} ({node.location})"
        elif isinstance(node, StateQueryNode) and node.writer is None:
            yield _store(node.state), f"the static state of the query at {node.location}"


def _store(state: Any) -> Any:
    """Returns what keeps a state's data: of a map state its backing map, or the function that makes one."""
    return getattr(state, "backing", state)


# Folders that tasks read by the same path as the driver: a cluster's hosts must have the same ones there.


# Of a folder so many files are compared: the last ones by name.
_FILES = 3
Sample = dict[str, "int | None"]


def folders_of_tasks(graph: TopologyGraph, warehouse: Place) -> dict[str, str]:
    """Folder or file → its reader, for messages: those that spouts say by an attribute ``folders_of_tasks``, and by
    ``folders_with_remote_warehouse`` where the warehouse is in one."""
    found = {}
    for node in graph.nodes:
        if isinstance(node, SourceNode):
            remote_folders = () if warehouse.is_local else getattr(node.spout, "folders_with_remote_warehouse", ())
            for folder in (*getattr(node.spout, "folders_of_tasks", ()), *remote_folders):
                if "://" not in folder:  # a URL is the same on every host
                    found[folder] = f"the {type(node.spout).__name__} of stream {node.tx_id!r}"
    return found


def stores_of_sources(graph: TopologyGraph) -> list[Place]:
    """The stores that spouts read from: what they say by an attribute ``places``."""
    spouts = (node.spout for node in graph.nodes if isinstance(node, SourceNode))
    return list(dict.fromkeys(place for spout in spouts for place in getattr(spout, "places", ())))


def sample(folders: Mapping[str, str]) -> Sample:
    """Path → size of a file, None of a folder: the folders, and a few files of each, as the driver sees them."""
    found: Sample = {}
    for path in folders:
        known = storage.stat(path)
        if known is None:
            continue  # the spout says it itself
        found[path] = None if known.is_folder else known.size
        for name in sorted(storage.list_names(path))[-_FILES:] if known.is_folder else ():
            inside = storage.stat(storage.join(path, name))
            if inside is not None and inside.is_file:
                found[str(storage.join(path, name))] = inside.size
    return found


def unseen(executors: Sequence[Found], probed: Sample, folders: Mapping[str, str]) -> Iterator[ClusterProblem]:
    """One problem for each executor and reader whose folder is another one there."""
    now = sample(folders) if any(one["unseen"] for one in executors) else {}
    for one in executors:
        reported = set()
        for path in one["unseen"]:
            folder = next(folder for folder in folders if path == folder or path.startswith(folder))
            # A file that was taken away or changed meanwhile says nothing.
            if now.get(path, -1) == probed[path] and folder not in reported:
                reported.add(folder)
                yield ClusterProblem(
                    f"the executors on {one['host']} do not have what {folders[folder]} reads",
                    found=f"{path} is not there, or is another one",
                    expected=f"{folder} is the same on every host, as the driver has it",
                    action="use a folder of a file system that every host has mounted at this path, or "
                    "spark_master=local[*]",
                )


# Sends a cluster what its executors need, and checks, before a topology runs, that each of them has the rest.
#
# Without it each lack shows as a batch that fails eight times, with a path or the
# name of a module. Every executor that there is at the start is asked; hosts that
# join later are not.


log = logging.getLogger(__name__)
# Network file systems show a new file of another host a little later.
_SEEN_SECS = 10.0


@dataclass(frozen=True)
class ClusterProbe:
    """The answers of a cluster's executors, and the problems that follow from them."""

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
        folders: those that tasks read, each with its reader: see ``cluster_checks.py``.
        single_writer: as in the settings.

    Raises:
        ClusterProblem: an executor lacks something; says which host, what, and what to do.
        StorageProblem, SparkSessionProblem: as :func:`trident.spark.stores.prepare_store`.
    """
    if is_local_master(spark.sparkContext.master):
        return

    def probe() -> ClusterProbe:
        with explained_storage_errors():
            return probe_cluster(spark, warehouse, python_archive, folders)

    if warehouse is None or warehouse.is_local:
        probed = probe()
    else:
        try:
            probed = probe()
            again = not probed.sees_warehouse
        except StoreProblem as error:
            log.warning("%s", error)
            again = True
        if again:
            log.warning(
                "the store of %s failed while the executors were checked: they are checked once more", warehouse
            )
            prepare_store(warehouse, spark, {}, single_writer)
            probed = probe()
    if probed.problems:
        first, *more = probed.problems
        if more:
            log.error("the cluster lacks more than one thing: %s", "; ".join(str(one) for one in more))
        raise first
    for name in LIBRARIES_OF_COPIES:
        hosts = sorted({one["host"] for one in probed.executors if name in one["missing"]})
        if hosts:
            log.warning(
                "the executors on %s have no %s: batches that look up states with functions of yours read the tables "
                "there, which is slower than a local copy; install it there",
                ", ".join(hosts),
                name,
            )


def probe_cluster(
    spark: "SparkSession",
    warehouse: Place | None,
    python_archive: str | None = None,
    folders: Mapping[str, str] = MappingProxyType({}),
) -> ClusterProbe:
    """Sends what executors need, and reports what each of them has and lacks; see :func:`prepare_cluster`.

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
        executors: list[Found] = [*probe_executors(spark, task)]
        problems = [problem for one in executors for problem in _problems(one, framework)]
        apart: list[ClusterProblem] = []
        if folder is not None:
            apart = [*_unshared(executors, folder, nonce, warehouse)]
            problems += apart
        problems += unseen(executors, sources, folders)
        return ClusterProbe(executors, problems, modules, not apart)
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
