"""Open windows as parts: a transaction's parts are combined with those that are stored, and what is due is fired.

The rows that come in are parts of values of one group each, and so are those that are stored: of a pane, a piece of
time that lies in the same windows as a whole, or of a session. The stored parts are looked up in the local copy,
or come with the rows (``OLD``) where there is none. Imported by every worker: keep its imports light.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from trident.states.core.shards import WHOLE, Shard
from trident.states.core.typed_values import WrongValue, to_arrow, two_values
from trident.workers.calls import Several
from trident.workers.chain import Frame, Meter, Step
from trident.workers.failures import Label, fail
from trident.workers.look_up import copy_error

if TYPE_CHECKING:
    from trident.states.core.copy_rows import RowCodec
    from trident.states.core.local_copy import CopyAsOf

# Columns of the rows that come in: the pane or the time, the number of rows, the greatest time.
AT, ROWS, NEWEST = "__trident_at", "__trident_rows", "__trident_newest"
# The same where there is no copy: whether the row is a stored one, and the watermarks of both transactions.
OLD, BEFORE, NOW = "__trident_old", "__trident_before", "__trident_now"
# Of the state: the pane (of sessions 0, of the one row about all null); the watermark, the rows, those that were late.
PANE, POSITION, NEXT, LATE_ROWS = "_pane", "_position", "_next", "_late"
# Of the state of sessions: the least end of the open ones, and these.
DUE, SESSIONS = "_due", "_sessions"
DELETED = "_deleted"
START, END, TAG = "__trident_start", "__trident_end", "__trident_tag"
STATE, FIRED, LATE = 0, 1, 2
# The bytes of a key's first column, the pane: a byte that says whether it is null, and eight.
PANE_BYTES = 9
# Of more groups that are due, those of some keys are worked on at a time: they are Python objects here.
_DUE_AT_ONCE = 50_000

Parts = tuple[Any, ...]
Row = tuple[Any, ...]
# A part that has come: the key of its group, its pane or time, its values.
New = tuple[bytes, int, Parts]
Combine = Callable[[Any, Any], Any]


@dataclass(frozen=True)
class Part:
    """A value that windows keep a part of.

    Attributes:
        name: of its column.
        kind: of Arrow.
        aggregator: the name of a native aggregator that Python combines too; "" for lists of rows.
    """

    name: str
    kind: pa.DataType
    aggregator: str

    @property
    def combine(self) -> Combine:
        """Makes one part of two; whether a sum fits its type is seen when it becomes a column."""
        if not self.aggregator:
            return _concatenated
        return two_values(self.aggregator)


@dataclass(frozen=True)
class UsersPart(Part):
    """A part that a combiner of the user's makes of two; of a type whose values Python has as they are stored.

    Attributes:
        users: the combiner.
        label: where it comes from.
        output: the user's name of the value.
    """

    users: Any
    label: Label
    output: str

    @property
    def combine(self) -> Combine:
        """As of :class:`Part`; what the combiner raises, and a value of another type, is reported as the user's."""
        combine, label, kind = self.users.combine, self.label, self.kind
        exact, limit = _exact(kind), 1 << kind.bit_width - 1 if pa.types.is_integer(kind) else None

        def made(a: Any, b: Any) -> Any:
            try:
                value = combine(a, b)
            except (Exception, SystemExit) as error:
                fail(label, error, {"a": a, "b": b})
            if value is None or (type(value) is exact and (limit is None or -limit <= value < limit)):
                return value
            try:
                return to_arrow([value], kind, self.output)[0].to_pylist()[0]
            except WrongValue as error:
                fail(label, error, {"a": a, "b": b}, **error.details)

        return made


def _exact(kind: pa.DataType) -> type:
    for is_it, exact in _PLAIN:
        if is_it(kind):
            return exact
    raise AssertionError(f"a window keeps no parts of {kind} that a user's code combines")


# Python has their values as they are stored, and none of them can be changed in its place.
_PLAIN: tuple[tuple[Callable[[pa.DataType], bool], type], ...] = (
    (pa.types.is_integer, int),
    (pa.types.is_float64, float),
    (pa.types.is_boolean, bool),
    (pa.types.is_string, str),
    (pa.types.is_binary, bytes),
)


def may_be_combined(kind: pa.DataType) -> bool:
    """Tells whether windows keep parts of a type that a combiner of the user's makes."""
    return any(is_it(kind) for is_it, _ in _PLAIN)


@dataclass
class _Turn:
    """The transaction's watermarks and counts; None: nothing was seen yet."""

    before: int | None
    now: int | None
    rows: int
    late: int


