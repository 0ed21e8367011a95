"""docs/reference.md: every parameter of the spouts and states, and every method of the contracts, from the docstrings.

``tests/whole/test_pages.py`` compares the page with the code, and finds a parameter that its docstring leaves out.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import trident
import trident.testing
from trident.running.query_base import QueryBase
from trident.spouts import contracts
from trident.states.maps import map_states
from trident.states.maps.backed_map import BackedMapState

# Sections of the page: the names in their order. A name with a star is a contract, or a queue: its methods are listed.
SECTIONS = {
    "Spouts": (
        "FileSpout DeltaSpout KafkaSpout OpaqueKafkaSpout DataSourceSpout StructuredStreamSpout RateSpout "
        "GeneratorSpout DirectoryQueueSpout QueueSpout SqliteQueue* RedisListSpout RedisListQueue* "
        "InProcessQueueSpout InProcessQueue* FixedBatchSpout FeederBatchSpout* FeederCommitterBatchSpout*"
    ),
    "Contracts of spouts": (
        "SpoutKind SpoutContext TridentSpout* BatchCoordinator* Emitter* Emitted CommitterTridentSpout* Commits* "
        "LiveAttempts* TakingCoordinator* BatchSpout* PartitionedTridentSpout* PartitionedCoordinator* "
        "PartitionEmitter* PartitionBatch OpaquePartitionedTridentSpout* OpaquePartitionEmitter* RichSpout* "
        "SpoutCollector* Shrinks* ReportsBacklog* Backlog Resumes* Refreshes* Prepares* Cancels* OwnsTable* "
        "GivenOnce* Acknowledges*"
    ),
    "States": (
        "DeltaMapState DeltaAppend Upsert KafkaState PostgresState HttpState opaque transactional non_transactional "
        "SqliteMap RedisMap PostgresMap MemoryBackingMap StaticMap MemoryMapState LRUMemoryMapState "
        "MapGet SnapshotGet TupleCollectionGet"
    ),
    "Contracts of states": (
        "OutsideState* OutsideRows OutsidePart* OutsideMark* BackingMap* FencedBackingMap* OpaqueValue "
        "TransactionalValue StateFactory* State* StateUpdater* TridentCollector* QueryFunction* MapState* "
        "RemovableMapState* Snapshottable* SnapshottableMap"
    ),
    "Objects that your code is given": (
        "MultiReducer* TimerContext* BoltContext BasicOutputCollector* TupleQuery* TupleFailure View Difference "
        "RowExplanation ChainedAggregation WindowedStream TrueFilter"
    ),
}
GIVEN = SECTIONS["Objects that your code is given"].replace("*", "").split()
# Where the arguments of one are described that says so in words.
DESCRIBED_BY: Mapping[str, Any] = {
    "OpaqueKafkaSpout": trident.KafkaSpout,
    "opaque": BackedMapState,
    "transactional": BackedMapState,
    "non_transactional": BackedMapState,
    "SnapshottableMap": None,
}
SECTION = re.compile(r"^(Args|Attributes|Raises|Returns):\n", re.MULTILINE)


@dataclass(frozen=True)
class Docstring:
    """The parts of a docstring: its text, the parameters by name, the errors."""

    text: str
    parameters: Mapping[str, str]
    raises: str


def docstring(one: Any) -> Docstring:
    """Takes a docstring apart (Google's style)."""
    text = inspect.cleandoc(one.__dict__.get("__doc__") or "" if inspect.isclass(one) else one.__doc__ or "")
    pieces = SECTION.split(text)
    prose, parameters, raises = [pieces[0].strip()], {}, ""
    for title, rest in zip(pieces[1::2], pieces[2::2]):
        body, after = re.match(r"((?:[ ]{4}[^\n]*\n?|\n)*)(.*)", rest, re.DOTALL).groups()  # type: ignore[union-attr]
        prose.append(after.strip())
        if title in ("Args", "Attributes"):
            parameters.update(_parameters(textwrap.dedent(body)))
        elif title == "Raises":
            raises = _line(textwrap.dedent(body))
        else:
            prose.append(f"Returns {_line(body)}")
    return Docstring("\n\n".join(filter(None, prose)), parameters, raises)


def _parameters(body: str) -> Iterator[tuple[str, str]]:
    for names, meaning in re.findall(r"^(\w+(?:, \w+)*): ?((?:.*\n?)(?:[ ]+.*\n?|\n)*)", body, re.MULTILINE):
        for name in names.split(", "):
            yield name, _line(meaning)


def _line(text: str) -> str:
    return _marked(" ".join(text.split())).replace("|", "\\|")


def _marked(text: str) -> str:
    """The marks of docstrings as those of Markdown."""
    text = re.sub(r":(?:class|func|meth|mod|attr):`~?([^`]*)`", lambda found: f"`{found[1].rsplit('.', 1)[-1]}`", text)
    return text.replace("``", "`")


def documented(name: str) -> Any:
    """The object of a name in SECTIONS."""
    for home in (trident, trident.testing, contracts, map_states):
        if hasattr(home, name):
            return getattr(home, name)
    raise AssertionError(f"{name} is nowhere")


def entries() -> Iterator[tuple[str, str, Any, bool]]:
    """Section, name, object, and whether its methods are listed."""
    for section, names in SECTIONS.items():
        for name in names.split():
            yield section, name.rstrip("*"), documented(name.rstrip("*")), name.endswith("*")


def signature(one: Any) -> dict[str, inspect.Parameter]:
    """The parameters that a caller gives."""
    contract = inspect.isclass(one) and getattr(one, "_is_protocol", False)
    if contract or one.__name__ in ("SpoutKind", "RichSpout", "SnapshottableMap", *GIVEN):
        return {}
    given = inspect.signature(one).parameters
    return {name: at for name, at in given.items() if not name.startswith("_") and at.kind is not at.VAR_POSITIONAL}


def meanings(name: str, one: Any) -> Mapping[str, str]:
    """What the docstrings say of its parameters."""
    other = DESCRIBED_BY.get(name)
    found = {**(docstring(other).parameters if other is not None else {}), **docstring(one).parameters}
    init = one.__dict__.get("__init__") if inspect.isclass(one) else None
    if inspect.isclass(one) and issubclass(one, trident.OutsideState):
        found = {**docstring(trident.OutsideState).parameters, **found}
    if init is not None and init.__doc__:
        found = {**docstring(init).parameters, **found}
    of_all = docstring(trident.OutsideState).parameters
    return {
        one: of_all[one] if said.startswith("as of every Out") and one in of_all else said
        for one, said in found.items()
    }


def reference_page(_: str) -> str:
    """The page."""
    lines = [
        "# Reference: every parameter of spouts and states",
        "",
        "Made from the docstrings by `python -m tests.pages`; a test compares them. How to use and write them:",
        "[spouts](spouts.md), [states](states.md). All are imported from `trident`; `MemoryBackingMap` and the two",
        "feeders, which are for tests, from `trident.testing`. The optional methods of spouts (`Shrinks` to",
        "`Acknowledges`) need no import: an object that has them is taken to have them.",
    ]
    last = ""
    for section, name, one, methods in entries():
        if section != last:
            lines += ["", f"## {section}"]
            last = section
        lines += ["", f"### {name}", "", *_entry(name, one, methods)]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _entry(name: str, one: Any, methods: bool) -> Iterator[str]:
    found = docstring(one)
    yield from _prose(found.text)
    given, meaning = signature(one), meanings(name, one)
    if given:
        yield from ("", "| parameter | default | |", "|---|---|---|")
        for parameter, at in given.items():
            yield f"| `{parameter}` | {_default(at)} | {meaning.get(parameter, '')} |"
    elif found.parameters:
        yield from ("", "| attribute | |", "|---|---|")
        yield from (f"| `{attribute}` | {said} |" for attribute, said in found.parameters.items())
    if found.raises:
        yield from ("", f"Raises {found.raises}")
    if methods:
        yield from _methods(one)


def _prose(text: str) -> Iterator[str]:
    code = False
    for line in _marked(text).splitlines():
        if line.endswith("::"):
            line, code = line[:-2] + (":" if line[:-2] else ""), True
        elif code and line and not line.startswith(" "):
            code = False
        yield line


def _methods(one: type) -> Iterator[str]:
    shared = vars(QueryBase) if issubclass(one, QueryBase) else {}
    for name, member in {**vars(one), **shared, **vars(one)}.items():
        function = member.fget if isinstance(member, property) else member
        if name.startswith("_") or not inspect.isfunction(function):
            continue
        call = name if isinstance(member, property) else f"{name}({_arguments(function)})"
        said = docstring(function)
        text = " ".join(_line(part) for part in said.text.split("\n\n"))
        more = "; ".join(f"`{parameter}`: {meaning.rstrip('.')}" for parameter, meaning in said.parameters.items())
        raises = f"Raises {said.raises}" if said.raises else ""
        yield from ("", f"- `{call}` {' '.join(filter(None, (text, more, raises)))}".rstrip())


def _arguments(function: Any) -> str:
    given = list(inspect.signature(function).parameters.values())[1:]
    return ", ".join(at.name if at.default is at.empty else f"{at.name}={_value(at.default)}" for at in given)


def _default(at: inspect.Parameter) -> str:
    return "" if at.default is at.empty else f"`{_value(at.default)}`"


def _value(value: Any) -> str:
    if isinstance(value, float) and value.is_integer() or isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}" if value < 10_000 or value % 1_000 == 0 else _bytes(int(value))
    text = "{}" if repr(value) == "<factory>" else repr(value)
    return text if len(text) < 60 and " at 0x" not in text else "…"


def _bytes(value: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if value % size == 0:
            return f"{value // size} {unit}"
    return f"{value:,}"
