"""Asks the executors of a cluster, in one small job before a topology runs, for the modules that every task needs.

Without it each lack shows as a batch that fails eight times, with a path or the
name of a module. The probe asks as many tasks as the cluster has cores; hosts
that join later are not asked.

:func:`look` runs on the executors. It is sent as it is and not imported there,
so that it can say what is missing.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark import cloudpickle

from trident.coordinators.errors import ClusterProblem
from trident.coordinators.stored_json import Unreadable
from trident.spark.cluster_files import send_framework, send_user_modules
from trident.states.core import storage
from trident.states.core.host_bound import is_local_master
from trident.states.core.local_properties import local_properties

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)
_DRIVERS = "driver"
_LIBRARIES = ("pyarrow", "pandas", "numpy")
# Network file systems show a new file of another host a little later.
_SEEN_SECS = 10.0
_WAITING_SECS = 20.0
_TASKS_MAX = 256
_JOBS = {"spark.jobGroup.id": "trident-probe", "spark.job.description": "what the executors have"}


def prepare_cluster(spark: "SparkSession", warehouse: Path | None) -> None:
    """Sends what executors need, and asks them whether they have the rest. Nothing with a local master.

    Args:
        warehouse: the folder that all hosts share; None: it is not used on executors.

    Raises:
        ClusterProblem: an executor lacks something; says which host, what, and what to do.
    """
    context = spark.sparkContext
    if is_local_master(context.master):
        return
    framework, modules = send_framework(context), send_user_modules(context)
    folder = None if warehouse is None else warehouse / "_trident" / f".probe-{uuid.uuid4().hex}"
    nonce = uuid.uuid4().hex
    try:
        if folder is not None:
            storage.make_folder(folder, folder.parent)
            storage.write(folder / _DRIVERS, nonce.encode())
        found = _ask(
            spark,
            {
                "folder": None if folder is None else str(folder),
                "nonce": nonce,
                "framework": framework,
                "modules": modules,
                "libraries": _LIBRARIES,
            },
        )
        for one in found:
            _check(one, framework, warehouse)
        if folder is not None:
            _check_files(found, folder, nonce, warehouse)
    finally:
        if folder is not None:
            storage.try_delete(folder)  # a few bytes in a hidden folder


def look(task: Mapping[str, Any], tasks: Iterable[int]) -> Iterator[dict[str, Any]]:
    """Tells, on an executor, what is there: a plain dict for each task number."""
    # The function is sent by value: an executor that lacks the framework runs it too.
    import importlib.util
    import socket
    import sys
    import time

    for number in tasks:
        found: dict[str, Any] = {
            "number": number,
            "host": socket.gethostname(),
            "python": list(sys.version_info[:3]),
            "executable": sys.executable,
            "missing": {},
            "framework": None,
            "read": None,
            "wrote": None,
            "error": None,
        }
        for name in [*task["libraries"], "trident", "trident.states", "trident.coordinators", *task["modules"]]:
            try:
                if name in task["modules"] and not importlib.util.find_spec(name):
                    raise ImportError(f"No module named {name!r}")
                if name not in task["modules"]:  # a user's module may do anything when it is imported
                    module = importlib.import_module(name)
                    if name == "trident":
                        found["framework"] = getattr(module, "__file__", None)
            except Exception as problem:
                found["missing"][name] = f"{type(problem).__name__}: {problem}"
        folder = task["folder"]
        if folder is not None:
            try:
                with open(os.path.join(folder, "driver"), encoding="utf-8") as file:
                    found["read"] = file.read()
                wrote = os.path.join(folder, f"task-{number}-{socket.gethostname()}")
                with open(wrote, "w", encoding="utf-8") as file:
                    file.write(task["nonce"])
                found["wrote"] = os.path.basename(wrote)
            except OSError as problem:
                found["error"] = str(problem)
        time.sleep(0.2)  # or one executor takes all tasks before another one has its first
        yield found


def _ask(spark: "SparkSession", task: Mapping[str, Any]) -> list[dict[str, Any]]:
    context = spark.sparkContext
    count = max(2, min(context.defaultParallelism, _TASKS_MAX))
    waiting = threading.Timer(
        _WAITING_SECS,
        log.warning,
        (
            "no executor of %s has answered for %.0f s; waiting (has the cluster free cores and memory?)",
            context.master,
            _WAITING_SECS,
        ),
    )
    waiting.daemon = True
    waiting.start()
    here = sys.modules[__name__]
    cloudpickle.register_pickle_by_value(here)
    try:
        with local_properties(context, _JOBS):
            numbers = context.parallelize(range(count), count)
            return numbers.mapPartitions(lambda some: look(task, some)).collect()
    except Exception as error:
        raise _translated(error, context.pythonExec) from error
    finally:
        cloudpickle.unregister_pickle_by_value(here)
        waiting.cancel()


def _check(found: Mapping[str, Any], framework: str, warehouse: Path | None) -> None:
    host, here = found["host"], ".".join(map(str, sys.version_info[:2]))
    there = ".".join(map(str, found["python"][:2]))
    if there != here:
        raise _other_python(host, there, found["executable"])
    for name, problem in found["missing"].items():
        if name in _LIBRARIES:
            raise ClusterProblem(
                f"the executors on {host} cannot import {name}",
                found=f"{problem} (in {found['executable']})",
                expected="pyarrow, pandas and numpy, in the Python of every host",
                action="install them there, or send an environment with --conf spark.archives=env.tar.gz#env and "
                "PYSPARK_PYTHON=env/bin/python",
            )
        raise ClusterProblem(
            f"the executors on {host} cannot import {name}, which was sent to them",
            found=problem,
            action="the log of the executor has more; or install it on every host",
        )
    if framework and framework not in (found["framework"] or ""):
        raise ClusterProblem(
            f"the executors on {host} have another version of this framework",
            found=found["framework"],
            expected=framework,
            action="take it out of PYTHONPATH and of spark.submit.pyFiles there: it is sent",
        )
    if warehouse is not None and found["error"] is not None:
        raise _not_shared(warehouse, host, found["error"])


def _check_files(found: Sequence[Mapping[str, Any]], folder: Path, nonce: str, warehouse: Path | None) -> None:
    """That each sees what the other wrote: a folder of the same name on another disk would do for one of them."""
    deadline = time.monotonic() + _SEEN_SECS
    for one in found:
        if one["read"] != nonce:
            raise _not_shared(warehouse, one["host"], f"{one['read']!r} in the driver's file")
        while not _holds(folder / one["wrote"], nonce):
            if time.monotonic() > deadline:
                raise _not_shared(warehouse, one["host"], "a file that it wrote there is not here")
            storage.list_names(folder)  # NFS: asks the server again
            time.sleep(0.1)


def _holds(path: Path, text: str) -> bool:
    try:
        return storage.read(path) == text.encode()
    except (OSError, Unreadable):
        return False


def _not_shared(warehouse: Path | None, host: str, found: str) -> ClusterProblem:
    return ClusterProblem(
        f"the warehouse {warehouse} is not one folder for the driver and the executors on {host}",
        found=found,
        expected="a folder of a file system that every host has mounted at this path, and may write to",
        action="set warehouse to such a folder (NFS, CephFS, …), or run with spark_master=local[*]",
    )


def _other_python(host: str, there: str, executable: str) -> ClusterProblem:
    return ClusterProblem(
        f"the executors on {host} have another version of Python",
        found=f"{there} ({executable})",
        expected=f"{'.'.join(map(str, sys.version_info[:2]))}, as the driver has",
        action="set PYSPARK_PYTHON to a Python of that version, at a path that every host has",
    )


def _translated(error: Exception, python: str) -> ClusterProblem:
    """Returns what the job's own failure means: no Python could be started, or it refused to work."""
    text = str(error)
    told = next((line.strip() for line in text.splitlines() if _tells(line)), (text.splitlines() or [""])[0])[:500]
    if "PYTHON_VERSION_MISMATCH" in text:
        action = "set PYSPARK_PYTHON to a Python of the driver's version, at a path that every host has"
        what = "the executors have another version of Python"
    elif "Cannot run program" in text:
        what = f"the executors cannot start Python: {python}"
        action = "set PYSPARK_PYTHON to the path of a Python that every host has, or send one with spark.archives"
    else:
        what, action = "the executors cannot run Python", "the log of an executor has the whole error"
    return ClusterProblem(what, found=told, expected="executors that run Python as the driver's", action=action)


def _tells(line: str) -> bool:
    return any(word in line for word in ("PYTHON_VERSION_MISMATCH", "Cannot run program", "ModuleNotFoundError:"))
