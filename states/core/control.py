"""The control record: a table's own statement of the last transaction it has.

It is kept as Delta domain metadata and written with every commit, so it is the
compare-and-set of publishing: SetTransaction alone would let a stale writer
with a higher txid pass (docs/semantics.md 9.5).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from trident.coordinators.errors import ForeignTable
from trident.coordinators.records import Decision, TableMark
from trident.coordinators.stored_json import Unreadable, as_record, parse_stored, shown

DOMAIN = "trident"
_SCHEMA = 1


@dataclass(frozen=True)
class ControlRecord:
    """Attributes:
    topology, group, incarnation: whose table this is.
    txid, attempt_id, digest: the last transaction that the table has;
        attempt_id −1 when the table has none yet.
    epoch: of the coordinator that wrote it.
    starts_at: the first txid that the state takes part in.
    floor: log rows up to this txid may have been dropped.
    """

    topology: str
    group: str
    incarnation: str
    txid: int
    attempt_id: int
    digest: str
    epoch: int
    starts_at: int
    floor: int = 0

    def encode(self) -> str:
        return json.dumps({"schema": _SCHEMA, **self.__dict__}, sort_keys=True)

    def same_batch(self, mark: TableMark) -> bool:
        return (self.txid, self.attempt_id, self.digest) == (mark.txid, mark.attempt_id, mark.digest)

    def is_of(self, decision: Decision) -> bool:
        """Tells whether the table has the decided attempt."""
        return self.same_batch(TableMark(0, decision.txid, decision.attempt_id, decision.sha256))

    def mark(self, table_version: int) -> TableMark:
        return TableMark(table_version, self.txid, self.attempt_id, self.digest)

    def after(self, txid: int, attempt_id: int, digest: str, epoch: int) -> ControlRecord:
        return replace(self, txid=txid, attempt_id=attempt_id, digest=digest, epoch=epoch)


def decode_control(path: object, text: str | None) -> ControlRecord:
    """Reads a table's control record, strictly."""
    if text is None:
        raise ForeignTable(
            f"the Delta table {path} was not made by this framework",
            found="no control record",
            expected="the control record of a topology",
            action="choose another state name or another warehouse; DeltaAppend(name, adopt=True) takes over a table "
            "of rows, DeltaMapState(name, adopt=True) one with a row for each key",
        )
    try:
        return as_record(parse_stored(text), ControlRecord, _SCHEMA)
    except Unreadable as problem:
        raise ForeignTable(
            f"the control record of {path} cannot be read",
            found=shown(text),
            expected=f"a control record of schema {_SCHEMA} ({problem})",
            action="another writer has written the domain metadata of the table, or another version of this framework "
            "has: bring the table back from a back-up",
        ) from None
