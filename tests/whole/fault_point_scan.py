"""Finds the I/O of the production code and whether it passes a fault point, from the source alone.

A *site* is a call that changes something outside of the process, or that asks
ZooKeeper, Spark or Delta. It is covered when it stands in ``with
fault_point(...)``, or in a function of which every call is covered.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("coordinators", "states", "trident")

FUNCTIONS = set(
    "os.replace os.rename os.link os.symlink os.unlink os.remove os.rmdir os.fsync os.makedirs os.mkdir os.truncate "
    "os.write shutil.rmtree shutil.move shutil.copy shutil.copy2 shutil.copyfile shutil.copyfileobj shutil.copytree "
    "pq.write_table guard guard_commit "
    # The storage: what its implementation does is in whose fault point the call of it is.
    "storage.write storage.create storage.output storage.append storage.delete storage.try_delete storage.flush "
    "storage.flush_names storage.lock folder.claim folder.rename folder.delete folder.flush".split()
)
IMPLEMENTATION = tuple(
    f"states/core/{name}.py"
    for name in ("storage", "local_storage", "object_storage", "hdfs_storage", "appended_parts")
)
METHODS = set(
    # files
    "write_text write_bytes mkdir unlink rmdir touch symlink_to hardlink_to write_table executescript "
    # Spark
    "collect toPandas toArrow toLocalIterator foreachPartition save saveAsTable insertInto localCheckpoint "
    "foreachBatch "
    # kazoo: its requests end so
    "start_async get_async exists_async get_children_async sync_async ensure_path_async commit_async create_async "
    "set_async delete_async".split()
)
WRITE_MODES = ("w", "a", "x", "+")


@dataclass
class Function:
    """One function or method.

    Attributes:
        name: "states/delta/manifest.py:ManifestStore.write".
        sites: (line, what) of I/O that no ``with fault_point`` around it covers.
        calls: name as called → lines, outside of any fault point.
    """

    name: str
    sites: list[tuple[int, str]] = field(default_factory=list)
    calls: dict[str, list[int]] = field(default_factory=dict)

    @property
    def module(self) -> str:
        return self.name.split(":")[0]

    @property
    def short(self) -> str:
        return self.name.rpartition(".")[2] if "." in self.name.split(":")[1] else self.name.split(":")[1]


@cache
def scan_all() -> list[Function]:
    found = []
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            module = path.relative_to(ROOT).as_posix()
            found += [] if module in IMPLEMENTATION else scan(path.read_text(encoding="utf-8"), module)
    return found


def scan(source: str, module: str) -> list[Function]:
    """Every function of a module, the module's own body among them as "module:"."""
    top = Function(f"{module}:")
    found = [top]
    _walk(ast.parse(source), top, "", module, found, covered=False)
    return found


def _walk(node: ast.AST, owner: Function, prefix: str, module: str, found: list[Function], covered: bool) -> None:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            _walk(child, owner, f"{prefix}{child.name}.", module, found, covered)
        elif isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if isinstance(node, (ast.Module, ast.ClassDef)):
                function = Function(f"{module}:{prefix}{child.name}")
                found.append(function)
                _walk(child, function, f"{prefix}{child.name}.", module, found, False)
            else:  # a function within a function is that function's
                _walk(child, owner, prefix, module, found, covered)
        elif isinstance(child, ast.With):
            inside = covered or any(_is_point(item.context_expr) for item in child.items)
            for item in child.items:
                _walk(item, owner, prefix, module, found, covered)
            for statement in child.body:
                _walk(ast.Module([statement], []), owner, prefix, module, found, inside)
        else:
            if isinstance(child, ast.Call) and not covered:
                _note(child, owner)
            _walk(child, owner, prefix, module, found, covered)


def _is_point(expression: ast.expr) -> bool:
    return isinstance(expression, ast.Call) and dotted_name(expression.func).split(".")[-1] == "fault_point"


def _note(call: ast.Call, owner: Function) -> None:
    dotted = dotted_name(call.func)
    last = dotted.split(".")[-1]
    if dotted in FUNCTIONS or ("." in dotted and last in METHODS) or (last == "open" and _writes(call, dotted)):
        owner.sites.append((call.lineno, dotted))
    owner.calls.setdefault(last, []).append(call.lineno)


def _writes(call: ast.Call, dotted: str) -> bool:
    if dotted == "os.open":
        flags = ast.dump(call)
        return "O_CREAT" in flags or "O_RDWR" in flags or "O_WRONLY" in flags
    is_method = "." in dotted  # path.open(mode), not open(path, mode); and others have methods of that name
    mode = next((word.value for word in call.keywords if word.arg == "mode"), None)
    mode = mode or (call.args[0 if is_method else 1] if len(call.args) > (0 if is_method else 1) else None)
    if not isinstance(mode, ast.Constant):
        return mode is not None and not is_method
    return any(letter in str(mode.value) for letter in WRITE_MODES)


def dotted_name(expression: ast.expr) -> str:
    if isinstance(expression, ast.Attribute):
        return f"{dotted_name(expression.value)}.{expression.attr}"
    return expression.id if isinstance(expression, ast.Name) else "()"
