"""Each name that a page gives is one of the code: settings, arguments, options, variables, public names, files.

Names are taken from text between backticks, from indented lines, and from blocks that no test runs. Names of other
programs (Spark, Kafka, PostgreSQL, Storm) are in ``OTHERS``.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import inspect
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
import pytest

import trident
from tests.pages.made import commands
from tests.pages.page_runner import blocks
from tests.pages.rooms import statements
from trident.config import TridentConfig

ROOT = Path(__file__).resolve().parents[2]
# Records of decisions speak of the code of their day.
PAGES = sorted(
    path
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    if path.parent.name != "decisions"
)
BY_PAGE = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
# Pages that are about the code of this repository, and so may name what only its tests and benchmarks have.
OF_THE_REPOSITORY = re.compile(r"architecture|benchmarks|faults|modules|CONTRIBUTING|reliability|storage")
STORM = {"from-storm.md"}

OTHERS = set(
    # Debezium, PostgreSQL, delta-spark, Prometheus
    "adaptive_time_microseconds "
    "lc_messages pg_terminate_backend statement_timeout target_session_attrs configure_spark_with_delta_pip "
    "trident_zookeeper_request_duration_seconds_bucket "
    "histogram_quantile "
    # NFS, systemd
    "local_lock TimeoutStopSec KillMode "
    # Spark and Flink
    "PropagateEmptyRelation QueryExecutionListener AutoCreateSharedArchive StreamingQueryListener StreamingQuery "
    "KeyedProcessFunction LocalDRPC ReturnResults LogStore EventTimeOrder "
    # S3, Hadoop
    "AbortMultipartUpload ListMultipartUploads FileInfo "
    # Names that an example gives, or that the code puts together
    "order_log orders_fixed open_clicks fields_and_columns resolve_by_tables".split()
)
NOT_OURS = re.compile(r"(?:spark|delta|hadoop|hive|fs|dfs|log4j|kafka)\.[\w.]+|-D\S+|-XX\S+|/\S*\.(?:sh|jar)")


PRODUCT = ("trident", "states", "coordinators")


def not_in_code(names: set[str], packages: tuple[str, ...] = PRODUCT) -> list[str]:
    """Those that are no identifiers of some packages, nor words of their texts.

    Docstrings and comments do not count: they promise. A file is parsed only if it has one of the names.
    """
    left = set(names)
    for package in (*packages, "java"):
        for path, text in _files(package).items():
            left.discard(path.stem)
            if any(name in text for name in left):
                left -= _names_of(path)
    return sorted(left)


@functools.cache
def _files(package: str) -> dict[Path, str]:
    paths = (path for kind in ("py", "java", "yml") for path in (ROOT / package).rglob(f"*.{kind}"))
    return {path: path.read_text(encoding="utf-8") for path in paths}


@functools.cache
def _names_of(path: Path) -> frozenset[str]:
    """The words of a file, without docstrings and comments."""
    source = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        return frozenset(re.findall(r"\w+", source))
    lines = source.splitlines()
    for node in statements(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            lines[node.lineno - 1 : node.end_lineno] = [""] * ((node.end_lineno or 0) - node.lineno + 1)
    return frozenset(re.findall(r"\w+", re.sub(r"^\s*#.*|  # .*", "", "\n".join(lines), flags=re.MULTILINE)))


@functools.cache
def written(page: Path) -> list[str]:
    """The pieces of a page that are code or names, and that no test runs."""
    text = page.read_text(encoding="utf-8")
    doctests = r"^```python\n>>>"  # of tests of their own
    text = re.sub(doctests + r".*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    prose = re.sub(r"^```.*?^```$|^<!-- also run.*?^-->$", "", text, flags=re.MULTILINE | re.DOTALL)
    left = [
        block.text
        for block in blocks(page)
        if not block.runs and ">>>" not in block.text and block.language in ("python", "toml")
    ]
    return [
        NOT_OURS.sub("", piece)
        for piece in re.findall(r"`([^`\n]+)`", prose) + re.findall(r"^    (\S.*)$", prose, re.MULTILINE) + left
    ]


@BY_PAGE
def test_every_identifier_that_a_page_names_is_in_the_code(page: Path) -> None:
    packages = PRODUCT
    if OF_THE_REPOSITORY.search(str(page.relative_to(ROOT))):
        packages += ("tests", "benchmarks", "examples")
    pattern = r"(?<![\w./:-])[a-z][a-z0-9]*(?:_[a-z0-9]+)+(?![\w/*{<…])"
    if page.name not in STORM:
        pattern += r"|(?<![\w.])[A-Z][a-z0-9]+[A-Z]\w+"
    named = {name for piece in written(page) for name in re.findall(pattern, piece)}
    own = set(re.findall(r"^class (\w+)", page.read_text(encoding="utf-8"), re.MULTILINE))
    assert not_in_code(named - OTHERS - own, packages) == []


SETTINGS = {one.name for one in fields(TridentConfig)}


@BY_PAGE
def test_every_setting_and_variable_that_a_page_names_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    set_on_a_line = {name for name in re.findall(r"--set[ =](\w+)=", text) if name.lower() != "key"}
    assert sorted(set_on_a_line - SETTINGS) == []
    known = {f"TRIDENT_{name.upper()}" for name in SETTINGS}
    variables = {one for one in re.findall(r"\bTRIDENT_[A-Z]\w*", text) if "__" not in one}
    assert not_in_code(variables - known, (*PRODUCT, "tests", "benchmarks")) == []


# Of spark-submit, Spark's worker and `make test`.
OPTIONS_OF_OTHERS = set("--packages --conf --driver-memory --driver-java-options --work-dir --skip".split())


def test_every_option_that_a_page_names_exists() -> None:
    """Options of `trident …` are compared with their command in test_docs.py; these stand alone."""
    ours = {option for _, command in commands() for one in command.params for option in one.opts} | {"--help"}
    found = 0
    for page in PAGES:
        for piece in written(page):
            if found_options := re.match(r"--[a-z][a-z-]*", piece):
                found += 1
                assert found_options[0] in ours | OPTIONS_OF_OTHERS, f"{page.name}: {piece}"
    assert found > 100


@functools.cache
def parameters(name: str) -> set[str]:
    """The parameters that a public function, class or method of this name takes; empty: none has the name."""
    found: set[str] = set()
    for public in trident.__all__:
        one = getattr(trident, public)
        members = [one] if public == name else []
        if inspect.isclass(one) and hasattr(one, name):
            members.append(getattr(one, name))
        for member in members:
            if callable(member):
                found |= _parameters(member)
    return found


def _parameters(function: Any) -> set[str]:
    try:
        taken = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return set()
    given = set(taken)
    if any(one.kind is one.VAR_KEYWORD for one in taken.values()):
        given |= SETTINGS
    return given


CALL = re.compile(r"(?<![\w])([A-Za-z_][\w.]*)\(([^()]*)\)")


@BY_PAGE
def test_every_argument_of_a_public_call_that_a_page_names_exists(page: Path) -> None:
    for piece in written(page):
        for name, given in CALL.findall(piece):
            taken = parameters(name.rsplit(".", 1)[-1])
            named = set(re.findall(r"(?:^|[,(… ])([a-z]\w*)=", given))
            assert not taken or named <= taken, f"{page.name}: {piece}: {sorted(named - taken)}"


OBJECTS = {"query": ("TopologyQuery", "TupleQuery"), "topology": ("TridentTopology",), "stream": ("Stream",)}
OURS = re.compile(r"(?<![\w./-])(query|topology|stream|trident)\.([a-z]\w*)(?![\w./-])")
FILES = {"toml", "py", "sh", "zip", "sql", "db"}


@BY_PAGE
def test_every_attribute_of_ours_that_a_page_names_exists(page: Path) -> None:
    for piece in written(page) if page.name not in STORM | {"fault-points.md", "migrate.md"} else ():
        for owner, attribute in OURS.findall(piece) if "pyspark" not in piece else ():
            if owner == "trident":
                there = importlib.util.find_spec(f"trident.{attribute}") or f"trident.{attribute}" in texts_in_code()
                there = there or hasattr(trident, attribute)
            else:
                there = any(hasattr(getattr(trident, one), attribute) for one in OBJECTS[owner])
            assert there or attribute in FILES, f"{page.name}: {piece}: {owner} has no {attribute}"


@functools.cache
def texts_in_code() -> frozenset[str]:
    """Loggers, properties of tables, types of content: whole texts with a dot."""
    files = [path for package in ("trident", "states", "coordinators") for path in (ROOT / package).rglob("*.py")]
    code = "\n".join(path.read_text(encoding="utf-8") for path in files)
    return frozenset(re.findall(r"trident\.[a-z_]+", code))


def test_every_public_name_is_on_a_page() -> None:
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES if page.name != "modules.md")
    words = set(re.findall(r"\w+", text))
    assert [name for name in trident.__all__ if name not in words] == []


@BY_PAGE
def test_every_file_of_a_warehouse_that_a_page_names_is_one_that_the_code_names(page: Path) -> None:
    paths = re.findall(r"_trident/([\w/.<>{}*-]+)", page.read_text(encoding="utf-8"))
    parts = {part for path in paths for part in re.split(r"[/.-]", re.sub(r"<[^>]*>", "", path))}
    assert not_in_code({part for part in parts if part and not part.isupper()}) == []


def test_the_help_of_each_command_is_on_the_page_of_commands() -> None:
    """As `trident COMMAND --help` prints it, but for where lines break."""
    page = _plain((ROOT / "docs" / "cli.md").read_text(encoding="utf-8"))
    for name, command in commands():
        context = click.Context(command, info_name=name, max_content_width=10_000, terminal_width=10_000)
        said, _, more = command.get_help(context).removeprefix("Usage: ").partition("\nOptions:\n")
        options, _, of_group = more.partition("\nCommands:\n")
        lines = [line for line in [*said.splitlines(), *options.splitlines()] if "--help  " not in line]
        lines += [f"{name} {line.strip().partition('  ')[0]}" for line in of_group.splitlines()]
        missing = [line for line in lines if _plain(line) not in page]
        assert missing == [], f"{name}: {missing}"


def _plain(text: str) -> str:
    return re.sub(r"[\s`|\\]+", " ", text).strip()
