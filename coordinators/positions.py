"""Digests of the position of each stream of a batch group, in the group's record.

A stream's position is its own znodes: the pins of its transactions, or the
metadata of its opaque partitions. One of these that is missing would be read
as "from the beginning", an older one as "from there", and everything would be
counted again without a word. So each write of the group's record, which
every write of the group sets, has a digest of what is stored with it, and
loading compares. A record of a version before digests has none until it is
written next.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trident.coordinators.errors import Halted
from trident.coordinators.records import GroupRecord


@dataclass(frozen=True)
class PositionMismatch:
    """A stream whose stored position is not the one that belongs to the record.

    Attributes:
        txid: of the pin; 0 for the metadata of opaque partitions.
        found: a digest of what is stored, "" when there is nothing.
        expected: of what the record was written with, "" when nothing may be stored.
    """

    tx_id: str
    txid: int
    found: str
    expected: str

    def __str__(self) -> str:
        what = f"the pin of transaction {self.txid}" if self.txid else "the metadata of partitions"
        if not self.found:
            return f"{what} of stream {self.tx_id!r} is missing"
        if self.expected == "":
            return f"{what} of stream {self.tx_id!r} is there, and must not be"
        return f"{what} of stream {self.tx_id!r} is another one"


def digest_of(value: Any) -> str:
    """Of a JSON value, whatever the order of its keys: in a pin, and in a manifest."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def compare(
    record: GroupRecord, pins: Mapping[str, Mapping[int, str]], partitions: Mapping[str, str]
) -> Iterator[PositionMismatch]:
    """Returns what of the stored positions does not belong to a record.

    A stream that the record says nothing of has not taken part yet, or was
    away when the record was first written with digests.

    Args:
        pins: tx_id → txid → digest, as stored.
        partitions: tx_id → digest, as stored; "" where there is none.
    """
    for tx_id, wanted in (record.pins or {}).items():
        found = pins.get(tx_id)
        if found is None:
            continue  # not a stream of this start
        for txid in sorted(wanted.keys() | found.keys()):
            if wanted.get(txid) != found.get(txid):
                yield PositionMismatch(tx_id, txid, found.get(txid, ""), wanted.get(txid, ""))
    for tx_id, digest in (record.partitions or {}).items():
        if tx_id in partitions and partitions[tx_id] != digest:
            yield PositionMismatch(tx_id, 0, partitions[tx_id], digest)


def contradiction(topology: str, group: str, position_mismatches: list[PositionMismatch]) -> Halted:
    """The HALT of a group whose streams are not where its record says."""
    return Halted(
        f"the positions of batch group {group!r} in ZooKeeper are not those of its last transaction: begun from here, "
        "rows would be counted again, or be missing",
        found="; ".join(map(str, position_mismatches[:5]))
        + (f" and {len(position_mismatches) - 5} more" if len(position_mismatches) > 5 else ""),
        expected="the positions that the record of the batch group was written with",
        action=f"`trident repair {topology}` shows what can be done and changes nothing; or bring ZooKeeper's data "
        "back from a copy",
    )
