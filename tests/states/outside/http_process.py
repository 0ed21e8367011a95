"""A coordinator that publishes transactions to an HttpState, as a process of its own that tests kill or stop.

    python -m tests.states.outside.http_process URL FOLDER EPOCH TXIDS ROWS

Prints each transaction behind its publication. Ends with 3 when it is refused as a stale coordinator.
"""

from __future__ import annotations

import sys

import pyarrow as pa

from tests.states.outside.coordinating import taken_over, waited
from trident.states.core.place import Place
from trident.states.outside.http_state import HttpState
from trident.states.outside.port import OutsideMark, OutsidePart


def main(url: str, folder: str, epoch: int, txids: int, rows: int) -> None:
    state = HttpState(url, "out", dead_letters=True, timeout_secs=5.0).kept_in(Place(folder))
    for txid in range(taken_over(state, epoch), txids + 1):
        known = (txid - 1, 0) if txid > 1 else None
        part = OutsidePart("top", "out", 0, OutsideMark("inc", epoch, txid, 0), known=known, settings={"decision": "d"})
        batch = {"txid": [txid] * rows, "n": list(range(rows))}
        waited(lambda part=part, batch=batch: state.publish(part, iter([pa.record_batch(batch)])))
        print(txid, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
