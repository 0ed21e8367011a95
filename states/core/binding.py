"""A state as a topology writes to it, and the base classes of the kinds of states."""

from __future__ import annotations

import enum
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from pyspark.sql.types import BooleanType, LongType, StructField, StructType

from trident.coordinators.identities import TransactionAttempt
from trident.states.core.place import Place
from trident.states.core.tables import DELETED_COLUMN, TXID_COLUMN, StagedFile, TableSpec
from trident.states.core.typed_values import Row

if TYPE_CHECKING:
    from trident.coordinators.records import TableMark


# The table of guarantees: the effect of a source's row on a state, whatever fails; kinds of states write its lines.


class Guarantee(enum.Enum):
    """The effect of a row of the source on a state, whatever fails."""

    EXACTLY_ONCE = "exactly once"
    UNLESS_WOKEN = "exactly once unless an old coordinator wakes up"
    AT_LEAST_ONCE = "at least once"
    AT_MOST_ONCE = "at most once"
    NEITHER = "not exactly once"


@dataclass(frozen=True)
class GuaranteeRow:
    """A line of the table of guarantees (docs/semantics.md 5).

    Attributes:
        name: short, for tests.
        state: as docs/guarantees.md shows it.
        guarantee: with a transactional or an opaque spout.
        better: how its user has exactly once with this kind of state, if that is possible.
    """

    name: str
    state: str
    guarantee: Guarantee = Guarantee.EXACTLY_ONCE
    better: str = ""


COMBINE = "combine"
LAST = "last"
SEQUENCED = "sequenced"
# Of these a log row is a whole value, or says that its key is deleted.
WHOLE_VALUES = (LAST, SEQUENCED)


class StateKind(ABC):
    """One kind of state, as staging, publishing, looking up, reading and cleaning up ask it.

    There is one object of each kind, registered under its name (trident.states.core.kinds). A kind is a
    :class:`TableKind` or a :class:`TablelessKind`, and overrides what differs from the plainest of these.

    Attributes:
        name: in manifests and descriptors. It never changes.
        example: how a user writes such a state; "" for one that only the framework makes.
        has_table: publishing commits its rows to a Delta table of the warehouse, ``published_table``.
        is_described: a descriptor tells readers and commands of its tables.
        has_log: that table is a log, which a compactor merges into ``plain_table``.
        only_with_rows: it takes part only in transactions that have rows for it.
        in_process: its values are in this process's memory, and gone with it.
        appends: its rows are kept as they are. Else updates change values.
        values_by_key: it holds one value per key, of known fields.
        users_code: code of the user's on the executors keeps the values, so that Spark neither reads nor combines them.
        updated_when_published: its updates are made after the decision; else new values are known before it.
        keeps_marks: its store keeps the last transaction beside the rows; ZooKeeper keeps it too.
        why_no_new_values: completes "has no stream of new values: found …"; None when it has one.
        guarantee_rows: the lines that it has in the table of guarantees.
    """

    name: ClassVar[str]
    example: ClassVar[str] = ""
    has_table: ClassVar[bool]
    is_described: ClassVar[bool] = False
    has_log: ClassVar[bool] = False
    only_with_rows: ClassVar[bool] = False
    in_process: ClassVar[bool] = False
    appends: ClassVar[bool] = False
    values_by_key: ClassVar[bool] = False
    users_code: ClassVar[bool] = False
    updated_when_published: ClassVar[bool] = False
    keeps_marks: ClassVar[bool] = False
    why_no_new_values: ClassVar[str | None] = None
    guarantee_rows: ClassVar[tuple[GuaranteeRow, ...]] = ()

    def __repr__(self) -> str:
        return f"the state kind {self.name}"

    @property
    def is_external(self) -> bool:
        """Tells whether its values are outside of the warehouse and outlive the process: unseen from here."""
        return not (self.has_table or self.in_process)

    @property
    def updated_before_decision(self) -> bool:
        """Tells whether code of the user's finds the new values, in the transaction's turn."""
        return self.users_code and not self.updated_when_published

    # --- in a topology

    @abstractmethod
    def holds(self, state: object) -> bool:
        """Tells whether a user's object is a state of this kind."""

    def check_rows(self, state: Any, schema: "StructType", keys: Sequence[str]) -> None:
        """Raises FieldError or TopologyError when the state cannot take rows of these fields."""
        return

    def check_together(self, state: Any, others: "Sequence[Any]") -> None:
        """Raises TopologyError when the state cannot be in one topology with the other states of its kind."""
        return

    def check_has_keys(self, state: Any, what: str) -> None:
        """Raises TopologyError when the operation ``what`` cannot aggregate into the state."""
        return

    def guarantee_row(self, state: Any) -> GuaranteeRow:
        """The line of the table of guarantees that a state is on."""
        return self.guarantee_rows[0]

    def takes_upserts(self, state: Any) -> bool:
        """Tells whether the last row of each key can be kept in the state."""
        return self.values_by_key

    # --- its tables

    def published_table(self, binding: StateBinding) -> TableSpec | None:
        """The table that publishing commits to."""
        return None

    def plain_table(self, binding: StateBinding) -> TableSpec | None:
        """The table with one row per key, beside a log."""
        return None

    def published_path(self, name: str) -> str:
        """Where the table is that publishing commits to, relative to the warehouse."""
        return name

    def may_grow(self, binding: StateBinding) -> bool:
        """Tells whether old rows may have nulls in new columns: rows and whole values may, partial aggregates not."""
        return False


