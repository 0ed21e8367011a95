"""A column of txids in an append table: of each row the transaction that wrote it, whatever else the state is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import deltalake
import pytest

import trident
from trident import DeltaAppend, FixedBatchSpout, TridentTopology
from trident.coordinators import faults
from trident.coordinators.errors import ConfigError, FieldError

BATCHES: list[list[tuple]] = [[("a", 1), ("b", 2)], [], [("c", 1)], [("a", 1)]]
TXIDS = {("a", 1, 1), ("b", 2, 1), ("c", 1, 3), ("a", 1, 4)}


def topology(state: DeltaAppend, batches: list[list[tuple]] = BATCHES, columns: str = "word, n") -> TridentTopology:
    made = TridentTopology("told")
    made.new_stream("s", FixedBatchSpout("word string, n int", batches)).partition_persist(state, columns)
    return made


def rows(folder: Path, name: str = "words") -> list[dict[str, Any]]:
    """By a reader that knows no Trident."""
    return deltalake.DeltaTable(str(folder / "warehouse" / name)).to_pyarrow_table().to_pylist()


def tuples(folder: Path) -> set[tuple]:
    return {(row["word"], row["n"], row["_txid"]) for row in rows(folder)}


@pytest.mark.long
def test_each_row_has_its_transaction(start, spark, tmp_path):
    faults.arm("publish.table:do_then_fail:2,manifest.write:do_then_fail:1")  # an attempt that is replayed counts once
    query = start.run(topology(DeltaAppend("words", ["n"], txid_column="_txid")))
    assert tuples(tmp_path) == TXIDS and len(rows(tmp_path)) == 4
    frame = query.snapshot("words")
    assert frame.columns == ["word", "n", "_txid"]
    assert {tuple(row) for row in frame.collect()} == TXIDS
    assert {tuple(row) for row in query.snapshot("words", 3).collect()} == {row for row in TXIDS if row[2] <= 3}
    assert trident.read(spark, tmp_path / "warehouse", "words").columns == ["word", "n", "_txid"]
    said = trident.explain_row(tmp_path / "warehouse", "told", "words", {"word": "a", "n": 1})
    assert [(one.txid, one.rows) for one in said.writers] == [(1, 1), (4, 1)] and said.not_known == ()
    assert trident.explain_row(tmp_path / "warehouse", "told", "words", {"n": 2, "_txid": 1}).found == 1
    assert trident.explain_row(tmp_path / "warehouse", "told", "words", {"n": 2, "_txid": 4}).found == 0
    query.stop()


@pytest.mark.long
def test_a_table_gets_the_column_and_further_fields_and_may_lose_it_again(start, spark, tmp_path):
    start.run(topology(DeltaAppend("words"), BATCHES[:1], "word")).stop()
    start.run(topology(DeltaAppend("words", txid_column="_txid"), BATCHES[:3], "word")).stop()
    start.run(topology(DeltaAppend("words", txid_column="_txid"), BATCHES, "word, n")).stop()
    found = {(row["word"], row.get("n"), row["_txid"]) for row in rows(tmp_path)}
    # Rows from before have none: they are explained by their files.
    assert found == {("a", None, None), ("b", None, None), ("c", None, 3), ("a", 1, 4)}
    said = trident.explain_row(tmp_path / "warehouse", "told", "words", {"word": "b"})
    assert [one.txid for one in said.writers] == [1]
    query = start.run(topology(DeltaAppend("words"), [*BATCHES, [("d", 4)]], "word, n"))
    assert {(row["word"], row["_txid"]) for row in rows(tmp_path)} >= {("a", 4), ("d", None)}
    assert query.snapshot("words").columns == ["word", "n"]
    query.stop()


@pytest.mark.long
def test_a_table_that_is_taken_over_has_null_in_its_own_rows(start, spark, tmp_path):
    spark.sql("SELECT 'old' AS word, 7 AS n").write.format("delta").save(str(tmp_path / "warehouse" / "words"))
    query = start.run(topology(DeltaAppend("words", adopt=True, txid_column="_txid")))
    assert tuples(tmp_path) == {("old", 7, None), *TXIDS}
    said = trident.explain_row(tmp_path / "warehouse", "told", "words", {"word": "old"})
    assert (said.found, said.writers) == (1, ()) and "before the topology's first transaction" in said.not_known[0]
    query.stop()


def test_what_cannot_be_a_column_of_txids_is_refused():
    for wrong in ("", "a b", "a.b", 7, True):
        with pytest.raises(ConfigError, match="txid_column of state words is no name of a column"):
            DeltaAppend("words", txid_column=wrong)  # type: ignore[arg-type]
    with pytest.raises(FieldError, match="field 'n' cannot be written to state words"):
        topology(DeltaAppend("words", txid_column="N"))
    with pytest.raises(FieldError, match="partitioned by a field that is not written"):
        topology(DeltaAppend("words", ["_txid"], txid_column="_txid"))


def test_the_column_is_no_part_of_the_identity(start, tmp_path):
    start.run(topology(DeltaAppend("words", txid_column="_txid"), BATCHES[:1])).stop()
    start.run(topology(DeltaAppend("words", txid_column="number"), BATCHES[:3])).stop()
    assert {(row["word"], row["_txid"], row["number"]) for row in rows(tmp_path)} == {
        ("a", 1, None),
        ("b", 1, None),
        ("c", None, 3),
    }
