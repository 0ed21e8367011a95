"""Loads the Python file that a user gives to ``trident run`` and finds its topology.

The file is run as a module of its own, not as ``__main__``: the code under
``if __name__ == "__main__":`` is left to ``python FILE``. Its functions, and
those of the modules beside it, are pickled by value, since the Python workers
of Spark cannot import them.
"""

from __future__ import annotations

import sys
import traceback
import types
from pathlib import Path
from typing import Any

from pyspark import SparkContext, cloudpickle

from trident.config import TridentConfig
from trident.coordinators.errors import TopologyError, TridentError
from trident.running.process_defaults import Terminated
from trident.topology import TridentTopology

# Aggregators are named in a topology's identity by the last part of their module.
_PACKAGE = "trident_user_file"


def load_topology(reference: str) -> tuple[TridentTopology, TridentConfig | None]:
    """The topology that ``FILE`` or ``FILE:NAME`` means, and the file's settings.

    Args:
        reference: a path to a Python file; NAME is the module-level name of the
            topology or the name that the topology itself has. It may be left
            out when the file has one topology.

    Returns:
        the topology, and the file's module-level ``config`` when that is a
        TridentConfig.

    Raises:
        TopologyError: there is no such file or topology, there are several, or
            the file cannot be run (its line is in the message).
        TridentError: what the file itself raised, as it is.
    """
    path, name = _split(reference)
    module = _run(path)

    config = getattr(module, "config", None)
    return _choose(module, path, name), config if isinstance(config, TridentConfig) else None


def _split(reference: str) -> tuple[Path, str | None]:
    path: Path = Path(reference)
    name: str | None = None
    if not path.exists() and ":" in reference:
        before, _, name = reference.rpartition(":")
        path = Path(before)
    if not path.is_file():
        found = "a folder" if path.is_dir() else "no such file"
        raise TopologyError(f"{path} cannot be run", found=found, expected="a Python file that defines a topology")
    return path.resolve(), name or None


def _run(path: Path) -> types.ModuleType:
    source = path.read_bytes()
    module = types.ModuleType(f"{_PACKAGE}.{path.stem}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # dataclasses and pickle look it up
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))  # as `python FILE` does
    # Before it runs: that functions can be sent to the workers is checked when a topology is built.
    _pickle_by_value([module])
    before = set(sys.modules)
    try:
        exec(compile(source, str(path), "exec"), module.__dict__)
    except TridentError as error:
        if not isinstance(error, TopologyError) or error.message.startswith(str(path)):
            raise
        error.message = f"{_where(path, error)}: {error.message}"
        error.args = (error.message,)
        raise
    except Terminated:
        raise
    except (Exception, SystemExit) as error:
        if _needs_session(error):
            raise TopologyError(
                f"{_where(path, error)}: a Column of pyspark.sql.functions is made in Spark, and no Spark session is "
                "there while the file is read",
                action="write `from trident import functions as F` instead: the same functions, which need no session. "
                'Or give SQL, as in trident.expr("amount > 0"). Or make the session first: '
                "trident.configure_spark(SparkSession.builder).getOrCreate()",
            ) from error
        raise TopologyError(f"{_where(path, error)}: {type(error).__name__}: {error}") from error
    _pickle_by_value(_modules_of_folder(path.parent, before))
    return module


def _needs_session(error: BaseException) -> bool:
    """Tells whether the file called what needs a Spark session: PySpark raises an empty AssertionError, or this."""
    if SparkContext._active_spark_context is not None:
        return False
    if "SESSION_OR_CONTEXT_NOT_EXISTS" in str(error):
        return True
    frames = traceback.extract_tb(error.__traceback__)
    return type(error) is AssertionError and bool(frames) and "pyspark" in Path(frames[-1].filename).parts


def _where(path: Path, error: BaseException) -> str:
    """ "FILE:LINE" of the user's own line: the deepest frame that is in the file."""
    if isinstance(error, SyntaxError) and error.filename == str(path):
        return f"{path}:{error.lineno}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f"{path}:{lines[-1]}" if lines else str(path)


def _modules_of_folder(folder: Path, before: set[str]) -> list[types.ModuleType]:
    """The modules that the file imported from its own folder."""
    neighbours = []
    for name in sorted(set(sys.modules) - before):
        module = sys.modules[name]
        origin = getattr(module, "__file__", None)
        if not origin or name.partition(".")[0] == "trident":
            continue
        inside = Path(origin).resolve()
        if folder not in inside.parents:
            continue
        # A virtual environment in the same folder holds installed packages: workers have those.
        if not {"site-packages", "dist-packages"} & set(inside.parts):
            neighbours.append(module)
    return neighbours


def _pickle_by_value(modules: list[types.ModuleType]) -> None:
    for module in modules:
        cloudpickle.register_pickle_by_value(module)


def _choose(module: types.ModuleType, path: Path, name: str | None) -> TridentTopology:
    found: dict[str, Any] = {}
    for variable, value in vars(module).items():
        if isinstance(value, TridentTopology) and not any(value is other for other in found.values()):
            found[variable] = value
    names = ", ".join(f"{variable} ({topology.name})" for variable, topology in found.items())
    if name is not None:
        for variable, topology in found.items():
            if name in (variable, topology.name):
                return topology
        raise TopologyError(f"{path.name} has no topology {name!r}", found=names or "no topology")
    if len(found) == 1:
        return next(iter(found.values()))
    if found:
        raise TopologyError(
            f"{path.name} has several topologies", found=names, action=f"choose one: {path.name}:{next(iter(found))}"
        )
    raise TopologyError(
        f"{path.name} has no topology", expected='a TridentTopology at module level: topology = TridentTopology("name")'
    )
