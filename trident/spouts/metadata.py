"""The metadata of a batch as a spout reads it back: another spout may have written it."""

from __future__ import annotations

from typing import Any

from trident.coordinators.errors import SourceError
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


def index_of(metadata: Json, spout: str) -> int:
    """The index of the batch that a transaction took."""
    return whole_of(metadata, "batch", 0, spout, '{"batch": index}')


def index_after(metadata: Json, spout: str) -> int:
    """The index of the batch after that of a transaction; an empty one took none."""
    return index_of(metadata, spout) + (not (isinstance(metadata, dict) and metadata.get("empty")))
