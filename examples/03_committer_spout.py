"""03: a queue whose messages are acknowledged only when the tables have them. A committer spout.

    python examples/03_committer_spout.py

One attempt fails here. Its messages are still in the queue, and come again with
the next attempt. They leave the queue when their transaction is published,
so a crash at any moment loses none and doubles none.
"""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

from trident import Count, DeltaMapState, QueueSpout, SqliteQueue, TridentTopology

folder = Path(tempfile.mkdtemp(prefix="trident-example-"))
queue = SqliteQueue(folder / "orders.db")  # or a queue of your own, see trident.spouts.queues.receipts.ReceiptQueue


def order(payload: str) -> tuple[str, str]:
    fields = json.loads(payload)
    return fields["order"], fields["country"]


def fails_once(country: str) -> Iterator[str]:
    if not (folder / "failed").exists():
        (folder / "failed").touch()
        raise ConnectionError("a service that this function needs was away")
    yield country


topology = TridentTopology("order-queue")
(
    topology.new_stream("orders", QueueSpout(queue, 4, schema="order string, country string", decode=order))
    .each("country", fails_once, "shipped_to")
    .group_by("shipped_to")
    .persistent_aggregate(DeltaMapState("orders_by_country"), Count(), "orders")
)

if __name__ == "__main__":
    countries = ["de", "fr", "de", "it", "fr", "de"]
    queue.put(json.dumps({"order": f"o{number}", "country": country}) for number, country in enumerate(countries))
    print(f"before: {len(queue)} messages in the queue")
    query = topology.start(warehouse=str(folder / "warehouse"))
    query.process_all_available()
    for progress in query.recent_progress:
        print(f"transaction {progress['batch_id']} was committed by attempt {progress['attempt']}")
    query.snapshot("orders_by_country").orderBy("shipped_to").show()
    print(f"after: {len(queue)} messages in the queue")
    query.stop()
