"""13: changes of a database's table, as Debezium writes them, into a state. They come late and out of order.

    python examples/13_cdc.py

The messages are text here; with a KafkaSpout(…, value="text") they come from Debezium's topic of the table.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

from trident import DeltaMapState, FixedBatchSpout, TridentTopology, Upsert


def change(op: str, lsn: int, before: Any = None, after: Any = None) -> tuple[str]:
    return (json.dumps({"op": op, "before": before, "after": after, "source": {"lsn": lsn}}),)


BATCHES = [
    [
        change("r", 10, None, {"id": 1, "name": "ann"}),
        change("u", 40, None, {"id": 1, "name": "anna"}),
        change("d", 50, {"id": 2, "name": None}),
    ],
    # Sent again, and late: none of them changes anything.
    [
        change("u", 30, None, {"id": 1, "name": "annie"}),
        change("c", 20, None, {"id": 2, "name": "bob"}),
        change("d", 50, {"id": 2, "name": None}),
    ],
    [change("c", 60, None, {"id": 3, "name": "cid"})],
]


def main() -> None:
    topology = TridentTopology("customers-cdc")
    messages = topology.new_stream("changes", FixedBatchSpout("value string", BATCHES))
    messages.debezium("id long, name string").partition_persist(
        DeltaMapState("cdc_customers"), None, Upsert("id", delete_when="deleted", sequence_by="sequence")
    )
    query = topology.start(warehouse=str(Path(tempfile.mkdtemp(prefix="trident-example-")) / "w"))
    query.process_all_available()
    for row in query.snapshot("cdc_customers").orderBy("id").collect():
        print(f"{row['id']}: {row['name']}, as of {row['sequence']}")
    print("2 is deleted:", query.get("cdc_customers", [2]) == [None])
    query.stop()


if __name__ == "__main__":
    main()
