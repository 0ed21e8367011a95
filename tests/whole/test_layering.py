"""The libraries that each package may use, and the modules that are pure (docs/semantics.md 14), read from the source.

``if TYPE_CHECKING`` and functions count too. The order of our own packages is import-linter's (pyproject.toml).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.programs import python

ROOT = Path(__file__).resolve().parents[2]

SPARK_AND_DELTA = {"pyspark", "py4j", "delta", "deltalake", "pyarrow", "pandas", "numpy"}
NOT_INSTALLED = {"tests", "examples", "benchmarks"}
# What each package may never import. A name with a dot forbids that module alone.
FORBIDDEN = {
    "coordinators": {*SPARK_AND_DELTA, *NOT_INSTALLED},
    "states": {"deltalake", *NOT_INSTALLED},
    "trident": {"deltalake", *NOT_INSTALLED},
}
# `states` may use of `coordinators` only what does no I/O: identities, records, protocols, fault points; the reader
# of stored files, which both have; and the threads that a simulation replaces.
STATES_MAY_USE = {
    f"coordinators.{name}"
    for name in "retries threads tracebacks errors identities faults records ports stored_json".split()
}
# Pure decisions: no I/O, no clock, no thread, no other module of ours but the ones named.
IMPURE = SPARK_AND_DELTA | set(
    "asyncio concurrent io kazoo logging msgspec multiprocessing os pathlib queue random secrets shutil socket "
    "subprocess sys tempfile threading time uuid".split()
)
# `trident repair` decides on facts, without I/O: repair/inspection.py finds them, repair/apply.py does what is decided.
REPAIR = ["damaged", "diagnose", "rebuild", "steps"]
FACTS_MAY_USE = set(
    "coordinators.positions coordinators.records states.core.control states.delta.kernel_files "
    "states.delta.manifest".split()
)
REPAIR_MAY_USE = {f"trident.repair.{name}" for name in REPAIR} | set(
    "trident.maintenance.facts coordinators.positions coordinators.records states.core.control states.core.kinds "
    "states.delta.manifest states.keyed.table_watch".split()
)
ROLLBACK_MAY_USE = set(
    "coordinators.identities coordinators.records states.core.control states.delta.kernel_files states.delta.manifest "
    "states.keyed.tables trident.maintenance.facts".split()
)
PURE = {
    **{f"trident/repair/{name}.py": REPAIR_MAY_USE for name in REPAIR},
    "coordinators/master.py": {"coordinators.retries", "coordinators.identities", "coordinators.errors"},
    "coordinators/retries.py": {"coordinators.errors", "coordinators.identities", "coordinators.tracebacks"},
    "coordinators/identities.py": set(),
    "trident/maintenance/facts.py": FACTS_MAY_USE,
    "trident/time_travel/rollback_plan.py": ROLLBACK_MAY_USE,
    "coordinators/positions.py": {"coordinators.errors", "coordinators.records"},
    "coordinators/errors.py": {"coordinators.tracebacks"},  # an error shows itself in a notebook
    "coordinators/ports.py": {"coordinators.records", "coordinators.identities"},
    "states/keyed/compaction.py": {"coordinators.errors", "states.core.retention"},
    "states/core/retention.py": set(),
    "states/core/names.py": {"coordinators.errors"},
    "states/core/values.py": {"coordinators.errors", "states.core.values"},
}
# Each of these is talked to in these modules alone.
ONLY_IN = {
    # trident/config.py: the constant for an ACL.
    # coordinators/kazoo_adapter.py, kazoo_adapter.py: its TLS, its log, its errors.
    "kazoo": {
        "coordinators/zookeeper.py",
        "coordinators/zookeeper_connection.py",
        "coordinators/kazoo_adapter.py",
        "trident/config.py",
    }
}
# Users import from `trident`; so do the examples, which show them how.
EXAMPLES_MAY_NOT = {"coordinators", "states"}
LINKED = {"coordinators", "states"}


def imports(source: str, package: str) -> Iterator[tuple[int, str]]:
    """(line, module) of every import statement; relative ones made absolute."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parents, base] if base else parents)
            # `from states import committer` imports a module too.
            yield node.lineno, base
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "import_module"
            and node.args
            and isinstance(node.args[0], ast.Constant)
        ):
            yield node.lineno, str(node.args[0].value)


def package_of(file: str) -> str:
    folder = file.rpartition("/")[0].replace("/", ".")
    return f"trident.{folder}" if folder.partition(".")[0] in ("states", "coordinators") else folder


def within(module: str, names: set[str]) -> bool:
    return any(module == name or module.startswith(name + ".") for name in names)