class TableKind(StateKind):
    """A kind whose decided rows become visible by a commit to a Delta table of the warehouse."""

    has_table = True

    @abstractmethod
    def published_table(self, binding: StateBinding) -> TableSpec: ...


class TablelessKind(StateKind):
    """A kind whose states are given their decided rows behind the tables."""

    has_table = False

    @abstractmethod
    def publish(self, binding: StateBinding, rows: DecidedRows) -> None:
        """Gives the state its part of a decided batch; called again when it is not known whether it was done."""

    def staging_details(self, binding: StateBinding) -> dict[str, Any]:
        """Returns the details that the manifest keeps for publishing, beside keys, values and merging; JSON."""
        return {}

    @abstractmethod
    def rows_now(self, binding: StateBinding, incarnation: str) -> list[Row]:
        """The rows that the state holds, each the keys and then the values.

        Raises:
            TopologyError: the state cannot be listed.
        """


class InProcessKind(TablelessKind):
    """A kind whose values are in this process's memory, and gone with it."""

    in_process = True

    @abstractmethod
    def entries_as_of(self, binding: StateBinding, txid: int, incarnation: str) -> Mapping[Row, Any] | None:
        """Key → (txid, value) as of one transaction; None when that is no longer kept."""


class UserCode(Protocol):
    """Runs code of the user's on rows that were decided, on the executors; and publishes to stores of the user's."""

    def publish(self, binding: StateBinding, rows: DecidedRows) -> None: ...

    def publish_outside(self, binding: StateBinding, rows: DecidedRows) -> None: ...


@dataclass(frozen=True)
class DecidedRows:
    """The part of a decided batch that one state without a table is given.

    Attributes:
        files: the staged rows: Parquet below ``root``, in which hidden columns stand beside the keys and values.
        details: what the manifest says besides: "keys", "values", "merging", and the kind's ``staging_details``.
        first: whether this process decided it, so that no other can have published it.
        user_code: runs code of the user's on them.
        known: what ZooKeeper says of the state, where it has a mark of it: an outside state's last transaction.
    """

    attempt: TransactionAttempt
    incarnation: str
    root: Place
    files: Sequence[StagedFile]
    details: Mapping[str, Any]
    first: bool
    user_code: UserCode
    known: TableMark | None = None


