"""Tells the code of a batch group from other code: a hash that is kept with each of its transactions."""

from __future__ import annotations

import functools
import hashlib
import inspect
import linecache
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from pathlib import Path
from typing import Any

from trident.planning.groups import GroupPlan

_OWN = str(Path(__file__).resolve().parents[1])
_STEPS_MAX, _PARTS_MAX = 4, 200


def code_id(plan: GroupPlan) -> str:
    """A hash of the group's definition and of this package's version; sixteen hexadecimal digits.

    The definition is its nodes with their fields, and the text of the files (or cells of a notebook) in which the
    topology is built and in which the functions and classes are that it names. So an edit of such a file changes it,
    even of a comment; an edit of a module that these import does not.
    """
    digest = hashlib.sha256(_version().encode())
    files: set[str] = set()
    for node in plan.nodes:
        fields = [f"{field.name} {field.dataType.simpleString()}" for field in node.schema.fields]
        digest.update("\0".join([type(node).__name__, node.operation, *fields, "\n"]).encode("utf-8", "replace"))
        files |= {node.location.rpartition(":")[0], *_files_of(vars(node), _STEPS_MAX)}
    for file in files:
        linecache.checkcache(file)  # a file that this process has run before, and that was edited since
    texts = ("".join(linecache.getlines(file)) for file in sorted(files))
    for text in sorted(filter(None, texts)):  # by their texts: a folder that is moved is the same code
        digest.update(text.encode("utf-8", "replace"))
    return digest.hexdigest()[:16]


def _version() -> str:
    try:
        return version("trident-spark")
    except PackageNotFoundError:  # run from its sources
        return ""


def _files_of(value: Any, steps: int) -> Iterator[str]:
    """The files of the user's functions and classes that an object of a plan leads to."""
    if steps == 0:
        return
    if isinstance(value, functools.partial):
        value = [value.func, value.args, value.keywords]
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple, set, frozenset)):
        for each in islice(value, _PARTS_MAX):
            yield from _files_of(each, steps - 1)
        return
    function = getattr(value, "__func__", value)
    if inspect.isfunction(function):
        file = function.__code__.co_filename
        if not file.startswith(_OWN):
            yield file
            with suppress(ValueError):  # a variable that has no value yet
                yield from _files_of(list(inspect.getclosurevars(function).nonlocals.values()), steps - 1)
            return
    kind = value if isinstance(value, type) else type(value)
    module = sys.modules.get(kind.__module__)
    file = getattr(module, "__file__", None) or ""
    if kind.__module__ in ("builtins", "pyspark") or kind.__module__.startswith("pyspark."):
        return
    if file and not file.startswith(_OWN):
        yield file
    elif kind.__module__.startswith("trident.") and hasattr(value, "__dict__"):
        # An object of this package's around the user's function.
        yield from _files_of({name: part for name, part in vars(value).items() if name != "parents"}, steps - 1)