@dataclass
class Changes:
    """The result for the groups of a transaction.

    Attributes:
        put: key → its new parts, or sessions.
        gone: keys that are deleted.
        fired: (start, end, the key of a group, its parts).
    """

    put: dict[bytes, Any] = field(default_factory=dict)
    gone: list[bytes] = field(default_factory=list)
    fired: list[tuple[int, int, bytes, Parts]] = field(default_factory=list)


class Store(Protocol):
    """The stored groups of the state, as of the transaction before."""

    def get(self, keys: Sequence[bytes]) -> list[Row | None]:
        """The values of some keys, in the order of the state's value fields."""

    def due(self, first: int | None, below: int) -> Iterable[tuple[int, bytes, Row]]:
        """The groups with first <= position < below: position, key, values."""

    def count(self, first: int | None, below: int) -> int:
        """How many groups ``due`` gives at most."""

    def within(self, shard: Shard) -> Store:
        """The same, of the groups of a shard."""


class Rules(Protocol):
    """The arithmetic of one kind of windows: ``trident.operations.window_spec``."""

    @property
    def delay(self) -> int: ...

    @property
    def ordered_by(self) -> str: ...

    def pane_of(self, at: int) -> int:
        """The pane of a position, as the state names it."""

    def is_closed(self, at: int, watermark: int | None) -> bool:
        """Tells whether a watermark has reached the end of all that a row at the position would be in."""

    def due_between(self, before: int | None, now: int | None) -> tuple[int | None, int] | None:
        """The positions of stored groups that a new watermark makes due: first, below; None: none are."""

    def changes(
        self, store: Store, new: Sequence[New], combine: Combine, before: int | None, now: int | None
    ) -> Changes:
        """The changes that new parts and a new watermark make; no part is late."""

    def columns(self, values: Sequence[Any]) -> Mapping[str, list[Any]]:
        """The value fields of changed groups, without those that are null."""


