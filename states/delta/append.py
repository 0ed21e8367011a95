"""Delta tables to which each transaction appends its rows: users' states, dead letters and settled messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from pyspark.sql.types import AnsiIntervalType, ArrayType, CalendarIntervalType, MapType, NullType, StructType

from trident.coordinators.errors import ConfigError, FieldError, TopologyError, described
from trident.states.core.binding import GuaranteeRow, StateBinding, TableKind
from trident.states.core.names import check_flag, check_name, folded
from trident.states.core.tables import PROPERTIES, TableSpec, table_schema
from trident.states.delta.file_layout import can_partition

# Checks the columns of a Delta table: allowed fields, and those it can be partitioned by.


_NOT_IN_NAMES = frozenset(" ,;{}()\n\t=")


def check_partition_columns(name: str, columns: Sequence[str], schema: StructType) -> None:
    """Raises FieldError when state ``name`` cannot be partitioned by the columns."""
    for column in columns:
        if column not in schema.names:
            raise FieldError(
                f"state {name} is partitioned by a field that is not written to it",
                found=repr(column),
                expected=f"one of {', '.join(schema.names)}",
            )
        if not can_partition(schema[column].dataType):
            raise FieldError(
                f"state {name} cannot be partitioned by field {column!r}",
                found=schema[column].dataType.simpleString(),
                expected="a number, string, boolean, date or timestamp: values of other types do not come back exactly "
                "from the text that a Delta log has of them",
                action="partition by another field, as in with_column('part', F.hex('key'))",
            )
    if columns and len(columns) == len(schema.names):
        raise FieldError(
            f"state {name} is partitioned by every field written to it", expected="at least one other field"
        )


def check_txid_column(state: str, column: object) -> None:
    """Raises ConfigError when the column for the txids of an append table cannot have that name."""
    if column is None or (isinstance(column, str) and column and not set(column) & (_NOT_IN_NAMES | {"."})):
        return
    raise ConfigError(
        f"txid_column of state {state} is no name of a column",
        found=described(column),
        expected='a name without any of ,;{}()=, dots, blanks, tabs and line ends, such as "_txid", or None',
    )


def check_no_field_is(state: str, column: str | None, schema: StructType) -> None:
    """Raises FieldError when a field written to a state is the column for the txids."""
    same = [name for name in schema.names if column is not None and folded(name) == folded(column)]
    if same:
        raise FieldError(
            f"field {same[0]!r} cannot be written to state {state}: the table has the numbers of transactions there",
            found=f"txid_column={column!r}",
            expected="a column that is no field of the batch",
            action="rename the field, or give txid_column another name",
        )


def check_columns(state: str, schema: StructType) -> None:
    """Raises FieldError when a Delta table cannot have the fields as columns."""
    for path, kind in _columns(schema, ""):
        found = sorted(set(path) & _NOT_IN_NAMES)
        if found:
            raise FieldError(
                f"field {path!r} cannot be a column of state {state}",
                found=" ".join(map(repr, found)),
                expected="a name without any of ,;{}()=, blanks, tabs and line ends, as Delta asks",
                action="give it another name, as in F.sum('n').alias('total') or rename",
            )
        if isinstance(kind, (NullType, AnsiIntervalType, CalendarIntervalType)):
            raise FieldError(
                f"field {path!r} cannot be a column of state {state}",
                found=kind.simpleString(),
                expected="a type that Delta has",
                action="cast it, as in F.lit(None).cast('string')",
            )


def _columns(kind: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Each field and the parts of its type, with the way to it."""
    if isinstance(kind, StructType):
        for one in kind.fields:
            place = f"{path}.{one.name}" if path else one.name
            yield place, one.dataType
            yield from _columns(one.dataType, place)
    parts = [kind.elementType] if isinstance(kind, ArrayType) else []
    parts += [kind.keyType, kind.valueType] if isinstance(kind, MapType) else []
    for part in parts:
        yield path, part
        yield from _columns(part, path)


