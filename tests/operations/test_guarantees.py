"""The guarantee table: the page shows, the matrix asserts and building a topology says the same."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import trident
import trident.testing
from tests.chaos import matrix, sources
from tests.states.outside.ledger_state import LedgerState
from trident import (
    Count,
    DeltaAppend,
    DeltaMapState,
    FixedBatchSpout,
    HttpState,
    MemoryMapState,
    NotExactlyOnceWarning,
    TridentTopology,
    non_transactional,
    opaque,
    transactional,
)
from trident.operations.guarantees import Guarantee, guarantee, guarantee_rows, table
from trident.spouts.contracts import SpoutKind
from trident.spouts.executors import spout_kind
from trident.states.core.binding import GuaranteeRow
from trident.states.core.kinds import kind_of_state
from trident.states.keyed.delta_map import KEYED
from trident.states.maps.backing_maps import MemoryBackingMap

DOCS = Path(__file__).resolve().parents[2] / "docs"
EXACT = Guarantee.EXACTLY_ONCE


def tables_of(page: str, heading: str) -> list[list[list[str]]]:
    """The tables under a heading of a page: lines of cells, without their markup."""
    text = (DOCS / page).read_text(encoding="utf-8")
    section = text.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    tables: list[list[list[str]]] = []
    above = ""
    for line in section.splitlines():
        if line.startswith("|"):
            if not above.startswith("|"):
                tables.append([])
            if not line.startswith("|--"):
                tables[-1].append([cell.strip().replace("`", "") for cell in line.strip("|").split("|")])
        above = line
    return tables


# --- the pages -----------------------------------------------------------------------------


def test_the_page_shows_the_table() -> None:
    (shown,) = tables_of("guarantees.md", "What is guaranteed")
    assert [tuple(line) for line in shown] == table()


def test_the_spouts_and_states_of_the_pages_can_be_imported_and_are_of_the_kind_they_say() -> None:
    spouts, *_ = tables_of("spouts.md", "All spouts")
    (states,) = tables_of("states.md", "All states")
    kinds = {name: kind for names, kind, _ in spouts[1:] for name in names.split(", ")}
    found = {name: getattr(trident, name, None) or getattr(trident.testing, name, None) for name in kinds}
    assert [name for name, spout in found.items() if spout is None] == []
    assert {name: spout_kind(spout).value for name, spout in found.items()} == kinds
    names = {name for line in states[1:] for name in line[0].removeprefix("a ").removeprefix("an ").split(", ")} - {
        "new_static_state"
    }
    assert [name for name in names if not (hasattr(trident, name) or hasattr(trident.testing, name))] == []


# --- the matrix ----------------------------------------------------------------------------


@pytest.mark.parametrize("state", matrix.STATES)
@pytest.mark.parametrize("spout", matrix.SPOUTS)
def test_a_pair_is_exactly_once_if_and_only_if_no_fault_of_the_matrix_shows(spout, state, tmp_path):
    topology, _ = matrix.Run(matrix.Cell(spout, (state,), matrix.Fault.NONE), tmp_path, start=_never).topology()
    (source,) = topology.graph.sources.values()
    (sink,) = [sink for name, sink in topology.graph.sinks.items() if name != "audit"]
    said = guarantee(spout_kind(source.spout), sink.binding.state_kind.guarantee_row(sink.binding.state))
    outcomes = {matrix.expected(spout, state, fault) for fault in matrix.Fault if matrix.applies(spout, fault)}
    possible = {
        Guarantee.EXACTLY_ONCE: set(),
        Guarantee.AT_LEAST_ONCE: {matrix.Outcome.DOUBLED},
        Guarantee.AT_MOST_ONCE: {matrix.Outcome.LOST},
        Guarantee.NEITHER: {matrix.Outcome.LOST, matrix.Outcome.DOUBLED, matrix.Outcome.BOTH},
    }[said]
    assert (said is EXACT) == (outcomes == {matrix.Outcome.EXACT})
    assert outcomes <= {matrix.Outcome.EXACT} | possible


def _never(topology: TridentTopology) -> Any:
    raise AssertionError("building a topology starts nothing")


# --- the warning ---------------------------------------------------------------------------


class UnfencedMap:
    """A store that takes every write."""

    def multi_get(self, keys: Any) -> list[Any]:
        return [None for _ in keys]

    def multi_put(self, keys: Any, values: Any, epoch: int | None = None) -> None: ...


class OwnState:
    """A StateFactory, and the updater of its states."""

    name = "own"

    def make_state(self, config: Any, partition_index: int, num_partitions: int) -> Any: ...

    def update_state(self, state: Any, tuples: Any, collector: Any) -> None: ...


def _appended(stream: Any, state: Any) -> int:
    stream.partition_persist(state)
    return sys._getframe().f_lineno - 1


def _updated(stream: Any, state: Any) -> int:
    stream.partition_persist(state, "word", OwnState())
    return sys._getframe().f_lineno - 1


def _counted(stream: Any, state: Any) -> int:
    stream.group_by("word").persistent_aggregate(state, Count(), "n")
    return sys._getframe().f_lineno - 1


SPOUTS: dict[SpoutKind, Callable[[], Any]] = {
    SpoutKind.NON_TRANSACTIONAL: lambda: sources.PoppingSpout(sources.Source("")),
    SpoutKind.TRANSACTIONAL: lambda: FixedBatchSpout("word string", []),
    SpoutKind.OPAQUE: lambda: sources.CommittedSpout(sources.Source("")),
}
# Line of the table → the state, and what writes to it at a line of the user's, which it returns.
STATES: dict[str, tuple[Any, Callable[[Any, Any], int]]] = {
    "OUTSIDE": (LedgerState("ledger.db"), _appended),
    "USER": (OwnState(), _updated),
    "NON_TRANSACTIONAL": (non_transactional("plain", MemoryBackingMap("m")), _counted),
    "NON_TRANSACTIONAL_SKIPPING": (non_transactional("skipping", MemoryBackingMap("m"), skip_replays=True), _counted),
    "UNFENCED": (opaque("unfenced", UnfencedMap()), _counted),
    "TRANSACTIONAL": (transactional("txid", MemoryBackingMap("m")), _counted),
    "OPAQUE": (opaque("previous", MemoryBackingMap("m")), _updated),
    "MEMORY": (MemoryMapState("memory"), _counted),
    "KEYED": (DeltaMapState("keyed"), _counted),
    "REPEATING": (HttpState("https://host/orders"), _appended),
    "APPEND": (DeltaAppend("rows"), _appended),
}


@pytest.mark.parametrize("row", guarantee_rows(), ids=lambda row: row.name)
@pytest.mark.parametrize("spout", SpoutKind, ids=lambda kind: kind.name)
def test_building_a_pair_that_is_not_exactly_once_warns_at_the_users_line(spout: SpoutKind, row: GuaranteeRow) -> None:
    said, (made, write) = guarantee(spout, row), STATES[row.name]
    assert kind_of_state(made).guarantee_row(made) is row
    stream = TridentTopology("t").new_stream("rows-in", SPOUTS[spout]())
    with warnings.catch_warnings(record=True) as caught:
        # One that is exactly once may not warn, of anything at all.
        warnings.simplefilter("error" if said is EXACT else "always")
        line = write(stream, made)
    if said is EXACT:
        return
    (warning,) = caught
    assert warning.category is NotExactlyOnceWarning
    assert (warning.filename, warning.lineno) == (__file__, line)
    text = str(warning.message)
    for part in ("'rows-in'", type(SPOUTS[spout]()).__name__, spout.value, repr(made.name), said.value):
        assert part in text, text
    # The pair that it names: this spout, or a better one, with DeltaMapState.
    better = SpoutKind.TRANSACTIONAL if spout is SpoutKind.NON_TRANSACTIONAL else spout
    assert guarantee(better, KEYED.guarantee_rows[0]) is EXACT
    assert "DeltaMapState" in text.split("; exactly once would be ")[1]


def test_new_values_of_a_state_are_as_good_as_its_spout() -> None:
    stream = TridentTopology("t").new_stream("rows-in", SPOUTS[SpoutKind.NON_TRANSACTIONAL]())
    with pytest.warns(NotExactlyOnceWarning, match="'keyed'"):
        counts = stream.group_by("word").persistent_aggregate(DeltaMapState("keyed"), Count(), "n")
    with pytest.warns(NotExactlyOnceWarning, match="'rows-in'.*'rows'"):
        counts.new_values_stream().partition_persist(DeltaAppend("rows"))
