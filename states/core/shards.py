"""Shards: ranges of the hashes of keys, by which tasks and the stores of hosts are cut; how a task names its store.

Imported by executors that may have no msgspec: keep its imports light.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from trident.states.core.descriptor import StateDescriptor
from trident.states.core.place import Place


@dataclass(frozen=True)
class Shard:
    """A range of the hashes of keys: the part of a batch that one task has, and of a state that its host's store has.

    Attributes:
        number: from 0.
        count: of all shards.
    """

    number: int
    count: int

    def __str__(self) -> str:
        return f"{self.number}-of-{self.count}"

    def parts(self, count: int) -> Iterator[Shard]:
        """So many shards, which together are this one."""
        return (Shard(self.number * count + part, self.count * count) for part in range(count))

    def of_rows(self, rows: pa.Table | pa.RecordBatch, schema: pa.Schema, keys: Sequence[str]) -> pa.BooleanArray:
        """Tells of each row whether its key is in the shard.

        Args:
            schema: of the keys at least.
            keys: their order counts, and their names do not.
        """
        from trident.states.core.copy_rows import RowCodec, shards_of  # hosts of a cluster may lack what copies need

        codec = RowCodec(pa.schema([schema.field(name) for name in keys]), keys)
        return pc.equal(shards_of(codec.key_array(rows), self.count), self.number)


WHOLE = Shard(0, 1)


@dataclass(frozen=True)
class SentCopy:
    """The local copy of a state as a task is sent it: each host has its own, which ``host_copy.bring`` finds there.

    Attributes:
        state: its descriptor: the incarnation, and the form of keys and values.
        warehouse: the folder that all hosts share.
        txid: as of which the copy is read.
        commit: the last commit of the state's log up to that transaction, as the leader has seen it.
        repair: the last repair of the warehouse: copies from before it are others.
        bytes_max: the greatest size of a copy's file.
        shard: the keys that the copy has.
    """

    state: StateDescriptor
    warehouse: Place
    txid: int
    commit: str
    repair: str
    bytes_max: int
    shard: Shard = WHOLE
