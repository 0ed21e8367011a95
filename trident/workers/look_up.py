"""Looks rows' keys up in the local copy of a state, on a worker or in the driver."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from trident.workers.chain import Frame, Step
from trident.workers.own_steps import left_to_spark
from trident.workers.reports import STALE, marked

if TYPE_CHECKING:
    from trident.states.core.local_copy import CopyAsOf, Placed

# More entries than these, or more bytes of them, are worth a Spark job over the tables.
_DUE_MAX, _BYTES_MAX = 50_000, 32 << 20


@dataclass(frozen=True)
class LookUp(Step):
    """Puts a state's values for the key of each row beside it.

    Attributes:
        state: its name.
        inputs: the fields that are looked up, in the order of the state's keys.
        keys: the state's key columns, in the same order.
        columns: (the state's field, its new name), in order.
        found: the name of a boolean field that is true where the state has the key, else null; None: not needed.
        keep: the fields that are carried on.
        copy: as of the transaction before; given with each batch.
    """

    own = True

    state: str
    inputs: tuple[str, ...]
    keys: tuple[str, ...]
    columns: tuple[tuple[str, str], ...]
    found: str | None
    keep: tuple[str, ...]
    copy: CopyAsOf | None = None

    def with_copies(self, copies: Mapping[str, CopyAsOf]) -> LookUp:
        """The step with the copy of its state."""
        return replace(self, copy=copies[self.state])

    @property
    def text(self) -> str:
        return f"look up {', '.join(self.inputs)} in {self.state}"

    def run(self, frames: Iterator[Frame]) -> Iterator[Frame]:
        # Hosts of a cluster have no LMDB, and no copies.
        from trident.states.core.copy_rows import RowCodec
        from trident.states.core.local_copy import StaleCopy, look_up

        assert self.copy is not None, "the batch has given no copy"
        codec = RowCodec(self.copy.schema, self.copy.keys)
        for frame in frames:
            asked = pa.table([frame.array(name) for name in self.inputs], names=list(self.keys))
            try:
                rows = look_up(self.copy.folder, codec.encode_keys(asked), self.copy.mark)
            except StaleCopy as error:
                raise StaleCopy(told(self.state, error)) from error
            values = codec.decode_values(rows)
            columns = frame.only(self.keep)
            columns.update({new: values.column(name).combine_chunks() for name, new in self.columns})
            if self.found:
                columns[self.found] = pa.array([True if row is not None else None for row in rows], pa.bool_())
            yield Frame(columns, frame.length, frame.meter)


def due_entries(copy: CopyAsOf, state: str, first: int | None, below: int | None) -> list[Placed]:
    """The entries of a copy with first <= position < below; None: from the least one, to the greatest one.

    Raises:
        StaleCopy: the copy is not that of its mark.
        LeftToSpark: they are many.
    """
    from trident.states.core.local_copy import in_order  # hosts of a cluster have no LMDB

    found = in_order(copy.folder, copy.mark, first, below, _DUE_MAX + 1)
    check_due(state, len(found))
    check_bytes(state, (value for *_, value in found))
    return found


def check_due(state: str, count: int) -> None:
    """Raises LeftToSpark for more due entries, or more that they become, than this process should work on."""
    if count > _DUE_MAX:
        raise left_to_spark(f"more than {_DUE_MAX:,} entries of state {state} are due")


def check_bytes(state: str, values: Iterable[bytes | None]) -> None:
    """Raises LeftToSpark for entries of more bytes than this process should work on."""
    if sum(len(value) for value in values if value is not None) > _BYTES_MAX:
        raise left_to_spark(f"more than {_BYTES_MAX >> 20} MB of state {state} are looked at")


def told(state: str, error: Exception) -> str:
    """The text of a StaleCopy that tells the driver which state's copy could not be used."""
    return f"{error} {marked({'kind': STALE, 'state': state, 'error': str(error)})}"
