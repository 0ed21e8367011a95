"""Finds the table version that holds a transaction, by what each version says of itself.

Control records and transaction ids only grow with the table version (RESTORE
aside, which halts the topology), so a search that doubles its step backwards
and then bisects loads few versions, on any file system.
"""

from __future__ import annotations

from collections.abc import Callable

from coordinators.errors import TableError
from states.kernel import KernelEngine, TableSnapshot


def newest_version(
    engine: KernelEngine, newest: TableSnapshot, measure: Callable[[TableSnapshot], int], at_most: int
) -> TableSnapshot | None:
    """The newest table version whose ``measure`` is at most the bound.

    Args:
        engine: loads older versions.
        newest: where the search begins.
        measure: txid of a version; never grows backwards.
        at_most: the bound.

    Returns:
        The version, or None when there is none, or its log entry was cleaned up.
    """
    if measure(newest) <= at_most:
        return newest
    low, high, step = newest.version, newest.version, 1
    found: TableSnapshot | None = None
    while low > 0 and found is None:
        high, low, step = low, max(0, low - step), step * 2
        # A version that cannot be loaded any more is older than all that can be.
        older = _load(engine, newest.path, low)
        if older is None:
            break
        found = older if measure(older) <= at_most else None
    else:
        if found is None:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        snapshot = _load(engine, newest.path, middle)
        if snapshot is None:
            low = middle
        elif measure(snapshot) <= at_most:
            low, found = middle, snapshot
        else:
            high = middle
    return found


def _load(engine: KernelEngine, path: str, version: int) -> TableSnapshot | None:
    try:
        return engine.load_version(path, version)
    except TableError:
        return None