@dataclass(frozen=True)
class StateBinding:
    """A state with what the plan delivers to it.

    Attributes:
        state: the user's setting object (DeltaAppend, DeltaMapState, MemoryMapState).
        state_kind: what it is; ``kind`` is the name that stored files have for it.
        keys: the grouping fields; empty for a global aggregate or an append.
        schema: of the rows to be staged: for append the rows themselves, else
            the keys followed by the partial value fields.
        value_fields: the names in schema that are not keys.
        aggregator: how partial values combine; None for append.
        merging: "combine": a keyed row is a part of its key's value, and the
            aggregator combines them; "last": it is the whole new value, or says
            that the key is deleted (at most one row per key and transaction); "sequenced": the same, and of a key's
            rows the one with the greatest (value in ``sequence``, txid) counts, also where it deletes the key.
        ordered_by: of a keyed state, the integer or timestamp of its rows, by which a local copy finds those below a
            position; "": none. Of a row where it is null a copy finds the key alone.
        sequence: the value field by which "sequenced" rows are ordered; never null.
        deleted_retention_txids: for so many transactions a deleted key holds against older changes; 0: for good.
        history_by: the last of the keys, where each row is a change, and readers are given periods by it; "": none.
        history_end: the boolean value that says that a change is a delete; "": there are no deletes.
    """

    state: Any
    state_kind: StateKind
    keys: tuple[str, ...]
    schema: "StructType"
    value_fields: tuple[str, ...]
    aggregator: Any = None
    merging: str = COMBINE
    ordered_by: str = ""
    sequence: str = ""
    deleted_retention_txids: int = 0
    history_by: str = ""
    history_end: str = ""

    @property
    def name(self) -> str:
        return self.state.name

    @property
    def kind(self) -> str:
        return self.state_kind.name

    @property
    def published_table(self) -> TableSpec | None:
        """The table that publishing commits to; None for a state without one."""
        return self.state_kind.published_table(self)

    @property
    def tables(self) -> list[TableSpec]:
        """All of its tables: the one that publishing commits to, then the plain one."""
        return [spec for spec in (self.published_table, self.state_kind.plain_table(self)) if spec is not None]

    @property
    def aggregator_name(self) -> str | None:
        """A stable name of the aggregator: part of the topology's identity."""
        return None if self.aggregator is None else aggregator_name(self.aggregator)

    @property
    def log_schema(self) -> "StructType":
        """The columns of the rows to be staged: the schema, and of whole values also ``_deleted``.

        True in ``_deleted`` deletes the key; the values of that row are not
        looked at. Null is as false.
        """
        if self.merging not in WHOLE_VALUES:
            return self.schema

        return StructType([*self.schema.fields, StructField(DELETED_COLUMN, BooleanType(), True)])

    @property
    def shown_schema(self) -> "StructType":
        """The columns that readers of the state are given: the schema, and of an append table its column of txids."""
        column = getattr(self.state, "txid_column", None) if self.state_kind.appends else None
        if column is None:
            return self.schema
        return StructType([*self.schema.fields, StructField(column, LongType(), True)])

    def identity(self) -> dict[str, Any]:
        """Returns what may not change between runs (docs/semantics.md 10); JSON."""
        how = self.aggregator_name or "append"
        if not self.state_kind.is_described:
            # Its kind and place: another kind of state would begin empty, or meet rows that it cannot read.
            semantics = getattr(self.state, "semantics", None)
            how = f"{self.kind}{f'/{semantics.value}' if semantics is not None else ''} {how}"
        return {"keys": list(self.keys), "value_schema": self.schema.simpleString(), "aggregator": how}


def kept_schema(schema: "StructType", merging: str) -> "StructType":
    """The columns of a keyed state's plain table without ``_upto``: keys and values.

    With "sequenced" merging it also has each row's ``_deleted`` and ``_txid``: a deleted key is a row, which holds
    against older changes that come later.
    """
    if merging != SEQUENCED:
        return schema
    hidden = [StructField(DELETED_COLUMN, BooleanType(), True), StructField(TXID_COLUMN, LongType(), True)]
    return StructType([*schema.fields, *hidden])


def aggregator_name(aggregator: Any) -> str:
    """A stable name of an aggregator: a native one's own, else where its class is."""
    native = getattr(aggregator, "native_name", None)
    kind = type(aggregator)
    return native or f"python:{_module_name(kind.__module__)}.{kind.__qualname__}"


def _module_name(module: str) -> str:
    """The module's own name, also when it is run as a script: the same class has one identity."""
    if module != "__main__":
        return module.rpartition(".")[2]
    path = getattr(sys.modules["__main__"], "__file__", None)
    return os.path.splitext(os.path.basename(path))[0] if path else module