@dataclass(frozen=True)
class OpenWindows(Step):
    """Combines a transaction's parts with the stored ones; gives the state's changes, fired windows, late rows.

    Attributes:
        state: its name.
        rules: of the windows.
        schema: of the state.
        keys: the key columns of the state, the pane first.
        parts: the values that are kept.
        raws: the columns of the rows themselves, where late ones are wanted.
        copy: as of the transaction before; None: stored rows come with the others.
        shard: the groups of which changes and windows are given. The watermark and counts are of all rows.
    """

    own = True

    state: str
    rules: Rules
    schema: pa.Schema
    keys: tuple[str, ...]
    parts: tuple[Part, ...]
    raws: tuple[tuple[str, pa.DataType], ...]
    looks_up: bool
    copy: CopyAsOf | None = None
    shard: Shard = WHOLE

    def with_copies(self, copies: Mapping[str, CopyAsOf]) -> OpenWindows:
        """The step with the copy of its state."""
        return replace(self, copy=copies[self.state]) if self.looks_up else self

    @property
    def text(self) -> str:
        place = f" in the local copy of {self.state}" if self.looks_up else ""
        return f"combine parts of open windows{place}, fire what is due"

    def run(self, frames: Iterator[Frame]) -> Iterator[Frame]:
        from trident.states.core.copy_rows import RowCodec  # it needs numpy
        from trident.states.core.copyable import StaleCopy

        codec = RowCodec(self.schema, self.keys)
        table = _together(frames)
        if table is None:
            return
        try:
            yield from self._given(codec, table)
        except StaleCopy as error:
            raise StaleCopy(copy_error(self.state, error)) from error
        except (ArithmeticError, pa.ArrowInvalid) as error:
            raise ArithmeticError(f"the windows of state {self.state} have a sum that does not fit: {error}") from error

    def _given(self, codec: RowCodec, table: pa.Table) -> Iterator[Frame]:
        store, table, turn = self._opened(codec, table)
        at = table.column(AT).to_pylist()
        # Many rows are of few panes.
        closed = {one: one is None or self.rules.is_closed(one, turn.before) for one in set(at)}
        late = [closed[one] for one in at]
        if self.looks_up:
            turn.late += sum(n for n, is_late in zip(table.column(ROWS).to_pylist(), late) if is_late)
        if self.shard.count > 1:
            mine = self._in(self.shard, table)
            table, at, late = table.filter(pa.array(mine)), list(compress(at, mine)), list(compress(late, mine))
        if any(late):
            kept = pa.array([not one for one in late], pa.bool_())
            if self.raws:
                yield self._frame(LATE, _raws(table.filter(pa.array(late, pa.bool_())), self.raws), sum(late))
            table, at = table.filter(kept), [one for one, is_late in zip(at, late) if not is_late]
        columns = [_plain(table.column(part.name), part.kind) for part in self.parts]
        parts: list[Parts] = list(zip(*columns)) if columns else [()] * len(at)
        new = list(zip(self._encoded_keys(codec, table, at), at, parts))
        due = self.rules.due_between(turn.before, turn.now)
        parts_of = 1
        if due is not None and len(self.keys) > 1:
            parts_of += store.count(*due) // (_DUE_AT_ONCE * self.shard.count)
        for part in self.shard.parts(parts_of):
            some = new if parts_of == 1 else list(compress(new, self._in(part, table)))
            changes = self.rules.changes(store.within(part), some, self._combining(), turn.before, turn.now)
            yield from self._of_state(codec, changes, turn if part.number == 0 else None)
            yield from self._fired(codec, changes)

    def _in(self, shard: Shard, table: pa.Table) -> list[bool]:
        found: list[bool] = shard.of_rows(table, self.schema, self.keys[1:]).to_pylist()
        return found

    def _combining(self) -> Combine:
        each = [part.combine for part in self.parts]
        if len(each) == 1:
            (only,) = each
            return lambda a, b: (only(a[0], b[0]),)
        return lambda a, b: tuple(combine(x, y) for combine, x, y in zip(each, a, b))

    def _encoded_keys(self, codec: RowCodec, table: pa.Table, at: Sequence[int]) -> list[bytes]:
        pane_of = {one: self.rules.pane_of(one) for one in set(at)}
        panes = pa.array([pane_of[one] for one in at], pa.int64())
        columns = [panes, *(table.column(name) for name in self.keys[1:])]
        return codec.encode_keys(pa.table(columns, names=list(self.keys)))

    def _about(self, codec: RowCodec) -> bytes:
        """The key of the one row about all."""
        nulls = [pa.nulls(1, self.schema.field(name).type) for name in self.keys]
        return codec.encode_keys(pa.table(nulls, names=list(self.keys)))[0]

    def _opened(self, codec: RowCodec, table: pa.Table) -> tuple[Store, pa.Table, _Turn]:
        """The stored groups, the rows of the batch, and its turn."""
        if not self.looks_up:
            old = table.column(OLD)
            (before, now) = (table.column(name)[0].as_py() for name in (BEFORE, NOW))
            stored = table.filter(old)
            rows = codec.rows(stored, self.rules.ordered_by)
            given = _Rows(rows.keys.to_pylist(), _plain_rows(rows.values, self.schema), rows.positions.to_pylist())
            return given, _new(table, old), _Turn(before, now, 0, 0)
        copy = self.copy
        assert copy is not None and copy.ordered_by == self.rules.ordered_by, "no copy in the order of what is due"
        store = _Copied(copy)
        (about,) = store.get([self._about(codec)])
        first: dict[str, Any] = {POSITION: None, NEXT: 0, LATE_ROWS: 0}
        found = first if about is None else dict(zip(codec.values, about))
        newest = pc.max(table.column(NEWEST)).as_py()
        marks = [found[POSITION], None if newest is None else newest - self.rules.delay]
        now = max((mark for mark in marks if mark is not None), default=None)
        rows = found[NEXT] + (pc.sum(table.column(ROWS)).as_py() or 0)
        return store, table, _Turn(found[POSITION], now, rows, found[LATE_ROWS])

    # --- what comes out ----------------------------------------------------------------------------------

    def _of_state(self, codec: RowCodec, changes: Changes, turn: _Turn | None) -> Iterator[Frame]:
        keys = [*changes.put, *changes.gone]
        puts, nulls = self.rules.columns(list(changes.put.values())), [None] * len(changes.put)
        columns = {name: [*puts.get(name, nulls), *[None] * len(changes.gone)] for name in codec.values}
        gone = [False] * len(changes.put) + [True] * len(changes.gone)
        if self.looks_up and turn is not None:
            about = {POSITION: turn.now, NEXT: turn.rows, LATE_ROWS: turn.late}
            keys.append(self._about(codec))
            for name, column in columns.items():
                column.append(about.get(name))
            gone.append(False)
        if keys:
            made: dict[str, Any] = dict(zip(self.keys, codec.decode_keys(keys).columns))
            made |= {name: _array(column, self.schema.field(name).type) for name, column in columns.items()}
            yield self._frame(STATE, {**made, DELETED: pa.array(gone, pa.bool_())}, len(keys))

    def _fired(self, codec: RowCodec, changes: Changes) -> Iterator[Frame]:
        fired = changes.fired
        if not fired:
            return
        keys = codec.decode_keys([key for _, _, key, _ in fired])
        columns: dict[str, Any] = {name: keys.column(name) for name in self.keys[1:]}
        columns[START] = pa.array([start for start, *_ in fired], pa.int64())
        columns[END] = pa.array([end for _, end, *_ in fired], pa.int64())
        for number, part in enumerate(self.parts):
            columns[part.name] = _array([parts[number] for *_, parts in fired], part.kind)
        yield self._frame(FIRED, columns, len(fired))

    def _frame(self, tag: int, columns: Mapping[str, Any], length: int) -> Frame:
        """The rows with one tag; null in the columns that they have not."""
        kinds = {field.name: field.type for field in self.schema} | {part.name: part.kind for part in self.parts}
        kinds |= {DELETED: pa.bool_(), START: pa.int64(), END: pa.int64()} | dict(self.raws)
        made = {
            name: _one(columns[name]) if name in columns else pa.nulls(length, kind) for name, kind in kinds.items()
        }
        return Frame({**made, TAG: pa.array([tag] * length, pa.int32())}, length, Meter())


