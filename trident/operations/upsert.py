"""Keeps the last row of each key in a state: insert, update and delete."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Union

from trident.coordinators.errors import FieldError
from trident.planning.nodes import Node


@dataclass(frozen=True)
class Upsert:
    """The updater for ``partition_persist`` that keeps one row per key, the last one.

    ``stream.partition_persist(DeltaMapState("users"), "id, name, gone", Upsert("id", delete_when="gone"))``

    Exactly once like every state of its kind (docs/semantics.md 5). A topology may be
    started again with more fields behind the earlier ones: they are null in
    rows of before.

    Args:
        keys: the fields that name a row; ``"id"``, ``"country, id"`` or a list. Null is a key like any other.
        delete_when: a boolean field: where it is true the row is removed. It is not stored itself.
        order_by: a field: of the rows of one key in a batch the one with the
            greatest value is the last; nulls come first. None takes the order in
            which the batch has them: that of the source, as long as nothing in
            between moves rows among Spark partitions.

    WARNING: ``order_by`` orders within a batch only. Between batches the later
    transaction always wins, whatever the value in that field: an older change
    that arrives in a later batch replaces a newer one. So it is no substitute for
    ``MERGE … WHEN MATCHED AND s.ts > t.ts`` unless the source keeps the changes of a
    key in order over its batches. Where it does not, keep the greatest value in the
    state itself: ``persistent_aggregate`` with an Aggregator that has ``resume``
    (docs/from-structured-streaming.md, "Changes that arrive out of order").
    """

    keys: Union[str, Sequence[str]]
    delete_when: str | None = None
    order_by: str | None = None

    native_name = "upsert"

    def __post_init__(self) -> None:
        keys = self.keys
        names = tuple(name.strip() for name in keys.split(",")) if isinstance(keys, str) else tuple(keys)
        if not names or not all(isinstance(name, str) and name for name in names):
            raise FieldError("Upsert needs the fields that name a row", found=repr(keys), expected="'id' or ['a', 'b']")
        object.__setattr__(self, "keys", names)


@dataclass(frozen=True, eq=False, kw_only=True)
class LastNode(Node):
    """One row per key of the batch: the last one. Its fields: keys, values, and whether the key is deleted.

    Attributes:
        keys, values: the fields that are kept.
        delete_when: a boolean field; where it is true the key is to be removed.
        order_by: the field whose greatest value is the last; None: the batch's own order.
    """

    keys: tuple[str, ...]
    values: tuple[str, ...]
    delete_when: str | None = None
    order_by: str | None = None
