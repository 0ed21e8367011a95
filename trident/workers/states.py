"""Users' own states on a worker: queried for rows, and updated without being written yet.

Steps of a :class:`trident.workers.chain.Chain`. A map's new values are found
against a buffer before the transaction is decided; only what the buffer holds
then is staged and, once decided, put into the map (docs/semantics.md 9.3). Imported by
workers: keep its imports light.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from trident.coordinators.errors import Halted
from trident.states.core.typed_values import Row, frozen
from trident.states.core.values import Semantics, TupleCollectionGet, dumps
from trident.states.maps.map_states import BufferedMap
from trident.states.publishing.user_tasks import (
    KEY,
    PARTITION,
    STORED,
    BatchInfo,
    Collector,
    call_updater,
    open_backing,
    plain_key,
)
from trident.workers.calls import Results, one_row, output_arrays
from trident.workers.chain import FieldsStep, Frame, Meter
from trident.workers.failures import Label, fail
from trident.workers.groups import _NOTHING, Folds, key_arrays

if TYPE_CHECKING:
    from typing_extensions import Self

# Beside the columns of a map's staged updates; tells whether the row is one of the stream of new values.
SHOWN = "__trident_shown"


# --- queries -----------------------------------------------------------------------------


@dataclass(frozen=True)
class _OfBatch(FieldsStep):
    """A step that is told its batch before it runs."""

    info: BatchInfo | None = field(default=None, kw_only=True)

    def for_batch(self, info: BatchInfo) -> "Self":
        return replace(self, info=info)

    @property
    def batch(self) -> BatchInfo:
        assert self.info is not None, "for_batch comes first"
        return self.info


@dataclass(frozen=True)
class QueryRows(_OfBatch):
    """state_query of a state of the user's: one retrieval per piece of a batch.

    Attributes:
        state: a StateBinding, or the factory of a static state.
        query: MapGet, SnapshotGet, TupleCollectionGet or a QueryFunction.
        inputs, outputs, types, many, keep: as in Rows.
        place: the field that says which partition of the state the row belongs to; "": the first.
    """

    label: Label
    state: Any
    query: Any
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    types: tuple[pa.DataType, ...]
    many: bool | None
    keep: tuple[str, ...]
    place: str = ""

    def run(self, frames: Iterator[Frame]) -> Iterator[Frame]:
        state = query = None
        try:
            for frame in frames:
                if not frame.length:
                    continue
                if state is None:
                    state, query = self._open(frame.values(self.place)[0] if self.place else 0)
                yield self._answer(frame, state, query)
        finally:
            if query is not None and callable(getattr(query, "cleanup", None)):
                query.cleanup()

    def _open(self, index: int) -> tuple[Any, Any]:
        try:
            name = getattr(self.state, "name", "") or "static"
            config = self.batch.of_state(name)
            query = _builtin(self.query, len(self.outputs))
            if callable(getattr(query, "prepare", None)):
                query.prepare(config, index, _count(self.state))
            return _opened(self.state, self.batch, config, index), query
        except Exception as error:
            fail(self.label, error, {})

    def _answer(self, frame: Frame, state: Any, query: Any) -> Frame:
        args = list(frame.rows(self.inputs))
        try:
            found = list(query.batch_retrieve(state, args))
            if len(found) != len(args):
                raise ValueError(f"batch_retrieve gave {len(found)} results for {len(args)} rows: one each is needed")
        except Exception as error:
            fail(self.label, error, dict(zip(self.inputs, args[0])))
        many = self._many()
        made = self.made(
            query.execute,
            [args, found],
            ("args", "result"),
            frame.length,
            many,
            many is not False,
            lambda row: dict(zip(self.inputs, args[row])),
        )
        return self.with_results(frame, self.keep, made)

    def _many(self) -> bool | None:
        if isinstance(self.query, TupleCollectionGet):
            return True
        return False if not hasattr(self.query, "execute") else self.many


class _Lookup:
    """MapGet and SnapshotGet of a map: a missing key gives nulls."""

    def __init__(self, outputs: int) -> None:
        self._missing = None if outputs == 1 else (None,) * outputs

    def batch_retrieve(self, state: Any, args: Sequence[Row]) -> list[Any]:
        keys = [plain_key(key) for key in args]
        texts = [dumps(key) for key in keys]
        distinct = dict(zip(texts, keys))
        found = dict(zip(distinct, state.multi_get(list(distinct.values()))))
        return [found[text] for text in texts]

    def execute(self, args: Row, result: Any) -> Any:
        return self._missing if result is None else result


class _Everything:
    """TupleCollectionGet of a state of one's own: all its entries for each row."""

    def __init__(self, outputs: int) -> None:
        self._outputs = outputs

    def batch_retrieve(self, state: Any, args: Sequence[Row]) -> list[Any]:
        if callable(getattr(state, "get_tuples", None)):
            rows = [tuple(row) for row in state.get_tuples()]
        else:
            keys = state.keys()
            found = ((key, value) for key, value in zip(keys, state.multi_get(keys)) if value is not None)
            one = all(self._outputs == len(key) + 1 for key in keys)
            rows = [(*key, value) if one else (*key, *value) for key, value in found]
        return [rows if self._outputs > 1 else [row[0] for row in rows]] * len(args)

    def execute(self, args: Row, result: Any) -> Any:
        return result


