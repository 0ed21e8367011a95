"""The queries that run in this process: a script that forgets one is told of it, and does not wait for it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from trident.config import TridentConfig
from trident.coordinators.errors import TridentError
from trident.running.query_base import QueryBase
from trident.states.core.place import Place

log = logging.getLogger("trident.query")
# A topology, as its processes meet: by its name, in one ZooKeeper, under one root.
Meeting = tuple[str, str, str]
_lock = threading.Lock()
_queries: dict[Meeting, list[QueryBase]] = {}


def place_of(name: str, config: TridentConfig, warehouse: Place) -> Meeting:
    """Where a topology of this name contends for leadership."""
    zookeeper = str(warehouse) if config.zookeeper == "embedded" else config.zookeeper
    return name, zookeeper, config.zookeeper_root


def make_room(place: Meeting, *, replace: bool, standby: bool, check: Callable[[QueryBase], None]) -> None:
    """Sees to it that a start does not wait, without a word, for a query of this very process.

    Args:
        replace: stops the one that runs, and says so.
        standby: a second one is wanted: it waits for its turn.
        check: is called before one is stopped, and raises where the start could not go on from it. A notebook replaces
            by itself, and the name may have been taken by mistake: the one that runs goes on then.

    Raises:
        TridentError: one runs, and neither was asked for; or it could not be stopped.
    """
    running = [] if standby else running_at(place)
    for query in running:
        if not replace:
            raise TridentError(
                f"{query.name} runs in this process already",
                found=repr(query),
                expected="one query of it in a process",
                action="call its query.stop() first, or start(replace=True), which does; start(standby=True) is for "
                "one that is to wait for its turn",
            )
        check(query)
        log.warning("%s: the query that ran here (run %s) is stopped and replaced", query.name, query.run_id[:8])
        query.request_stop(compact=False)
        query.stop()


def running_at(place: Meeting) -> list[QueryBase]:
    """The queries of a topology that have not ended."""
    with _lock:
        return [query for query in _queries.get(place, ()) if query.is_active]


def add(place: Meeting, query: QueryBase) -> None:
    """A query runs, until it ends."""
    with _lock:
        # Those that have ended are forgotten, wherever they ran: each holds its topology and its tables' plans.
        for known in list(_queries):
            _queries[known] = [other for other in _queries[known] if other.is_active]
            if not _queries[known]:
                del _queries[known]
        _queries.setdefault(place, []).append(query)


def all_running() -> list[QueryBase]:
    """Every query of this process that has not ended."""
    with _lock:
        return [query for queries in _queries.values() for query in queries if query.is_active]