def violations(file: str, source: str) -> list[str]:
    """What the source of ``file`` (relative to the repository) imports though it may not."""
    package = file.partition("/")[0]
    found = []
    for line, module in imports(source, package_of(file)):
        # trident/states and trident/coordinators are links to the folders beside it; they are named here as these are.
        bare = within(module, LINKED)
        if within(module, {f"trident.{name}" for name in LINKED}):
            module = module.removeprefix("trident.")
        top = module.partition(".")[0]
        reason = f"a user's file may have that name: import trident.{module}" if bare else None
        if within(module, FORBIDDEN.get(package, set())):
            reason = f"{package} may not know {top}"
        elif package == "states" and top == "coordinators" and module != "coordinators":
            if not within(module, STATES_MAY_USE):
                reason = "states may use only the pure parts of coordinators"
        elif package == "examples" and top in EXAMPLES_MAY_NOT:
            reason = "users import from trident alone"
        if file in PURE and reason is None:
            ours = top in ("coordinators", "states", "trident") and module != top
            if top in IMPURE or (ours and not within(module, PURE[file])):
                reason = "this module is pure"
        if top in ONLY_IN and package in FORBIDDEN and file not in ONLY_IN[top]:
            reason = reason or f"only {', '.join(sorted(ONLY_IN[top]))} may talk to {top}"
        if reason:
            found.append(f"{file}:{line} imports {module}: {reason}")
    return found


def source_files() -> list[str]:
    packages = [*FORBIDDEN, "examples"]
    return sorted(path.relative_to(ROOT).as_posix() for name in packages for path in (ROOT / name).rglob("*.py"))


# The hosts of a cluster have PySpark and Arrow; the framework's other libraries are the driver's alone.
DRIVER_ONLY = ("click", "delta", "kazoo", "msgspec", "psutil", "rich", "starlette", "uvicorn")
RUN_BY_WORKERS = [
    *(f"trident.workers.{path.stem}" for path in sorted((ROOT / "trident" / "workers").glob("[a-z]*.py"))),
    "trident.spouts.files.parquet",
    "trident.spouts.files.tasks",
    "trident.spouts.tasks",
    "trident.spouts.tasks",
    "trident.states.delta.parquet_files",
    "trident.states.keyed.log_merge",
    "trident.states.publishing.user_tasks",
    "trident.tuples.tasks",
]


def test_workers_need_nothing_that_only_the_driver_has():
    script = f"import sys; sys.modules.update(dict.fromkeys({DRIVER_ONLY!r}))\n"
    script += "".join(f"import {module}\n" for module in RUN_BY_WORKERS)
    script += "assert 'pandas' not in sys.modules"
    done = python("-c", script)
    assert done.returncode == 0, done.stderr


def test_a_users_module_can_be_imported_where_only_workers_are():
    """One that builds a topology is sent to the hosts of a cluster too, and imported there for its functions."""
    script = f"import sys; sys.modules.update(dict.fromkeys({DRIVER_ONLY!r}))\n"
    script += "import trident\n"
    drivers = {"Replay", "RowExplanation", "TopologyQuery", "View", "explain_row", "get", "read", "replay", "view"}
    script += f"for name in set(trident.__all__) - {drivers}: getattr(trident, name)"
    done = python("-c", script)
    assert done.returncode == 0, done.stderr


def test_the_packages_are_all_there():
    files = set(source_files())
    assert PURE.keys() <= files
    assert {"coordinators/zookeeper.py", "trident/config.py"} <= files  # else the rules check nothing


def test_no_import_crosses_the_layers():
    assert [found for file in source_files() for found in violations(file, (ROOT / file).read_text("utf-8"))] == []


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("coordinators/driver.py", "def f():\n    import pyarrow"),
        ("coordinators/driver.py", "if TYPE_CHECKING:\n    from pyspark.sql import DataFrame"),
        ("coordinators/driver.py", "import importlib\nimportlib.import_module('delta.tables')"),
        ("coordinators/records.py", "import kazoo.client"),
        ("coordinators/master.py", "import time"),
        ("coordinators/master.py", "from concurrent.futures import ThreadPoolExecutor"),
        ("coordinators/master.py", "from trident.coordinators.driver import GroupDriver"),
        ("coordinators/master.py", "from . import zookeeper"),
        ("states/publishing/committer.py", "from trident.coordinators.zookeeper import ZooKeeper"),
        ("states/publishing/committer.py", "from trident.coordinators import driver"),
        ("states/core/names.py", "import pyspark"),
        ("states/publishing/committer.py", "from states import manifest"),
        ("trident/running/query.py", "import coordinators.driver"),
        ("trident/running/query.py", "from tests.helpers import x"),
        ("trident/running/query.py", "from kazoo.client import KazooClient"),
        ("examples/01_word_count.py", "from trident.states.keyed.delta_map import DeltaMapState"),
    ],
)
def test_a_planted_violation_is_found(file, source):
    assert violations(file, source)


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("coordinators/zookeeper.py", "from kazoo.client import KazooClient"),
        ("coordinators/driver.py", "from trident.coordinators import faults, master"),
        ("coordinators/master.py", "from trident.coordinators.identities import TransactionAttempt"),
        (
            "states/publishing/committer.py",
            "from trident.coordinators.errors import Halted\nfrom trident.coordinators import faults",
        ),
        (
            "trident/running/query.py",
            "from trident.coordinators.driver import GroupDriver\nfrom trident.states.publishing.committer import x",
        ),
        ("examples/01_word_count.py", "from trident import TridentTopology"),
    ],
)
def test_what_is_allowed_is_not_reported(file, source):
    assert violations(file, source) == []
