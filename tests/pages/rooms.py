"""The packages as they import each other: arrows, those against the order, circles of files, lines, late imports.

``python -m tests.pages.rooms`` prints them, ``python -m tests.pages.rooms --map`` makes docs/modules.md.
The order of the packages is the one of import-linter's contracts in pyproject.toml; imports in functions and under
TYPE_CHECKING count as all others do.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import groupby
from pathlib import Path

import grimp
from importlinter.api import read_configuration

ROOT = Path(__file__).resolve().parents[2]
MAP = ROOT / "docs" / "modules.md"
FACADE = "trident"
OF_ALL = "# Imports within functions: "  # where one reason holds for a whole file


@dataclass(frozen=True)
class Arrow:
    """``importer`` imports ``imported``, at these lines."""

    importer: str
    imported: str
    lines: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.importer} -> {self.imported} (line {', '.join(map(str, self.lines))})"


class Rooms:
    """The import graph of trident, and the order that its packages ought to have."""

    def __init__(self) -> None:
        self.graph = grimp.build_graph("trident", cache_dir=None)
        contracts = read_configuration(str(ROOT / "pyproject.toml"))["contracts_options"]
        layers = [contract for contract in contracts if contract["type"] == "layers"]
        # Container -> its packages, low to high; those of one layer have the same rank.
        self.ranks = {
            contract["containers"][0]: {
                f"{contract['containers'][0]}.{name.strip()}": rank
                for rank, layer in enumerate(reversed(contract["layers"]))
                for name in layer.split(":")
            }
            for contract in layers
        }

    @cached_property
    def modules(self) -> list[str]:
        return sorted(self.graph.modules, key=lambda module: (self._place(module), module))

    @cached_property
    def arrows(self) -> list[Arrow]:
        return [
            Arrow(module, imported, tuple(d["line_number"] for d in details))
            for module in self.modules
            for imported in sorted(self.graph.find_modules_directly_imported_by(module))
            for details in [self.graph.get_import_details(importer=module, imported=imported)]
        ]

    def package(self, module: str) -> str:
        """The name of a module's package; of the files beside the packages "settings", "topology" or "facade"."""
        name = module.split(".")[1] if module != FACADE else ""
        if self.path(f"trident.{name}").name == "__init__.py" and name:
            return name
        if not name or self._rank(module) == self._rank("trident.cli"):
            return "facade"
        return "settings" if self._rank(module) == self._rank("trident.config") else name

    def packages(self) -> list[str]:
        return [package for package, _ in groupby(self.modules, self.package)]

    def wrong_arrows(self) -> list[Arrow]:
        """The arrows against the order, those that the contracts ignore included."""
        return [arrow for arrow in self.arrows if self._climbs(arrow)]

    def _climbs(self, arrow: Arrow) -> bool:
        if arrow.imported == FACADE:
            return self.package(arrow.importer) != "facade"
        for ranks in self.ranks.values():
            here, there = (_below(module, ranks) for module in (arrow.importer, arrow.imported))
            if here is not None and there is not None and ranks[there] > ranks[here]:
                return True
        return False

    def circles(self) -> list[list[str]]:
        """The strongly connected components of more than one module."""
        return strongly_connected(
            {module: sorted(self.graph.find_modules_directly_imported_by(module)) for module in self.modules}
        )

    def path(self, module: str) -> Path:
        place = ROOT / module.replace(".", "/")
        return place / "__init__.py" if place.is_dir() else place.with_suffix(".py")

    def lines(self, module: str) -> int:
        return len(self.path(module).read_text(encoding="utf-8").splitlines())

    def first_line(self, module: str) -> str:
        """The first line of the module's docstring; empty without one."""
        return _first_line(self.path(module))

    def _rank(self, module: str) -> int:
        ranks = self.ranks["trident"]
        place = _below(module, ranks)
        return len(ranks) if place is None else ranks[place]

    def _place(self, module: str) -> tuple[int, ...]:
        """Orders modules by package, low to high, and a package before what is in it."""
        states = self.ranks["trident.states"]
        place = _below(module, states)
        return (self._rank(module), -1 if place is None else states[place])


@cache
def _first_line(path: Path) -> str:
    return (ast.get_docstring(ast.parse(path.read_bytes())) or "").partition("\n")[0]


def _below(module: str, packages: Iterable[str]) -> str | None:
    return next((name for name in packages if module == name or module.startswith(name + ".")), None)


