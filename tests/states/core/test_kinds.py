"""The kinds of states: their stored names, how a state is recognised, and that no code compares names of kinds."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DayTimeIntervalType,
    StringType,
    StructField,
    StructType,
    VarcharType,
    VariantType,
)

from trident import DeltaAppend, DeltaMapState, MemoryMapState, non_transactional, opaque, transactional
from trident.coordinators.errors import Halted, TopologyError
from trident.coordinators.identities import TransactionAttempt
from trident.states.core.kinds import all_kinds, kind_of_state, stored_kind
from trident.states.delta.manifest import Manifest, ManifestTable
from trident.states.maps.backing_maps import MemoryBackingMap

ROOT = Path(__file__).resolve().parents[3]
# In manifests and descriptors that were written long ago.
STORED = ["append", "keyed", "memory", "map", "user", "dead_letters", "messages", "outside"]


def test_the_stored_names_of_the_kinds_are_what_they_were() -> None:
    assert [kind.name for kind in all_kinds()] == STORED
    assert [kind.name for kind in all_kinds() if kind.is_described] == ["append", "keyed"]
    assert [kind.name for kind in all_kinds() if kind.has_table] == ["append", "keyed", "dead_letters", "messages"]


@pytest.mark.parametrize(
    ("state", "name"),
    [
        (DeltaAppend("s"), "append"),
        (DeltaMapState("s"), "keyed"),
        (MemoryMapState("s"), "memory"),
        (opaque("s", MemoryBackingMap("s")), "map"),
        (transactional("s", MemoryBackingMap("s")), "map"),
        (non_transactional("s", MemoryBackingMap("s")), "user"),
        (SimpleNamespace(name="s", make_state=lambda *_: None), "user"),
    ],
    ids=lambda one: one if isinstance(one, str) else type(one).__name__,
)
def test_a_state_is_of_one_kind(state: object, name: str) -> None:
    assert kind_of_state(state).name == name
    assert stored_kind(name, "s") is kind_of_state(state)


@pytest.mark.parametrize("state", [DeltaAppend, object(), "counts"], ids=["a class", "an object", "a text"])
def test_anything_else_is_refused_with_the_states_that_there_are(state: object) -> None:
    with pytest.raises(TopologyError, match="DeltaAppend.name., DeltaMapState.name., .* a StateFactory"):
        kind_of_state(state)


@pytest.mark.parametrize(
    "kind", [StructType(), ArrayType(StringType()), DayTimeIntervalType(), VariantType(), VarcharType(3)], ids=str
)
def test_a_memory_map_refuses_keys_that_not_all_can_group_by(kind: DataType) -> None:
    schema = StructType([StructField("good", StringType()), StructField("bad", kind)])
    state = MemoryMapState("s")
    kind_of_state(state).check_rows(state, schema, ("good",))
    with pytest.raises(TopologyError, match="field 'bad' cannot be a key"):
        kind_of_state(state).check_rows(state, schema, ("good", "bad"))


def test_a_manifest_with_a_kind_that_is_not_known_halts() -> None:
    part = ManifestTable("rows", "append", "rows", "id", "hash", ())
    manifest = Manifest("top", "g", "inc1", TransactionAttempt(1, 0), None, (part,), {})
    later = manifest.encode().replace(b'"append"', b'"kafka"')
    with pytest.raises(Halted, match="'rows' is of a kind that this version .* does not know") as caught:
        Manifest.decode(later)
    assert caught.value.found == "'kafka'" and "append, keyed" in caught.value.expected


# --- no code asks for a kind by its name ----------------------------------------------------

OF_STATES = {"binding", "descriptor", "part", "state", "state_kind", "table"}


def compared(source: str) -> Iterator[int]:
    """Lines that compare the name of a state's kind with texts."""
    if not re.search(r"\.kind\b|\bstate_kind\b", source):
        return
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Compare):
            continue
        sides = [node.left, *node.comparators]
        texts = any(
            isinstance(one, ast.Constant) and isinstance(one.value, str) for each in sides for one in ast.walk(each)
        )
        if texts and any(_is_kind(side) for side in sides):
            yield node.lineno


def _is_kind(side: ast.expr) -> bool:
    if not isinstance(side, ast.Attribute) or side.attr not in ("kind", "name"):
        return False
    owner = side.value
    name = owner.attr if isinstance(owner, ast.Attribute) else owner.id if isinstance(owner, ast.Name) else ""
    return name in OF_STATES and (side.attr == "kind" or name == "state_kind")


@pytest.mark.parametrize(
    "line", ['binding.kind == "map"', 'part.kind in ("map", "user")', 'x.binding.state_kind.name != "keyed"']
)
def test_a_planted_comparison_is_found(line: str) -> None:
    assert list(compared(line)) == [1]


def test_no_code_compares_the_name_of_a_kind() -> None:
    files = [path for top in ("states", "coordinators", "trident") for path in (ROOT / top).rglob("*.py")]
    found = [f"{path}:{line}" for path in files for line in compared(path.read_text(encoding="utf-8"))]
    assert len(files) > 100 and found == [], "ask the kind (trident/states/core/binding.py) instead"
