"""The FAIR pools that Spark's jobs of requests, of batches and of upkeep run in.

Of pools that have as many tasks running Spark's scheduler takes the one whose name comes first. With fewer cores than
batches in flight that is so at almost every free core: were the batches first, a request would wait for as long as
there are batches. So the names are in this order: requests, batches, upkeep, which may wait for both.
"""

from __future__ import annotations

REQUESTS = "trident-drpc"
UPKEEP = "trident-upkeep"


def of_batch(txid: int) -> str:
    """The pool of a transaction's jobs: one for each that may be in flight, between the two others in the alphabet."""
    return f"trident-txid-{txid % 16}"
