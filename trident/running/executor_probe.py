"""Asks each executor of a cluster, in small jobs, for its Python, its packages, and its view of the warehouse.

:func:`probe` runs on the executors. It is sent as it is and not imported there,
so that it can say what is missing.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from pyspark import SparkContext, cloudpickle
from pyspark.sql import SparkSession

from trident.coordinators.errors import ClusterProblem
from trident.states.core.spark_jobs import local_properties

log = logging.getLogger(__name__)
DRIVERS = "driver"
# Every task needs the first ones; local copies of states on the hosts need the others, too.
LIBRARIES = ("pyarrow", "pandas", "numpy")
LIBRARIES_OF_COPIES = ("msgspec",)
_WAITING_SECS = 20.0
_TASKS_MAX = 256
# How long a task stays: or one executor takes all tasks before another one has its first.
_PAUSES_SECS = (0.2, 1.0, 3.0)
_JOBS = {"spark.jobGroup.id": "trident-probe", "spark.job.description": "what the executors have"}
Found = Mapping[str, Any]


def probe(task: Found, tasks: Iterable[int]) -> Iterator[dict[str, Any]]:
    """Runs on an executor: yields what is there, a plain dict for each task number."""
    # The function is sent by value: an executor that lacks the framework runs it too.
    import importlib.util
    import shutil
    import socket
    import sys
    import tempfile
    import time

    for number in tasks:
        scratch = tempfile.gettempdir()
        found: dict[str, Any] = {
            "number": number,
            "host": socket.gethostname(),
            "process": os.getppid(),  # Spark's daemon of Python workers: one for each executor
            "python": list(sys.version_info[:3]),
            "executable": sys.executable,
            "versions": {},
            "missing": {},
            "framework": None,
            "scratch": scratch,
            "scratch_free": shutil.disk_usage(scratch).free,
            "read": None,
            "wrote": None,
            "error": None,
            "unseen": [],  # of the paths that tasks read
        }
        for name in [*task["libraries"], "trident", "trident.states", "trident.coordinators", *task["modules"]]:
            try:
                if name in task["modules"] and not importlib.util.find_spec(name):
                    raise ImportError(f"No module named {name!r}")
                if name not in task["modules"]:  # a user's module may do anything when it is imported
                    module = importlib.import_module(name)
                    if name == "trident":
                        found["framework"] = getattr(module, "__file__", None)
                    elif name in task["libraries"]:
                        found["versions"][name] = str(getattr(module, "__version__", ""))
            except Exception as problem:
                found["missing"][name] = f"{type(problem).__name__}: {problem}"
        if task["folder"] is not None and not found["missing"].keys() & {"trident", "trident.states"}:
            wrote = f"task-{number}-{socket.gethostname()}-{os.getpid()}"
            try:
                storage = importlib.import_module("trident.states.core.storage")
                if task.get("store"):
                    storage.configure(*task["store"])
                found["read"] = storage.read(storage.join(task["folder"], "driver")).decode()
                storage.write(storage.join(task["folder"], wrote), task["nonce"].encode(), durable=False)
                found["wrote"] = wrote
            except Exception as problem:
                found["error"] = f"{type(problem).__name__}: {problem}"
        if "trident.states" not in found["missing"]:
            storage = importlib.import_module("trident.states.core.storage")
            for path, size in task["sources"].items():
                try:
                    seen = storage.stat(path)
                    same = seen is not None and (seen.is_folder if size is None else seen.size == size)
                except OSError:
                    same = False
                if not same:
                    found["unseen"].append(path)
        time.sleep(task["pause"])
        yield found


def probe_executors(spark: "SparkSession", task: Found) -> list[dict[str, Any]]:
    """Runs :func:`probe` on each executor: one dict an executor, in the order of hosts.

    Those that there are now are asked, and those that come while the others are.

    Raises:
        ClusterProblem: no Python could be started on one, or it refused to work.
    """
    context = spark.sparkContext
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

    def probe_once(pause: float) -> list[dict[str, Any]]:
        count = min(max(2, 2 * executors(context), context.defaultParallelism), _TASKS_MAX)
        with local_properties(context, _JOBS):
            jobs = context.parallelize(range(count), count).mapPartitions(partial(probe, {**task, "pause": pause}))
            answers = jobs.collect()
        waiting.cancel()
        return answers

    try:
        return all_answers(probe_once, lambda: executors(context))
    except Exception as error:
        raise _translated(error, context.pythonExec, _hosts(context)) from error
    finally:
        cloudpickle.unregister_pickle_by_value(here)
        waiting.cancel()


def all_answers(probe_once: Callable[[float], list[dict[str, Any]]], known: Callable[[], int]) -> list[dict[str, Any]]:
    """Asks again, with tasks that stay longer, until each executor has answered; one answer of each.

    Args:
        probe_once: gives the answers of tasks that stay for some seconds: Spark chooses the executors.
        known: the number of executors now.
    """
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for pause in _PAUSES_SECS:
        for one in probe_once(pause):
            found.setdefault((one["host"], one["process"]), one)
        if len(found) >= known():
            break
    else:
        log.warning(
            "%d of %d executors have answered; the others have no free cores, and are not checked", len(found), known()
        )
    return [one for _, one in sorted(found.items())]


def executors(context: "SparkContext") -> int:
    """The number of executors that the driver knows now."""
    known = context._jsc.sc().getExecutorMemoryStatus()
    return max(0, int(known.size()) - 1)  # the driver is one of them


def _hosts(context: "SparkContext") -> list[str]:
    """The hosts of the executors, as Spark names them; none where Spark does not tell."""
    with suppress(Exception):  # Java's, of whichever kind: it is for a message
        return sorted({str(one.host()) for one in context._jsc.sc().statusTracker().getExecutorInfos()})
    return []


def _translated(error: Exception, python: str, hosts: Sequence[str] = ()) -> ClusterProblem:
    """Returns what the job's own failure means: no Python could be started, or it refused to work."""
    text = str(error)
    lines = [line.strip().removeprefix(": ") for line in text.splitlines()] or [""]
    java = next((line for line in lines if line.startswith(("org.", "java."))), lines[0])
    reason = next((line for line in lines if _tells(line)), java)[:500]
    where = re.search(r"\(TID \d+\) \((\S+) executor (\S+)\)", text)
    # Spark does not always say where it was.
    on = f"on {where[1]}" if where else f"on one of {', '.join(hosts)}" if hosts else "of the cluster"
    if "PYTHON_VERSION_MISMATCH" in text:
        action = "set PYSPARK_PYTHON to a Python of the driver's version, at a path that every host has"
        what = f"the executors {on} have another version of Python"
    elif "Cannot run program" in text:
        what = f"the executors {on} cannot start Python: {python}"
        action = "set PYSPARK_PYTHON to the path of a Python that every host has, or send one with python_archive=…"
    else:
        what, action = f"the executors {on} cannot run Python", "the log of an executor has the whole error"
    return ClusterProblem(what, found=reason, expected="executors that run Python as the driver's", action=action)


def _tells(line: str) -> bool:
    return any(word in line for word in ("PYTHON_VERSION_MISMATCH", "Cannot run program", "ModuleNotFoundError:"))
