"""Storm Trident's exactly-once micro-batches in Python, on Spark, Delta Lake and ZooKeeper.

Everything that users need is imported from here::

    from trident import Count, DeltaMapState, FileSpout, TridentTopology

Names are loaded when they are first used: ``import trident`` starts no JVM and
imports no PySpark.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coordinators.transactions import TransactionAttempt
    from states.delta_append import DeltaAppend
    from states.delta_map import DeltaMapState
    from states.memory_map import MemoryMapState
    from trident import errors
    from trident.aggregators import Aggregator, Combiner, Count, Max, Min, Reducer, Sum
    from trident.config import TridentConfig
    from trident.errors import FailedException, TridentError
    from trident.file_spout import FileSpout
    from trident.fixed_batch_spout import FixedBatchSpout
    from trident.functions import expr
    from trident.query import TopologyQuery
    from trident.reading import read
    from trident.session import configure_spark
    from trident.spouts import Backlog, BatchCoordinator, Emitted, Emitter, SpoutContext, SpoutKind, TridentSpout
    from trident.topology import TridentTopology

# Public name -> the module that defines it. A test compares it with __all__.
_HOME = {
    "Aggregator": "trident.aggregators",
    "Backlog": "trident.spouts",
    "BatchCoordinator": "trident.spouts",
    "Combiner": "trident.aggregators",
    "Count": "trident.aggregators",
    "DeltaAppend": "states.delta_append",
    "DeltaMapState": "states.delta_map",
    "Emitted": "trident.spouts",
    "Emitter": "trident.spouts",
    "FailedException": "coordinators.errors",
    "FileSpout": "trident.file_spout",
    "FixedBatchSpout": "trident.fixed_batch_spout",
    "Max": "trident.aggregators",
    "MemoryMapState": "states.memory_map",
    "Min": "trident.aggregators",
    "Reducer": "trident.aggregators",
    "SpoutContext": "trident.spouts",
    "SpoutKind": "trident.spouts",
    "Sum": "trident.aggregators",
    "TopologyQuery": "trident.query",
    "TransactionAttempt": "coordinators.transactions",
    "TridentConfig": "trident.config",
    "TridentError": "coordinators.errors",
    "TridentSpout": "trident.spouts",
    "TridentTopology": "trident.topology",
    "configure_spark": "trident.session",
    "expr": "trident.functions",
    "read": "trident.reading",
}

__all__ = [
    "Aggregator",
    "Backlog",
    "BatchCoordinator",
    "Combiner",
    "Count",
    "DeltaAppend",
    "DeltaMapState",
    "Emitted",
    "Emitter",
    "FailedException",
    "FileSpout",
    "FixedBatchSpout",
    "Max",
    "MemoryMapState",
    "Min",
    "Reducer",
    "SpoutContext",
    "SpoutKind",
    "Sum",
    "TopologyQuery",
    "TransactionAttempt",
    "TridentConfig",
    "TridentError",
    "TridentSpout",
    "TridentTopology",
    "configure_spark",
    "errors",
    "expr",
    "read",
]


def __getattr__(name: str) -> Any:
    if name == "errors":
        return importlib.import_module("trident.errors")
    if name not in _HOME:
        raise AttributeError(f"module 'trident' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value  # from now on without this function
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))


# --- the two packages beside this one -----------------------------------------------------

_SIBLINGS = ("coordinators", "states")


def check_shadowing(folder: str | os.PathLike[str] | None = None) -> None:
    """Makes sure that ``import states`` and ``import coordinators`` find the packages of this framework.

    Args:
        folder: one that is about to be put at the front of the path.

    Raises:
        ImportError: another file has that name; the message says which.
    """
    home = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    for name in _SIBLINGS:
        other = _in_folder(folder, name, home) if folder is not None else _found_elsewhere(name, home)
        if other:
            raise ImportError(
                f"{other} hides the package {name!r} of trident-spark, which is in "
                f"{os.path.join(home, name)}. Rename it, or keep it off the import path.",
                name=name,
                path=other,
            )


def _found_elsewhere(name: str, home: str) -> str | None:
    try:
        spec = importlib.util.find_spec(name)
    except ValueError:  # loaded by hand, without a spec
        return getattr(sys.modules[name], "__file__", None) or f"a module made at run time, named {name!r},"
    if spec is None:
        return None  # not hidden but missing: the import that needs it says so
    folders = [os.path.abspath(folder) for folder in spec.submodule_search_locations or ()]
    expected = os.path.join(home, name)
    if any(_same(folder, expected) for folder in folders):
        return None
    return spec.origin or (folders[0] if folders else name)


def _in_folder(folder: str | os.PathLike[str], name: str, home: str) -> str | None:
    if _same(os.fspath(folder), home):
        return None
    for candidate in (os.path.join(folder, f"{name}.py"), os.path.join(folder, name, "__init__.py")):
        if os.path.isfile(candidate):
            return candidate
    return None


def _same(one: str, other: str) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


check_shadowing()