def _builtin(query: Any, outputs: int) -> Any:
    if isinstance(query, TupleCollectionGet):
        return _Everything(outputs)
    return query if hasattr(query, "execute") else _Lookup(outputs)


def _count(state: Any) -> int:
    return getattr(getattr(state, "state", state), "partitions", 1)


def _opened(state: Any, info: BatchInfo, config: Mapping[str, Any], index: int) -> Any:
    """A state to be asked: a map of a topology, a factory's state, or a static one."""
    setting = getattr(state, "state", state)  # of a StateBinding
    if hasattr(setting, "make_backing"):
        opened = setting.map_over(open_backing(setting, info, index), epoch=info.epoch, incarnation=info.incarnation)
        if info.as_of is not None:
            return MapAsOf(opened, info.as_of[setting.name])
        opened.begin_commit(info.attempt.txid)  # a replay must not see what a first try wrote
        return opened
    if callable(getattr(setting, "make_state", None)):
        return setting.make_state(config, index, _count(setting))
    return setting


class NewerThanRequested(Exception):
    """A map holds the values of a later transaction, and no longer those as of the requested one."""


class MapAsOf:
    """A map as a request sees it: as of one transaction, although later ones may be under way.

    An opaque row has the value before its last transaction too, so it can be
    read while the next one is being published. A transactional row has one
    value only. A plain one says nothing: it is read as it is now.

    Args:
        map_: over the user's store; in no transaction.
        txid: the last one that may be seen.
    """

    def __init__(self, map_: Any, txid: int) -> None:
        self._map, self._txid = map_, txid
        if map_.semantics is Semantics.OPAQUE:
            map_.begin_commit(txid + 1)
        elif map_.semantics is Semantics.TRANSACTIONAL and txid:
            map_.begin_commit(txid)

    def keys(self) -> list[Row]:
        """Every key that the store has now; of one that a later transaction made ``multi_get`` gives None."""
        return self._map.keys()

    def multi_get(self, keys: Sequence[Row]) -> list[Any]:
        """The values in the order of the keys, None where absent.

        Raises:
            NewerThanRequested: a later transaction has written one of them.
        """
        try:
            found: list[Any] = self._map.multi_get(keys)
        except Halted as newer:
            raise NewerThanRequested(str(newer)) from newer
        if not self._txid and self._map.semantics is Semantics.TRANSACTIONAL and any(v is not None for v in found):
            raise NewerThanRequested(f"a value was stored, but no transaction has advanced before {self._txid + 1}")
        return found


# --- updates -----------------------------------------------------------------------------