class _OfCombiners(Step):
    """A step that combines parts by combiners of the user's, each with its own hooks."""

    parts: tuple[Part, ...]

    @property
    def label(self) -> Label:  # type: ignore[override]
        labels = [part.label for part in self.parts if isinstance(part, UsersPart)]
        return Label(", ".join(dict.fromkeys(label.operation for label in labels)), labels[0].location)

    @property
    def user(self) -> Any:
        return _Combiners(self.parts)


@dataclass(frozen=True)
class UsersWindows(_OfCombiners, OpenWindows):
    """The same with parts that combiners of the user's make: on the workers alone."""

    own = False


@dataclass(frozen=True)
class PartsOfPanes(_OfCombiners):
    """Makes one row of the rows of a pane and group that come together, so that fewer leave the worker.

    Attributes:
        keys: the grouping fields with their types.
        parts: as of OpenWindows; combiners of the user's among them.
    """

    keys: tuple[tuple[str, pa.DataType], ...]
    parts: tuple[Part, ...]

    @property
    def text(self) -> str:
        return "combine the parts of each pane"

    def run(self, frames: Iterator[Frame]) -> Iterator[Frame]:
        from trident.states.core.copy_rows import RowCodec  # it needs numpy

        names = (AT, *(name for name, _ in self.keys))
        codec = RowCodec(pa.schema([(AT, pa.int64()), *self.keys]), list(names))
        each = [part.combine for part in self.parts]
        for frame in frames:
            if not frame.length:
                continue
            try:
                yield self._combined(frame, codec, names, each)
            except (ArithmeticError, ValueError):  # a sum of these alone need not fit
                given = frame.only((*names, *(part.name for part in self.parts), ROWS, NEWEST))
                yield Frame(given, frame.length, frame.meter)

    def _combined(self, frame: Frame, codec: RowCodec, names: tuple[str, ...], each: Sequence[Combine]) -> Frame:
        keys = codec.encode_keys(pa.table(frame.only(names)))
        parts = [_plain(frame.array(part.name), part.kind) for part in self.parts]
        rows, newest = frame.array(ROWS).to_pylist(), frame.array(NEWEST).to_pylist()
        groups: dict[bytes, list[Any]] = {}
        for at, (key, count, time, *values) in enumerate(zip(keys, rows, newest, *parts)):
            held = groups.get(key)
            if held is None:
                groups[key] = [at, count, time, *values]
                continue
            held[1] += count
            held[2] = time if held[2] is None else held[2] if time is None else max(held[2], time)
            for number, combine in enumerate(each, start=3):
                held[number] = combine(held[number], values[number - 3])
        first, *made = zip(*groups.values())
        columns = frame.only(names, list(first))
        for part, column in zip(self.parts, made[2:]):
            columns[part.name] = _array(column, part.kind)
        columns |= {ROWS: pa.array(made[0], pa.int64()), NEWEST: pa.array(made[1], pa.int64())}
        return Frame(columns, len(first), frame.meter)


class _Combiners(Several):
    def __init__(self, parts: Sequence[Part]) -> None:
        self.users = [part.users for part in parts if isinstance(part, UsersPart)]


