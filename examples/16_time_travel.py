"""16: a bad deploy: found by explain_row, mended on a fork, taken back, and run again by the mended code.

    python examples/16_time_travel.py

The same story with commands, in a shell, is in docs/time-travel.md.
"""

import tempfile
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import trident
from trident import DeltaAppend, DeltaMapState, FixedBatchSpout, Sum, TridentConfig, TridentTopology
from trident.commands.fork import lines
from trident.time_travel.diff import diff
from trident.time_travel.forking import fork
from trident.time_travel.rollback import roll_back

RECEIPTS = [
    [("delft", "4.50"), ("gouda", "12.00")],
    [("delft", "0.75"), ("leiden", "3.20")],
    [("gouda", "8.50"), ("leiden", "2.25")],
    [("delft", "19.99"), ("gouda", "1.00")],
]


def exact(amount: str) -> int:
    return int(Decimal(amount) * 100)


def fast(amount: str) -> int:
    """The bug: 19.99 * 100 is 1998.99…, and its cents are 1998."""
    return int(float(amount) * 100)


def mended(amount: str) -> int:
    return round(float(amount) * 100)


def till(name: str, cents: Callable[[str], int], batches: int = 4) -> TridentTopology:
    topology = TridentTopology(name)
    receipts = FixedBatchSpout("shop string, amount string", RECEIPTS[:batches])
    sales = topology.new_stream("sales", receipts).each("amount", cents, "cents")
    sales.partition_persist(DeltaAppend("receipts", txid_column="_txid"), "shop, cents")
    sales.group_by("shop").persistent_aggregate(DeltaMapState("takings"), "cents", Sum(), "takings")
    return topology


def run(topology: TridentTopology, warehouse: Path) -> None:
    query = topology.start(warehouse=str(warehouse))
    query.process_all_available()
    takings = {row.shop: row.takings for row in query.snapshot("takings").collect()}
    print(f"{topology.name}:", ", ".join(f"{shop} {takings[shop]}" for shop in sorted(takings)))
    query.stop()


def main() -> None:
    folder = Path(tempfile.mkdtemp(prefix="trident-example-"))
    warehouse, copy = folder / "warehouse", folder / "fork"
    run(till("till", exact, batches=2), warehouse)
    run(till("till", fast), warehouse)

    # Delft has taken 25.24. Which transactions made 25.23 of it?
    print([one.txid for one in trident.explain_row(warehouse, "till", "takings", "delft").writers])
    with trident.replay(till("till", fast), warehouse, 4) as replay:
        replay.states["takings"].rows.show()

    # A fork behind transaction 2 is given the same batches: the mended code can do no harm there.
    config = TridentConfig(warehouse=str(warehouse))
    fork("till", 2, "till_mended", str(copy), config)
    run(till("till_mended", mended), copy)
    print("\n".join(lines(diff("till", "till_mended", str(copy), config))))

    # All tables as of transaction 2; then the mended code reads the batches again.
    print(roll_back("till", 2, config=config, apply=True).done[-1])
    run(till("till", mended), warehouse)


if __name__ == "__main__":
    main()
