"""Lets the Python workers of a local master import what this process imports: its folders, its files as they are now.

Spark starts workers with ``PYTHONPATH`` as it was when the JVM began, and uses them again for later topologies: a
folder that came into ``sys.path`` meanwhile would be unknown to them, and a module that was changed and reloaded here
would stay as they have loaded it. Spark tells workers apart by their environment: where it changes, new ones are
started.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from weakref import WeakKeyDictionary

from pyspark import SparkContext, SparkFiles

from trident.spark.cluster_files import is_installed, is_of_user
from trident.states.core.host_bound import is_local_master

_Stamps = dict[str, tuple[int, int]]
_known: "WeakKeyDictionary[SparkContext, _Stamps]" = WeakKeyDictionary()
_added: "WeakKeyDictionary[SparkContext, list[str]]" = WeakKeyDictionary()
# Only so that the environment is another one: its value is the number of times that files had changed.
_VARIABLE = "TRIDENT_MODULES_CHANGED"
_PATH = "PYTHONPATH"


def renew_workers(context: "SparkContext") -> None:
    """From here on jobs of a local master have workers that import from ``sys.path``, and no file as it was before.

    Jobs that were made before keep their workers. Nothing is done for a cluster, which is sent what it needs.
    """
    if not is_local_master(context.master):
        return
    path = context.environment.get(_PATH, "")
    # Without those of an earlier call: one that has left sys.path must not hide a module of Python's own any more.
    given = [folder for folder in path.split(os.pathsep) if folder and folder not in _added.get(context, ())]
    new = _added[context] = [folder for folder in _folders() if folder not in given]
    if (now := os.pathsep.join([*given, *new])) != path:
        context.environment[_PATH] = now
    found, known = dict(_stamps()), _known.setdefault(context, {})
    if any(known.get(file, stamp) != stamp for file, stamp in found.items()):
        context.environment[_VARIABLE] = str(int(context.environment.get(_VARIABLE, "0")) + 1)
    known.update(found)


def _folders() -> Iterator[str]:
    """The folders and archives of ``sys.path`` that the workers were not started with."""
    libraries = {sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib")}
    started_with, of_spark = os.environ.get(_PATH, "").split(os.pathsep), SparkFiles.getRootDirectory()
    for folder in sys.path:
        place = Path(os.path.abspath(folder))
        if not folder or folder in started_with or folder in libraries or is_installed(place) or not place.exists():
            continue
        if not str(place).startswith(of_spark):  # Spark gives workers these itself
            yield str(place)


def _stamps() -> Iterator[tuple[str, tuple[int, int]]]:
    """The files of the user's modules with time and size."""
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if is_of_user(name) and isinstance(file, str) and not is_installed(Path(file)):
            try:
                found = os.stat(file)
            except OSError:
                continue
            yield file, (found.st_mtime_ns, found.st_size)
