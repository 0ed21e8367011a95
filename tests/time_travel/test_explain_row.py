"""Which transactions wrote a row: by logs that were dropped from, without manifests, and for wrong questions."""

from __future__ import annotations

from typing import Any

import pytest

import trident
from tests.states.keyed_helpers import Group, append, keyed
from trident.coordinators.errors import FieldError, TableError
from trident.states.delta.kernel import KernelEngine
from trident.states.keyed.compactor import Compactor
from trident.time_travel.explain_row import RowExplanation, RowSource, RowWriter


@pytest.fixture(scope="module")
def group(spark, tmp_path_factory) -> Group:
    """Transactions 1 to 6 in three states; of counts the log has those above 4 alone. To be read only."""
    total = keyed("total", "count bigint", ())
    folder = tmp_path_factory.mktemp("explained")
    group = Group(spark, KernelEngine(spark), folder, keyed(), total, append("lines", "line string, n int", ["n"]))
    for txid in range(1, 7):
        counts = [("the", 2), (f"w{txid}", 1), (None, txid)]
        group.publish(txid, {"counts": counts, "total": [(txid,)], "lines": [("a", txid % 2), (f"l{txid}", 1)]})
        if txid in (2, 4):
            compactor_of(group, "counts").merge_once(txid, force=True)
    assert compactor_of(group, "counts", snapshot_retention_txids=2).drop_once(6) == 4
    return group


def compactor_of(group: Group, name: str, **settings: Any) -> Compactor:
    binding = group.bindings[name]
    state = type(binding.state)(name, **settings)
    return Compactor(group.spark, group.engine, group.warehouse, group.descriptor(name), state, binding.aggregator)


def said(group: Group, table: str, row: Any) -> tuple[list[tuple[int, int]], tuple[str, ...]]:
    found = trident.explain_row(group.warehouse, "top", table, row)
    assert all(one.epoch == 1 and one.sources is None for one in found.writers)  # nothing was kept of them
    return [(one.txid, one.rows) for one in found.writers], found.not_known


def test_a_key_is_explained_as_far_back_as_its_log_goes(group):
    writers, not_known = said(group, "counts", "the")
    assert writers == [(5, 1), (6, 1)] and "transactions up to 4" in not_known[0]
    assert said(group, "counts", "w6") == ([(6, 1)], ())  # it was not there as of 4
    assert said(group, "counts", "w3")[0] == [] and said(group, "counts", "w3")[1] != ()
    assert said(group, "counts", "never") == ([], ())
    assert said(group, "counts", None)[0] == [(5, 1), (6, 1)]
    assert said(group, "total", ()) == ([(txid, 1) for txid in range(1, 7)], ())


def test_rows_of_a_partitioned_append_are_told_by_any_of_their_columns(group):
    assert said(group, "lines", {"line": "a", "n": 0}) == ([(2, 1), (4, 1), (6, 1)], ())
    assert said(group, "lines", {"n": 0}) == ([(2, 1), (4, 1), (6, 1)], ())
    assert said(group, "lines", {"line": "l3"}) == ([(3, 1)], ())
    assert said(group, "lines", {"line": None}) == ([], ())
    shown = str(trident.explain_row(group.warehouse, "top", "lines", {"line": "l3"}))
    assert "transaction 3: 1 rows, attempt 0, epoch 1" in shown and "manifest is not kept" in shown


@pytest.mark.parametrize(
    ("table", "row", "error", "text"),
    [
        ("nothing", "a", TableError, "there is no state 'nothing'"),
        ("counts", ("a", "b"), FieldError, "no key of state counts"),
        ("counts", 7, FieldError, "not of its type"),
        ("lines", "a", TableError, "a dict of values by the names of its columns"),
        ("lines", {"word": "a"}, TableError, "a value for some of line, n"),
        ("lines", {}, TableError, "a value for some of line, n"),
        ("lines", {"n": "one"}, FieldError, "not of its type"),
    ],
)
def test_a_question_that_cannot_be_answered_says_why(group, table, row, error, text):
    with pytest.raises(error, match=text):
        trident.explain_row(group.warehouse, "top", table, row)


def test_the_topology_is_asked_for_its_own_states_alone(group):
    with pytest.raises(TableError, match="not of topology 'other'"):
        trident.explain_row(group.warehouse, "other", "counts", "the")


def test_a_hot_keys_many_transactions_are_some_lines_when_it_is_printed() -> None:
    positions = {f"partition-{n}": n for n in range(1000)}
    sources = {"lines": RowSource("KafkaSpout", "opaque", positions, None)}
    writers = tuple(RowWriter(txid, 0, 1, "a1", 1, sources) for txid in range(1, 301))
    lines = str(RowExplanation("t", "lines", "counts", "the", 300, writers, ())).splitlines()
    assert lines[0] == "counts 'the': 300 rows, of 300 transactions"
    assert lines[1] == "  290 earlier transactions, 1 to 290: see .writers"
    assert len(lines) == 22 and max(map(len, lines)) < 300
    assert lines[2].startswith("  transaction 291: ") and lines[-2].startswith("  transaction 300: ")
