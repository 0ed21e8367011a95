"""A Parquet file that was written for a table but is not yet part of it.

The one record that passes between the tasks that write files, the manifest
that makes them durable and the commit that publishes them (docs/semantics.md 9).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from trident.coordinators.errors import TableError
from trident.states.core.names import check_inside

_FIELDS = {"path": str, "size": int, "mtime_ms": int, "num_records": int, "stats": str, "partition_values": dict}


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
        return {
            "path": self.path,
            "size": self.size,
            "mtime_ms": self.mtime_ms,
            "num_records": self.num_records,
            "stats": self.stats,
            "partition_values": dict(self.partition_values),
        }

    @classmethod
    def from_json(cls, value: object) -> StagedFile:
        """Read what :meth:`to_json` gave.

        Raises:
            TableError: a key is missing, unknown or of another type; a manifest
                is never read half.
        """
        if not isinstance(value, dict) or set(value) != set(_FIELDS):
            raise TableError("a staged file cannot be read", found=value, expected=f"the keys {sorted(_FIELDS)}")
        for name, kind in _FIELDS.items():
            if not isinstance(value[name], kind) or isinstance(value[name], bool):
                raise TableError(f"a staged file's {name} cannot be read", found=value[name], expected=kind.__name__)
        check_inside("the path of a staged file", value["path"])
        for column, text in value["partition_values"].items():
            if text is not None and not isinstance(text, str):
                raise TableError(f"the partition value of {column} cannot be read", found=text, expected="text or null")
        return cls(**value)
