"""The spout coordinators of a batch group on the driver: Trident's TridentSpoutCoordinator."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from coordinators.errors import SourceError
from coordinators.transactions import TransactionAttempt
from trident.spouts import BatchCoordinator, Emitter, Json, Refreshes, ReportsBacklog, Shrinks


class TridentSpoutHost:
    """Calls the coordinators and emitters of a group's streams.

    A group starts a transaction when any of its streams is ready, as Storm does.

    Args:
        coordinators: tx_id → the stream's coordinator.
        emitters: tx_id → the stream's emitter.
    """

    def __init__(self, coordinators: Mapping[str, BatchCoordinator], emitters: Mapping[str, Emitter]) -> None:
        self._coordinators, self._emitters = coordinators, emitters

    def is_ready(self, txid: int) -> bool:
        # Every stream is asked: a stream that looks for new data when asked must not starve.
        return any([coordinator.is_ready(txid) for coordinator in self._coordinators.values()])

    def refresh(self) -> None:
        """The next readiness answers take into account what is there now."""
        for coordinator in self._coordinators.values():
            if isinstance(coordinator, Refreshes):
                coordinator.refresh()

    def initialize(self, txid: int, pins: Mapping[str, Mapping[int, Json]], shrink: bool) -> dict[str, Json]:
        """The metadata of txid for each stream.

        Raises:
            SourceError: a coordinator gave something that is not JSON.
        """
        metadata = {}
        for tx_id, coordinator in self._coordinators.items():
            of_stream = pins.get(tx_id, {})
            earlier = [other for other in of_stream if other < txid]
            previous = of_stream[max(earlier)] if earlier else None
            current = of_stream.get(txid)
            if shrink and current is not None and isinstance(coordinator, Shrinks):
                value = coordinator.shrink_transaction(txid, previous, current)
            else:
                value = coordinator.initialize_transaction(txid, previous, current)
            metadata[tx_id] = _as_json(tx_id, value)
        return metadata

    def success(self, attempt: TransactionAttempt) -> None:
        for coordinator in self._coordinators.values():
            coordinator.success(attempt.txid)
        for emitter in self._emitters.values():
            emitter.success(attempt)

    def backlog(self) -> dict[str, Any]:
        """Rows, bytes and files waiting, over all streams that know."""
        total: dict[str, int] = {}
        for coordinator in self._coordinators.values():
            if isinstance(coordinator, ReportsBacklog):
                for unit, count in vars(coordinator.backlog()).items():
                    if count is not None:
                        total[unit] = total.get(unit, 0) + count
        return total

    def close(self) -> None:
        for part in (*self._coordinators.values(), *self._emitters.values()):
            part.close()


class NoSpouts:
    """The host while a pending decision is finished: nothing is ever ready."""

    def is_ready(self, txid: int) -> bool:
        return False

    def initialize(self, txid: int, pins: Mapping[str, Mapping[int, Json]], shrink: bool) -> dict[str, Json]:
        raise AssertionError("no transaction begins while a decision is finished")

    def success(self, attempt: TransactionAttempt) -> None:
        """Told by the host with the real spouts, right after."""

    def backlog(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        """There is nothing to close."""


def _as_json(tx_id: str, value: Any) -> Json:
    """The value as it will come back from ZooKeeper, so that a first try sees what a replay sees."""
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise SourceError(
            f"the metadata of stream {tx_id!r} is not JSON: {error}",
            found=repr(value)[:200],
            expected="None, numbers, text, lists and dicts",
        ) from error
