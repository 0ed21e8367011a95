"""05: a backing map of your own: what is in stock, in a table that any SQL tool can read, exactly once.

    python examples/05_own_backing_map.py

A backing map gets and puts rows; ``opaque(…)`` around it makes each transaction
count once, whatever fails. The one thing it must do itself is to refuse a
coordinator that has been replaced and wakes up: ``fenced = True`` says that it does.
"""

import sqlite3
import tempfile
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from trident import FixedBatchSpout, OpaqueValue, Sum, TridentTopology, errors, opaque
from trident.testing import faults


@dataclass(frozen=True)
class StockTable:
    """One row per item. It travels to the workers as its path; keys are tuples, here of one value."""

    path: str
    fenced = True

    def __post_init__(self) -> None:
        with closing(self._open()) as db:
            db.execute(
                "CREATE TABLE IF NOT EXISTS stock (item TEXT PRIMARY KEY, in_stock INTEGER, before INTEGER, "
                "txid INTEGER, incarnation TEXT)"
            )
            db.execute("CREATE TABLE IF NOT EXISTS coordinator AS SELECT 0 AS epoch")

    def multi_get(self, keys: Sequence[tuple]) -> list[Any]:
        """The value that was put for each key, None where there is none."""
        with closing(self._open()) as db:
            find = "SELECT txid, in_stock, before, incarnation FROM stock WHERE item = ?"
            rows = [db.execute(find, key).fetchone() for key in keys]
        return [None if row is None else OpaqueValue(*row) for row in rows]

    def multi_put(self, keys: Sequence[tuple], values: Sequence[Any], epoch: int | None = None) -> None:
        """Writes everything or nothing; durable when it returns. None as a value removes its key."""
        with closing(self._open()) as db:
            # The write lock first: nothing comes between the look at the epoch and the rows.
            db.execute("BEGIN IMMEDIATE")
            if epoch is not None:
                self._check(db, epoch)
            for (item,), value in zip(keys, values):
                if value is None:
                    db.execute("DELETE FROM stock WHERE item = ?", (item,))
                else:
                    row = (item, value.current, value.previous, value.txid, value.incarnation)
                    db.execute("INSERT OR REPLACE INTO stock VALUES (?, ?, ?, ?, ?)", row)
            db.execute("COMMIT")  # without it, closing rolls back

    def _check(self, db: sqlite3.Connection, epoch: int) -> None:
        (newest,) = db.execute("SELECT epoch FROM coordinator").fetchone()
        if epoch < newest:
            raise errors.StaleEpoch(
                "the stock table refuses it", found=f"epoch {epoch}", expected=f"epoch {newest} or later"
            )
        db.execute("UPDATE coordinator SET epoch = ?", (epoch,))

    def _open(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path, timeout=30, isolation_level=None)


movements = [
    [("bolts", 100), ("nuts", 80)],
    [("bolts", -30)],
    [("bolts", -5), ("washers", 200)],
]


def stock_topology(table: StockTable, batches: list) -> TridentTopology:
    topology = TridentTopology("stock")
    stream = topology.new_stream("movements", FixedBatchSpout("item string, quantity long", batches))
    stream.group_by("item").persistent_aggregate(opaque("stock", table), "quantity", Sum(), "in_stock")
    return topology


def run(table: StockTable, batches: list, warehouse: str) -> list[dict]:
    """A coordinator's life, from its start until nothing is left to do; returns its progress."""
    query = stock_topology(table, batches).start(warehouse=warehouse)
    query.process_all_available()
    query.stop()
    return query.recent_progress


def ask(table: StockTable, sql: str) -> list[tuple]:
    with closing(sqlite3.connect(table.path)) as db:
        return db.execute(sql).fetchall()


def show(table: StockTable) -> None:
    for item, in_stock, before, txid in ask(table, "SELECT item, in_stock, before, txid FROM stock ORDER BY item"):
        print(f"  {item:8}{in_stock:4} in stock, {before or 0} before transaction {txid}")


if __name__ == "__main__":
    # The embedded ZooKeeper, whose files are in there too, ends some seconds after its folder.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        table = StockTable(f"{folder}/shop.db")

        # Transaction 2 fails before it is decided. Tried again it is decided and put into
        # the table, but the answer is lost, as on a bad network: so it is put once more.
        faults.arm("manifest.write:do_then_fail:2,publish.user:do_then_fail:2")
        done = run(table, movements[:2], f"{folder}/warehouse")
        assert not faults.unfired()
        (first,) = ask(table, "SELECT epoch FROM coordinator")[0]
        print(f"Transactions 1 and 2 by a coordinator of epoch {first}:")
        show(table)
        tries = {record["batch_id"]: record["attempt"] + 1 for record in done}
        print(f"Transaction 2 was tried {tries[2]} times and put twice: 30 bolts are gone, not 60 or 90.")
        assert ask(table, "SELECT in_stock, before FROM stock WHERE item = 'bolts'") == [(70, 100)]

        run(table, movements, f"{folder}/warehouse")
        (second,) = ask(table, "SELECT epoch FROM coordinator")[0]
        print(f"Transaction 3 by its successor, of epoch {second}:")
        show(table)

        # Had the first one only been suspended in the middle of writing transaction 2, it would now
        # wake up and go on with that row: 5 bolts that are sold would be in stock again.
        try:
            table.multi_put([("bolts",)], [OpaqueValue(2, 70, 100)], epoch=first)
        except errors.StaleEpoch as refusal:
            print(f"The first coordinator writes transaction 2 once more: {refusal}")
        assert ask(table, "SELECT in_stock, before FROM stock WHERE item = 'bolts'") == [(65, 70)]