@dataclass(frozen=True)
class UpdateMap(_OfBatch):
    """The new values of a map, found but not put yet.

    Attributes:
        state: a BackedMapState, transactional or opaque.
        aggregator: of the user; or the updater; None for "put".
        mode: "merge", "reduce", "aggregate", "put" or "update".
        outputs, types: the fields of the stream of new values behind the keys.
        deleted: of "put": the field that says that a key is removed.
        marker: the field that marks the row which is none; see OnePartitionOp.
        place: the field that says which partition of the state the rows belong to; "": the only one.
        many: of an aggregator's ``complete``: as in Rows.
    """

    label: Label
    name: str
    state: Any
    aggregator: Any
    mode: str
    keys: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    types: tuple[pa.DataType, ...]
    deleted: str = ""
    marker: str = ""
    place: str = ""
    many: bool | None = None

    @property
    def user(self) -> Any:
        """An updater is prepared with its state, not as an operation."""
        return None if self.mode == "update" else self.aggregator

    def run(self, frames: Iterator[Frame]) -> Iterator[Frame]:
        rows: dict[Row, list[Row]] = {}
        names: dict[Row, Row] = {}
        key_types: list[pa.DataType] = []
        index = None
        for frame in frames:
            if frame.length:
                index = frame.values(self.place)[0] if self.place else 0
                key_types = key_types or [frame.array(name).type for name in self.keys]
                self._gather(frame, rows, names)
        if index is not None:
            yield from self._updated(rows, names, key_types, index)

    def _gather(self, frame: Frame, rows: dict[Row, list[Row]], names: dict[Row, Row]) -> None:
        wanted = (*self.inputs, self.deleted) if self.deleted else self.inputs
        marked = frame.values(self.marker) if self.marker else repeat(0)
        for key, row, mark in zip(frame.rows(self.keys), frame.rows(wanted), marked):
            key = plain_key(key)
            same = frozen(key)
            names.setdefault(same, key)
            of_key = rows.setdefault(same, [])
            if not mark:
                of_key.append(row)

    def _updated(
        self,
        rows: dict[Row, list[Row]],
        names: dict[Row, Row],
        key_types: Sequence[pa.DataType],
        index: int,
    ) -> Iterator[Frame]:
        config = self.batch.of_state(self.name)
        try:
            buffer = BufferedMap(open_backing(self.state, self.batch, index))
            state = self.state.map_over(buffer, epoch=self.batch.epoch, incarnation=self.batch.incarnation)
            state.begin_commit(self.batch.attempt.txid)
            if self.mode == "update":
                shown = self._by_updater(state, config, index, [row for of_key in rows.values() for row in of_key])
            else:
                keys = list(rows)
                new = state.multi_update([names[key] for key in keys], [self._updater(rows[key]) for key in keys])
                shown = [(names[key], value) for key, value in zip(keys, new) if value is not None]
            state.commit(self.batch.attempt.txid)
        except Exception as error:
            fail(self.label, error, {})
        yield from self._frames(buffer.puts, shown, key_types, index)

    def _updater(self, rows: list[Row]) -> Callable[[Any], Any]:
        """old → new, for the rows of one key."""
        if self.mode == "put":
            *value, gone = rows[-1]
            new = None if gone else (value[0] if len(value) == 1 else tuple(value))
            return lambda old: new
        folds = Folds(self.aggregator, self.mode, self.batch.attempt)
        fold = folds.fold()

        def update(old: Any) -> Any:
            value = _NOTHING if old is None else folds.resumed(old if len(self.outputs) > 1 else (old,))
            for row in rows:
                value = fold(value, row)
            value = folds.initial() if value is _NOTHING else value
            if self.mode != "aggregate":
                return value
            return one_row(self.aggregator.complete(value), self.many, len(self.outputs) > 1)

        return update

    def _by_updater(self, state: Any, config: Mapping[str, Any], index: int, tuples: list[Row]) -> list[Any]:
        collector = Collector()
        call_updater(self.aggregator, state, tuples, collector, config, index, self.state.partitions)
        single = len(self.outputs) == 1
        return [((), values[0] if single and len(values) == 1 else values) for values in collector.emitted]

    def _frames(
        self,
        puts: Sequence[tuple[Row, Any]],
        shown: list[tuple[Row, Any]],
        key_types: Sequence[pa.DataType],
        index: int,
    ) -> Iterator[Frame]:
        meter, fields = Meter(), (*zip(self.keys, key_types), *zip(self.outputs, self.types))
        texts = [dumps(key) for key, _ in puts], [None if value is None else dumps(value) for _, value in puts]
        columns = {name: pa.nulls(len(puts), kind) for name, kind in fields}
        yield Frame({**columns, **_of_map(*texts, index, False)}, len(puts), meter)
        if shown and self.outputs:
            results = Results([value for _, value in shown], range(1, len(shown) + 1))
            arrays, _ = output_arrays(self.label, results, self.outputs, self.types, lambda row: {})
            arrays |= key_arrays([key for key, _ in shown], self.keys, key_types)
            none = [None] * len(shown)
            yield Frame({**arrays, **_of_map(none, none, None, True)}, len(shown), meter)


def _of_map(keys: Sequence[str | None], stored: Sequence[str | None], index: int | None, shown: bool) -> dict[str, Any]:
    """The columns of a map's staged updates; of a row that is only shown they are null."""
    count = len(keys)
    return {
        KEY: pa.array(keys, pa.string()),
        STORED: pa.array(stored, pa.string()),
        PARTITION: pa.array([index] * count, pa.int32()),
        SHOWN: pa.array([shown] * count, pa.bool_()),
    }
