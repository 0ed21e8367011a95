"""A Parquet file that was written for a table but is not yet part of it.

The one record that passes between the tasks that write files, the manifest
that makes them durable and the commit that publishes them (docs/semantics.md 9).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from trident.coordinators.errors import TableError
from trident.coordinators.stored_json import Unreadable, as_record, plain
from trident.states.core.names import check_inside


@dataclass(frozen=True, slots=True)
class StagedFile:
    """One data file, staged: complete on disk, and invisible to readers.

    Attributes:
        path: relative to the table's root, ``/`` between the parts, not URL-encoded.
        size: bytes.
        mtime_ms: modification time, milliseconds since the epoch.
        num_records: rows in the file.
        stats: Delta's statistics as JSON text (``numRecords``, ``minValues``,
            ``maxValues``, ``nullCount``). Without ``nullCount`` no reader skips
            the file, and without ``numRecords`` a count has to open it.
        partition_values: partition column -> value as Delta writes it, None for null.
    """

    path: str
    size: int
    mtime_ms: int
    num_records: int
    stats: str
    partition_values: Mapping[str, str | None] = field(default_factory=dict)

    def to_json(self) -> dict[str, object]:
        """The file as plain JSON values, in a fixed order of keys."""
        return plain(self)

    @classmethod
    def from_json(cls, value: object) -> StagedFile:
        """Read what :meth:`to_json` gave.

        Raises:
            TableError: a key is missing, unknown or of another type; a manifest
                is never read half.
        """
        try:
            found = as_record(value, cls)
        except Unreadable as problem:
            raise TableError(f"a staged file cannot be read: {problem}", found=problem.found) from None
        check_inside("the path of a staged file", found.path)
        return found