@dataclass(frozen=True)
class Given(Step):
    """The rows with one tag: the changes of the state, fired windows, or late rows.

    Attributes:
        columns: (the field, the column that it is), in order.
        window: the field of the window's edges, and its type; None: it is not wanted.
        rows: the column with lists of rows, of which each row is to be one, ``columns`` being fields of it; "": none.
    """

    own = True
    text = ""

    tag: int
    columns: tuple[tuple[str, str], ...]
    window: tuple[str, pa.StructType] | None = None
    rows: str = ""

    def run(self, frames: Iterator[Frame]) -> Iterator[Frame]:
        for frame in frames:
            index = pc.indices_nonzero(pc.equal(frame.array(TAG), self.tag))
            if not len(index):
                continue
            taken = frame.only(tuple(dict.fromkeys((*self._taken, START, END))), index)
            if self.rows:
                parents = pc.list_parent_indices(taken[self.rows])
                each = pc.list_flatten(taken[self.rows])
                taken = {name: taken[name].take(parents) for name in (START, END)}
                fields = dict(zip((field.name for field in each.type), each.flatten()))
                taken |= {name: fields[name] for _, name in self.columns}
            made = {name: taken[column] for name, column in self.columns}
            if self.window is not None:
                name, kind = self.window
                edges = [taken[edge].cast(field.type) for edge, field in zip((START, END), kind)]
                made[name] = pa.StructArray.from_arrays(edges, fields=list(kind))
            yield Frame(made, len(taken[START]), frame.meter)

    @property
    def _taken(self) -> tuple[str, ...]:
        return (self.rows,) if self.rows else tuple(column for _, column in self.columns)


class _Copied:
    """The stored groups in a local copy."""

    def __init__(self, copy: CopyAsOf, shard: Shard = WHOLE) -> None:
        self._copy, self._shard = copy, shard

    def within(self, shard: Shard) -> _Copied:
        return _Copied(self._copy, shard)

    def get(self, keys: Sequence[bytes]) -> list[Row | None]:
        from trident.states.core.local_copy import look_up  # hosts of a cluster may lack what copies need

        rows, found = look_up(self._copy, pa.array(keys, pa.large_binary()))
        return [row if there else None for row, there in zip(_plain_rows(rows, self._copy.schema), found.tolist())]

    def due(self, first: int | None, below: int) -> Iterable[tuple[int, bytes, Row]]:
        from trident.states.core.local_copy import in_order  # hosts of a cluster may lack what copies need

        for piece in in_order(self._copy, first, below, self._shard):
            rows = _plain_rows(piece.values, self._copy.schema)
            yield from zip(piece.positions.tolist(), piece.keys.to_pylist(), rows)

    def count(self, first: int | None, below: int) -> int:
        from trident.states.core.local_copy import count_in_order  # hosts of a cluster may lack what copies need

        return count_in_order(self._copy, first, below) * self._copy.shard.count  # the other shards have as many


class _Rows:
    """The stored groups that have come with the rows."""

    def __init__(self, keys: Sequence[bytes], rows: Sequence[Row], positions: Sequence[int | None]) -> None:
        self._rows, self._positions = dict(zip(keys, rows)), dict(zip(keys, positions))

    def get(self, keys: Sequence[bytes]) -> list[Row | None]:
        return [self._rows.get(key) for key in keys]

    def due(self, first: int | None, below: int) -> Iterable[tuple[int, bytes, Row]]:
        for key, at in self._positions.items():
            if at is not None and at < below and (first is None or first <= at):
                yield at, key, self._rows[key]

    def count(self, first: int | None, below: int) -> int:
        return 0  # they are here already

    def within(self, shard: Shard) -> _Rows:
        return self


def _concatenated(a: list[Any], b: list[Any]) -> list[Any]:
    return [*a, *b]


def _together(frames: Iterable[Frame]) -> pa.Table | None:
    tables = [pa.table(frame._columns) for frame in frames if frame.length]
    return pa.concat_tables(tables).combine_chunks() if tables else None


def _new(table: pa.Table, old: Any) -> pa.Table:
    return table.filter(pa.array([not one for one in old.to_pylist()], pa.bool_()))


def _raws(table: pa.Table, raws: Iterable[tuple[str, pa.DataType]]) -> dict[str, Any]:
    return {name: table.column(name) for name, _ in raws}


def _one(column: Any) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _plain(column: Any, kind: pa.DataType) -> list[Any]:
    from trident.states.core.copy_rows import plain_values  # numpy: only where windows are

    return plain_values(column, kind)


def _plain_rows(rows: pa.Table, schema: pa.Schema) -> list[Row]:
    columns = [_plain(rows.column(name), schema.field(name).type) for name in rows.column_names]
    return list(zip(*columns)) if columns else [()] * rows.num_rows


def _array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    from trident.states.core.copy_rows import array_of  # numpy: only where windows are

    return array_of(values, kind)
