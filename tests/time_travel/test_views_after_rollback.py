"""Behind a rollback: no view of what was taken back, and each row is explained by the attempt that stands."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import deltalake
import pytest

import trident
from tests.repair.repair_helpers import BATCHES, World, fold, topology
from trident.coordinators.errors import TableError
from trident.time_travel.rollback import roll_back


def at_view(view: trident.View) -> tuple[Counter[str], Counter[str]]:
    """Both tables, by a reader that knows no Trident."""
    counts = deltalake.DeltaTable(*view.tables["counts"]).to_pyarrow_table().to_pylist()
    words = deltalake.DeltaTable(*view.tables["words"]).to_pyarrow_table()["word"].to_pylist()
    return Counter({row["word"]: row["count"] for row in counts}), Counter(words)


def _writers_of_all(world: World) -> list[Any]:
    """Each transaction that has written to the append table, as it is explained now."""
    words = {word for batch in BATCHES for (line,) in batch for word in line.split()}
    explained = [trident.explain_row(world.warehouse, "top", "words", {"word": word}) for word in sorted(words)]
    return [one for said in explained for one in said.writers]


@pytest.mark.parametrize("column", ["_txid", pytest.param(None, marks=pytest.mark.long)])
def test_views_and_rows_are_those_of_the_transactions_that_stand(spark, zk_server, zk_root, tmp_path: Path, column):
    world = World(spark, tmp_path / "warehouse", zk_server, zk_root)
    for batches in (2, 5):
        world.run(batches, compact=True, made=topology(batches, txid_column=column))
        view = trident.view(world.warehouse, "top")
        assert view.txid == batches and at_view(view) == (fold(batches), fold(batches))
    before = {one.txid: one.attempt_id for one in _writers_of_all(world)}
    roll_back("top", 2, config=world.config, spark=spark, apply=True)
    with pytest.raises(TableError, match="there is no view"):
        trident.view(world.warehouse, "top")
    assert [one.txid for one in trident.explain_row(world.warehouse, "top", "words", {"word": "e"}).writers] == []
    world.run(5, compact=True, made=topology(5, txid_column=column))
    view = trident.view(world.warehouse, "top")
    assert view.txid == 5 and at_view(view) == (fold(5), fold(5))
    for word in fold(5):
        expected = [n for n, batch in enumerate(BATCHES, 1) if any(word in line.split() for (line,) in batch)]
        for table, row in (("counts", word), ("words", {"word": word})):
            said = trident.explain_row(world.warehouse, "top", table, row)
            assert [one.txid for one in said.writers] == expected and said.not_known == (), said
            for one in said.writers:
                assert one.attempt_id is not None, said
                # Attempts are never used again: those that were taken back came a second time, with greater ids.
                stood = before[one.txid]
                assert one.attempt_id > stood if one.txid > 2 else one.attempt_id == stood, said
                assert one.incarnation.endswith("-r1") == (one.txid > 2) and one.epoch is not None and one.sources, said
    world.close()