@dataclass(frozen=True)
class DeltaAppend:
    """A Delta table that every transaction appends its rows to, exactly once.

    The table is ``<warehouse>/<name>``; any Delta reader may read it. Exactly
    once with transactional and opaque spouts (docs/semantics.md 5).

    Args:
        name: the state's name, and the table's folder.
        partition_columns: fields by which the table is partitioned: numbers,
            strings, booleans, dates and timestamps (of the years 1 to 9999). Delta
            keeps them as text, to which an empty string is null: it is read back
            as null, as from any Delta table.
        adopt: take over a table that exists and was not made by this topology.
        txid_column: a further column of the table, of type long, for the number of the transaction that wrote the row,
            as in ``txid_column="_txid"``: by it :func:`trident.explain_row` tells of any row where it is from, also
            after OPTIMIZE has put it into another file. The batch must have no field of that name. It costs next to
            nothing, since all rows of a file have one value. A table gets it when its topology starts with it for the
            first time; rows from before, and those of a table that was taken over, have null there.

    Raises:
        TopologyError: the name cannot be used, or the columns are no names.
        ConfigError: ``adopt`` is neither True nor False, or ``txid_column`` is no name of a column.
    """

    name: str
    partition_columns: Sequence[str] = ()
    adopt: bool = False
    txid_column: str | None = None

    def __post_init__(self) -> None:
        check_name("state", self.name)
        columns = self.partition_columns
        if not isinstance(columns, str) and not isinstance(columns, Iterable):
            raise TopologyError(
                f"partition_columns of state {self.name} are no names",
                found=described(columns),
                expected="a list of field names, or one name",
            )
        check_flag(self.adopt, f"adopt of state {self.name}")
        check_txid_column(self.name, self.txid_column)
        object.__setattr__(self, "partition_columns", (columns,) if isinstance(columns, str) else tuple(columns))


class RowsKind(TableKind):
    """Tables to which each transaction appends its rows as they are."""

    appends = True

    def holds(self, state: object) -> bool:
        return False

    def published_table(self, binding: StateBinding) -> TableSpec:
        state = binding.state
        txid_column = getattr(state, "txid_column", None)
        schema = table_schema(binding.schema, txid_column)
        return TableSpec(binding.name, schema, tuple(state.partition_columns), PROPERTIES, txid_column)


class AppendKind(RowsKind):
    """The kind of DeltaAppend."""

    name = "append"
    example = "DeltaAppend(name)"
    is_described = True
    why_no_new_values = "rows that are appended"
    guarantee_rows = (GuaranteeRow("APPEND", "DeltaAppend"),)

    def holds(self, state: object) -> bool:
        return isinstance(state, DeltaAppend)

    def may_grow(self, binding: StateBinding) -> bool:
        return True

    def check_rows(self, state: Any, schema: "StructType", keys: Sequence[str]) -> None:
        check_columns(state.name, schema)
        check_no_field_is(state.name, state.txid_column, schema)
        check_partition_columns(state.name, tuple(state.partition_columns), schema)

    def check_has_keys(self, state: Any, what: str) -> None:
        raise TopologyError(
            f"{what} needs a state with one value per key",
            found=repr(state),
            expected="DeltaMapState(name)",
            action="use partition_persist to append rows",
        )


APPEND = AppendKind()


# The state kinds of the tables beside a group's states: dead letters, and the messages that were settled.


class SideTableKind(RowsKind):
    """A table that only the framework makes, and whose rows outlive a state.

    Attributes:
        pattern: the name of its tables.
        named_after: what "{part}" in the pattern is a name of.
    """

    only_with_rows = True
    pattern: ClassVar[str]
    named_after: ClassVar[str]

    def table_name(self, topology: str, part: str) -> str:
        return self.pattern.format(topology=topology, part=part)


class DeadLetterKind(SideTableKind):
    """The table of what a batch group gave up."""

    name = "dead_letters"
    pattern = "{topology}__{part}__dead_letters"
    named_after = "batch group"


class MessageKind(SideTableKind):
    """The table of how a stream's messages ended."""

    name = "messages"
    pattern = "{topology}__{part}__messages"
    named_after = "stream"


class ViewKind(SideTableKind):
    """The table of a batch group's views. It is written beside transactions, and is no part of any."""

    name = "views"
    pattern = "{topology}__{part}__views"
    named_after = "batch group"


DEAD_LETTERS = DeadLetterKind()
MESSAGES = MessageKind()
VIEWS = ViewKind()
SIDE_TABLES: tuple[SideTableKind, ...] = (DEAD_LETTERS, MESSAGES)
