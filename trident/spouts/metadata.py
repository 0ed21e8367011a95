"""The metadata of a batch as a spout reads it back: another spout may have written it."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from trident.coordinators.errors import SourceError
from trident.coordinators.stored_json import MAY_BE_MISSING, Record, Unreadable, as_record
from trident.spouts.contracts import Json


def foreign_metadata(metadata: Json, spout: str, expected: str) -> SourceError:
    """The error for metadata that this kind of spout did not write."""
    return SourceError(
        f"the metadata of a batch was not written by {spout}",
        found=repr(metadata)[:200],
        expected=expected,
        action="give the stream another tx_id, or begin again with `trident reset NAME`",
    )


def is_whole(value: Any, least: int = 1) -> bool:
    """Tells whether a value is a whole number from ``least`` on."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def whole_of(metadata: Json, key: str, least: int, spout: str, expected: str) -> int:
    """A whole number that metadata holds under a key.

    Raises:
        SourceError: it holds none.
    """
    value: Any = metadata.get(key) if isinstance(metadata, dict) else None
    if is_whole(value, least):
        return value
    raise foreign_metadata(metadata, spout, expected)


def read_metadata(metadata: Json, kind: type[Record], spout: str) -> Record:
    """The metadata of a batch as the record that a kind of spout stores.

    Raises:
        SourceError: another spout wrote it.
    """
    try:
        return as_record(metadata, kind)
    except Unreadable as problem:
        expected = f"an object with {', '.join(one.name for one in fields(kind))} ({problem})"
        raise foreign_metadata(metadata, spout, expected) from None


def read_commit_data(commit_data: Json, kind: type[Record], spout: str) -> Record:
    """The commit data of a decided attempt as the record that a kind of spout stores.

    Raises:
        SourceError: it is no such record.
    """
    try:
        return as_record(commit_data, kind)
    except Unreadable:
        raise SourceError(f"this is not the commit data of {spout}", found=repr(commit_data)[:200]) from None


@dataclass(frozen=True)
class BatchIndex:
    """The metadata of a spout that counts its batches.

    Attributes:
        batch: the index of the batch that the transaction took, or of the next one.
        empty: whether it took none.
        rows: of the batch, where that is known.
    """

    batch: int
    empty: bool = field(default=False, metadata={MAY_BE_MISSING: True})
    rows: int = field(default=0, metadata={MAY_BE_MISSING: True})

    def problem(self) -> str | None:
        return None if self.batch >= 0 else "`batch` is below 0"

    @property
    def next(self) -> int:
        """The index of the batch for the transaction after it."""
        return self.batch + (not self.empty)
