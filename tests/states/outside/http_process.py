"""A coordinator that publishes transactions to an HttpState, as a process of its own that tests kill or stop.

    python -m tests.states.outside.http_process URL FOLDER EPOCH TXIDS ROWS

Prints each transaction behind its publication. Ends with 3 when it is refused as a stale coordinator.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from trident.coordinators.errors import StaleEpoch, StateAway
from trident.states.core.place import Place
from trident.states.outside.http_state import HttpState
from trident.states.outside.port import OutsideMark, OutsidePart


def main(url: str, folder: str, epoch: int, txids: int, rows: int) -> None:
    state = HttpState(url, "out", dead_letters=True, timeout_secs=5.0).kept_in(Place(folder))
    marks = waited(lambda: state.take_over("top", "inc", epoch))
    if any(mark.epoch != epoch for mark in marks.values()):
        sys.exit(3)
    first = max(mark.txid for mark in marks.values())
    for txid in range(max(1, first), txids + 1):
        known = (txid - 1, 0) if txid > 1 else None
        part = OutsidePart("top", "out", 0, OutsideMark("inc", epoch, txid, 0), known=known, settings={"decision": "d"})
        batch = {"txid": [txid] * rows, "n": list(range(rows))}
        waited(lambda part=part, batch=batch: state.publish(part, iter([pa.record_batch(batch)])))
        print(txid, flush=True)


def waited(action: Callable[[], Any]) -> Any:
    while True:
        try:
            return action()
        except StateAway:
            time.sleep(0.05)
        except StaleEpoch:
            sys.exit(3)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