def strongly_connected(edges: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Tarjan's algorithm: the components of more than one node, the largest first."""
    numbers: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        numbers[node] = lowest[node] = len(numbers)
        stack.append(node)
        for other in edges[node]:
            if other not in numbers:
                visit(other)
            if other in stack:
                lowest[node] = min(lowest[node], lowest[other])
        if lowest[node] == numbers[node]:
            at = stack.index(node)
            component = stack[at:]
            del stack[at:]
            if len(component) > 1:
                found.append(sorted(component))

    for node in edges:
        if node not in numbers:
            visit(node)
    return sorted(found, key=lambda component: (-len(component), component))


@dataclass(frozen=True)
class LateImport:
    """An import within a function; ``reason`` is the comment on its line, or in the lines above it."""

    file: str
    line: int
    text: str
    reason: str


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """All statements below, without the expressions in them: a tenth of what ast.walk gives."""
    for name in ("body", "orelse", "handlers", "finalbody", "cases"):
        for node in getattr(tree, name, ()):
            yield node
            yield from statements(node)


def late_imports(files: Iterable[Path]) -> Iterator[LateImport]:
    for path in files:
        source = path.read_text(encoding="utf-8")
        if not re.search(r"^[ \t]+(import|from) ", source, re.MULTILINE):
            continue
        lines = source.splitlines()
        of_all = next((line.removeprefix(OF_ALL) for line in lines if line.startswith(OF_ALL)), "")
        nodes = {
            node
            for function in statements(ast.parse(source))
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
            for node in statements(function)
            if isinstance(node, ast.Import | ast.ImportFrom)
        }
        for node in sorted(nodes, key=lambda node: node.lineno):
            yield LateImport(
                path.relative_to(ROOT).as_posix(),
                node.lineno,
                lines[node.lineno - 1].strip(),
                of_all or _reason(lines, node.lineno - 1, node.end_lineno or node.lineno),
            )


def _reason(lines: list[str], first: int, end: int) -> str:
    """The comment on an import or above it; imports that follow each other share one."""
    while lines[first - 1].strip().startswith(("import ", "from ")):
        first -= 1
    above = lines[first - 1].strip()
    if above.startswith("#"):
        return above.removeprefix("#").strip()
    return next((line.partition("#")[2].strip() for line in lines[first:end] if "#" in line), "")


def product_files() -> list[Path]:
    return sorted(path for name in ("trident", "states", "coordinators") for path in (ROOT / name).rglob("*.py"))


def module_map(rooms: Rooms) -> str:
    """docs/modules.md: each module with the first line of its docstring, package by package."""
    out = ["# Modules", ""]
    out += ["Made from the first docstring line of each module by `python -m tests.pages.rooms --map`.", ""]
    out += ["The packages stand in import order: each imports only from those above it.", ""]
    for package, modules in groupby(rooms.modules, rooms.package):
        out += [f"## {package}", ""]
        for module in modules:
            line = rooms.first_line(module)
            if module == f"trident.{package}":
                out += [line, ""]
            elif rooms.path(module).name == "__init__.py" and module != FACADE:
                out += [*([""] if out[-1] else []), f"**{module.partition('.')[2]}**: {line}", ""]
            else:
                out.append(f"- `{module.partition('.')[2] or module}`: {line}")
        out += [""] if out[-1] else []
    return "\n".join(out)


def report(rooms: Rooms) -> str:
    wrong = rooms.wrong_arrows()
    circles = rooms.circles()
    late = list(late_imports(product_files()))
    ours = [item for item in late if item.text.startswith(("from trident", "import trident"))]
    between = Counter((rooms.package(a.importer), rooms.package(a.imported)) for a in rooms.arrows)
    modules = Counter(rooms.package(module) for module in rooms.modules)
    lines: Counter[str] = Counter()
    for module in rooms.modules:
        lines[rooms.package(module)] += rooms.lines(module)
    out = [f"{'package':14}{'modules':>8}{'lines':>8}  imports (arrows)"]
    for package in rooms.packages():
        arrows = ", ".join(f"{to} {between[package, to]}" for to in rooms.packages() if between[package, to])
        out.append(f"{package:14}{modules[package]:8}{lines[package]:8}  {arrows}")
    out += [f"{'together':14}{len(rooms.modules):8}{sum(lines.values()):8}  {len(rooms.arrows)} arrows", ""]
    out += [f"{len(wrong)} arrows against the order", *(f"  {arrow}" for arrow in wrong)]
    out += [f"{len(circles)} circles of files", *(f"  {len(c)}: {' '.join(c)}" for c in circles)]
    reasonless = [item for item in late if not item.reason]
    out += [f"{len(late)} imports within functions, {len(ours)} of them of our own modules; no reason beside:"]
    out += [f"  {len(reasonless)}"]
    if "--late" in sys.argv:
        out += [f"  {item.file}:{item.line} {item.text}" for item in reasonless]
    return "\n".join(out)


if __name__ == "__main__":
    if "--map" in sys.argv:
        MAP.write_text(module_map(Rooms()), encoding="utf-8")
    else:
        print(report(Rooms()))
