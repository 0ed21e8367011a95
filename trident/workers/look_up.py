"""Looks rows' keys up in the local copy of a state, on a worker or in the driver."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from trident.coordinators.errors import TridentError
from trident.coordinators.processes import UNKNOWN, boot_id, host_name
from trident.states.core.shards import SentCopy
from trident.workers.chain import Frame, Step
from trident.workers.failures import STALE, marked

if TYPE_CHECKING:
    from trident.states.core.local_copy import CopyAsOf

# Bringing a copy on takes milliseconds; where it takes this long, something is wrong.
_WAIT_SECS = 10.0


class NoCopyHere(TridentError):
    """This host has no copy as of the transaction: the tables are to be read. The text has a report for the driver."""


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
        assert self.copy is not None, "the batch has given no copy"
        copy = self.copy
        # Hosts of a cluster may lack what copies need.
        from trident.states.core.copy_rows import RowCodec
        from trident.states.core.local_copy import StaleCopy, look_up

        codec = RowCodec(copy.schema, copy.keys)
        for frame in frames:
            lookup_keys = pa.table([frame.array(name) for name in self.inputs], names=list(self.keys))
            if copy.shard.count > 1 and not pc.all(copy.shard.of_rows(lookup_keys, copy.schema, self.keys)).as_py():
                raise AssertionError(f"a task has keys that are not in shard {copy.shard} of state {self.state}")
            try:
                values, found = look_up(copy, codec.key_array(lookup_keys))
            except StaleCopy as error:
                raise StaleCopy(copy_error(self.state, error)) from error
            columns = frame.only(self.keep)
            columns.update({new: values.column(name).combine_chunks() for name, new in self.columns})
            if self.found:
                columns[self.found] = pa.array(found, mask=~found)
            yield Frame(columns, frame.length, frame.meter)


def copy_here(state: str, copy: CopyAsOf | SentCopy) -> CopyAsOf:
    """The copy of a state on this host, at its mark: that of the coordinator's process, or one that this host has.

    Raises:
        StaleCopy: the coordinator's process does not bring it there.
        NoCopyHere: this host has none, for whatever reason.
    """
    if not isinstance(copy, SentCopy):
        _wait_for_copy(state, copy)
        return copy
    try:
        # Hosts of a cluster may lack what copies need.
        from trident.states.keyed.host_copy import caught_up_copy

        boot = boot_id()
        if boot == UNKNOWN:
            raise NoCopyHere(f"there are no copies on {host_name()}: two boots of it cannot be distinguished")
        return caught_up_copy(copy, host_name(), boot)
    except Exception as error:  # no library, no disk, a table that this host sees otherwise: the tables' form decides
        raise NoCopyHere(copy_error(state, error)) from error


def _wait_for_copy(state: str, copy: CopyAsOf) -> None:
    """Waits for a copy that the coordinator's process is bringing to its mark meanwhile.

    Raises:
        StaleCopy: it does not come there.
    """
    from trident.states.core.local_copy import StaleCopy, wait_for  # hosts of a cluster may lack what copies need

    try:
        wait_for(copy.folder, copy.mark, _WAIT_SECS)
    except StaleCopy as error:
        raise StaleCopy(copy_error(state, error)) from error


def copy_error(state: str, error: Exception) -> str:
    """The text of an error from which the driver reads which state's copy could not be used."""
    text = str(error) or type(error).__name__
    report = {"kind": STALE, "state": state, "error": text, "building": getattr(error, "building", False)}
    return f"{text} {marked(report)}"
