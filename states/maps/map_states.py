"""Users' own states: their contracts, and maps that count each transaction once (docs/semantics.md 5).

Between ``begin_commit(txid)`` and ``commit(txid)`` a map gathers its updates
and shows them to its own reads; ``commit`` writes them in one ``multi_put``.
So a key may be updated several times in a transaction and is still written
once: had each update been written by itself, a replay after a crash between
two of them could not tell which of them a stored txid stands for. An update
builds on the state as of the transaction before, also when an earlier try of
this transaction has been written.

Keys are the same exactly when their texts are (:func:`trident.states.core.values.dumps`):
``(1,)``, ``(1.0,)`` and ``(True,)`` are three keys, here as in every store.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

from trident.coordinators.errors import ConfigError, TridentError
from trident.states.core.values import (
    UNCHANGED,
    Base,
    Semantics,
    base_of,
    dumps,
    fresh,
    loads,
    stored_after,
    undone,
    visible,
)

# The contracts between a user's own state and the framework (docs/semantics.md 5).
#
# A user-written state is updated *after* its batch has been decided, from rows
# that were made durable before (docs/semantics.md 9.5): the same txid always comes
# with the same rows, however often and in whichever process it is tried. A state
# must still notice by itself that it has applied a txid, since a
# crash may come between its write and the moment the coordinator hears of it;
# :mod:`trident.states.maps.map_states` does that over any :class:`BackingMap`.
#
# Who calls what, and where::
#
#     driver      pickles StateFactory, StateUpdater, QueryFunction
#     executor    state = factory.make_state(config, partition_index, num_partitions)
#                 updater.prepare(config, partition_index, num_partitions)
#                 state.begin_commit(txid)
#                 updater.update_state(state, tuples, collector)
#                 state.commit(txid)
#                 updater.cleanup()
#
# One partition's calls come from one thread at a time, its transactions in the
# order of txids. A partition may move to another process between any two
# transactions; nothing may be kept in memory that the store does not have.


Key = tuple[Any, ...]
Updater = Callable[[Any], Any]
"""old value (None: the key is absent) -> new value (None: remove it). Called once; must have no effects of its own."""


@runtime_checkable
class State(Protocol):
    """Something durable that transactions change. One object per partition, on an executor."""

    def begin_commit(self, txid: int | None) -> None:
        """The updates that follow belong to txid. Again after a failure: uncommitted updates are forgotten.

        Args:
            txid: the transaction; None: the updates belong to none (they count as often as they are made).
        """

    def commit(self, txid: int | None) -> None:
        """The updates of txid are complete; durable when this returns.

        It may be called again for a txid that has been committed, by another
        process, with the same updates before it.
        """


class StateFactory(Protocol):
    """Makes the state of one partition. Pickled on the driver, called on executors."""

    def make_state(self, config: Mapping[str, Any], partition_index: int, num_partitions: int) -> State:
        """The state of this partition; called at least once per process that updates or queries it.

        Args:
            config: the topology's settings.
            partition_index: 0 … num_partitions − 1. The same key always comes to the same index as long
                as num_partitions does not change.
            num_partitions: of this state.
        """


class TridentCollector(Protocol):
    """Takes what an updater emits: the tuples of ``new_values_stream()``."""

    def emit(self, values: Sequence[Any]) -> None:
        """One tuple, in the order of the declared output fields."""


class StateUpdater(Protocol):
    """Changes a state by the tuples of one partition of one batch. Pickled; called on executors.

    May have ``prepare(config, partition_index, num_partitions)``, called before
    the first update in a process, and ``cleanup()``, called after the last.

    The caller's duty: it changes nothing but the state, and decides by nothing
    but the state and the tuples (no clock, no random numbers): it runs again
    after a crash.
    """

    def update_state(self, state: Any, tuples: Sequence[tuple[Any, ...]], collector: TridentCollector) -> None:
        """Called once per transaction and partition, between begin_commit and commit."""


class QueryFunction(Protocol):
    """Reads a state for each row of a batch. Pickled; called on executors, before the batch is decided.

    May have ``prepare`` and ``cleanup`` as :class:`StateUpdater`.

    It sees the state as of the transaction before its batch.
    """

    def batch_retrieve(self, state: Any, args: Sequence[tuple[Any, ...]]) -> Sequence[Any]:
        """One result per args, in their order; another number fails the batch."""

    def execute(self, args: tuple[Any, ...], result: Any) -> Iterable[Any]:
        """The values (one output field) or tuples that this row becomes; none, or None: it is dropped."""


@runtime_checkable
class MapState(State, Protocol):
    """A state that maps keys, tuples of plain values, to plain values; None means absent.

    Between begin_commit and commit it shows its own updates, and what they
    build on is the state as of the transaction before, also in a replay.
    """

    def multi_get(self, keys: Sequence[Key]) -> list[Any]:
        """The values in the order of the keys; None where absent."""

    def multi_update(self, keys: Sequence[Key], updaters: Sequence[Updater]) -> list[Any]:
        """Replaces each key's value by ``updater(value)``; the new values, in the order of the keys."""

    def multi_put(self, keys: Sequence[Key], values: Sequence[Any]) -> None:
        """Sets values whatever was there before."""


@runtime_checkable
class RemovableMapState(MapState, Protocol):
    """A map from which keys can be removed."""

    def multi_remove(self, keys: Sequence[Key]) -> None: ...


@runtime_checkable
class Snapshottable(State, Protocol):
    """A state of one value."""

    def get(self) -> Any: ...

    def update(self, updater: Updater) -> Any:
        """Replaces the value by ``updater(value)`` and returns the new one."""

    def set(self, value: Any) -> None: ...


@runtime_checkable
class BackingMap(Protocol):
    """Where a map's rows are: a store that a user can write in twenty lines.

    Keys are tuples of plain values; values are what :func:`trident.states.core.values.dumps`
    takes. The caller's duty: one writer per key at a time.

    A map that lives on one host (a file on a local disk, a process's memory)
    says so with ``bound_to_one_host = True``, or a text that says what to use
    instead: then it is refused on a Spark cluster, whose hosts would each have
    a part of it. So may a function that makes maps, a StateFactory, a static
    state, a spout and a bolt (:mod:`trident.states.core.addresses`).
    """

    def multi_get(self, keys: Sequence[Key]) -> Sequence[Any]:
        """The stored values in the order of the keys, as they were put; None where absent."""

    def multi_put(self, keys: Sequence[Key], values: Sequence[Any], epoch: int | None = None) -> None:
        """Stores each value, durably when this returns; ``None`` removes its key.

        It may be called with no key at all. After an error it is not known
        which keys were written: the whole transaction is tried again.

        Args:
            epoch: of the coordinator on whose behalf this is; a map that is not fenced ignores it.
        """


@runtime_checkable
class FencedBackingMap(BackingMap, Protocol):
    """A backing map that an old coordinator cannot write to once a newer one has.

    Its ``multi_put`` refuses an epoch below the greatest that it has been given,
    in the same atomic step as the write, and keeps that epoch as durably as
    the rows. It may write many keys in several such steps. Without it, a
    coordinator that was suspended between its read and its write could wake up
    and overwrite what its successor wrote (docs/semantics.md 7.5).
    """

    fenced: ClassVar[bool] = True

    def multi_put(self, keys: Sequence[Key], values: Sequence[Any], epoch: int | None = None) -> None:
        """As :meth:`BackingMap.multi_put`; called with an epoch and no key it only closes the door behind it.

        Raises:
            StaleEpoch: a newer coordinator has written; nothing (more) was written.
        """


@runtime_checkable
class FollowsTransactions(Protocol):
    """A backing map that wants to know of transactions; a map state over it tells it."""

    def transaction_begins(self, txid: int | None, epoch: int | None, incarnation: str) -> None: ...

    def transaction_committed(self, txid: int | None) -> None: ...


def key_text(key: Key) -> str:
    """The text that a key is stored under."""
    if type(key) is not tuple:
        raise ConfigError("a key of a map must be a tuple", found=repr(key)[:100], expected="such as ('word',)")
    return dumps(key)


@dataclass(slots=True)
class _Entry:
    """A key that this transaction has read."""

    key: Key
    stored: Any
    base: Base
    value: Any
    changed: bool = False


class _ValueMap:
    """The common part of the three semantics."""

    semantics: Semantics

    def __init__(self, backing: BackingMap, *, epoch: int | None = None, incarnation: str = "") -> None:
        self._backing, self._epoch, self._incarnation = backing, epoch, incarnation
        self._txid: int | None = None
        self._entries: dict[str, _Entry] = {}

    def begin_commit(self, txid: int | None) -> None:
        """Begins transaction txid; whatever was gathered and not committed is forgotten: that try has failed."""
        self._entries = {}
        self._txid = txid
        if isinstance(self._backing, FollowsTransactions):
            self._backing.transaction_begins(txid, self._epoch, self._incarnation)

    def commit(self, txid: int | None) -> None:
        """Writes what was gathered; durable when it returns. One ``multi_put``.

        With an epoch it is called also when nothing has changed: a replay that
        finds everything written must still close the map to older coordinators.

        Raises:
            StaleEpoch: a newer coordinator has written to the map.
        """
        if txid != self._txid:
            raise TridentError(f"commit({txid}) without its begin_commit", found=f"begun: {self._txid}")
        # Forgotten first: after an error the transaction is begun again, from what is stored then.
        entries, self._entries, self._txid = self._entries, {}, None
        self._write(list(entries.values()), txid)
        if isinstance(self._backing, FollowsTransactions):
            self._backing.transaction_committed(txid)

    def multi_get(self, keys: Sequence[Key]) -> list[Any]:
        """The values, None where absent: in a transaction as it sees them, else the latest that are stored."""
        if self._txid is not None:
            return [fresh(entry.value) for entry in self._read(keys)]
        return [visible(self.semantics, stored, self._incarnation) for stored in self._stored(keys)]

    def keys(self) -> list[Key]:
        """Every key that the store has at this moment, also one whose value is absent for this transaction."""
        items = getattr(self._backing, "items", None)
        if not callable(items):
            raise ConfigError(
                "a map cannot list its keys",
                found=f"{type(self._backing).__name__} without items()",
                expected="items(), which gives every (key, stored value)",
            )
        return [tuple(key) for key, _ in items()]

    def multi_update(self, keys: Sequence[Key], updaters: Sequence[Updater]) -> list[Any]:
        """Replaces each key's value by ``updater(value)``; at most one ``multi_get`` for all of them.

        A key may occur several times: each updater builds on the one before.
        The updaters of a key that this transaction has updated in an earlier
        try are not called by a transactional map: its value stands.

        Returns:
            The new values, in the order of the keys.
        """
        _same_length(keys, updaters, "updaters")
        entries = self._read(keys)
        values = []
        for entry, update in zip(entries, updaters):
            if not entry.base.applied:
                entry.value = fresh(update(entry.value))
                entry.changed = True
            values.append(fresh(entry.value))
        if self._txid is None:
            distinct = {id(entry): entry for entry in entries}
            self._write(list(distinct.values()), None)
        return values

    def multi_put(self, keys: Sequence[Key], values: Sequence[Any]) -> None:
        """Sets values whatever was there before; None removes."""
        _same_length(keys, values, "values")
        self.multi_update(keys, [_constant(value) for value in values])

    def multi_remove(self, keys: Sequence[Key]) -> None:
        """Removes keys; one that is absent is left so."""
        self.multi_update(keys, [_constant(None)] * len(keys))

    def _read(self, keys: Sequence[Key]) -> list[_Entry]:
        """The keys' entries in this transaction, outside of one new ones; one object per key."""
        entries = self._entries if self._txid is not None else {}
        texts = [key_text(key) for key in keys]
        missing = {text: key for text, key in zip(texts, keys) if text not in entries}
        if missing:
            for (text, key), stored in zip(missing.items(), self._stored(list(missing.values()))):
                base = base_of(self.semantics, stored, self._txid, self._incarnation)
                entries[text] = _Entry(key, stored, base, base.value)
        return [entries[text] for text in texts]

    def _stored(self, keys: Sequence[Key]) -> Sequence[Any]:
        if not keys:
            return []
        stored = self._backing.multi_get(keys)
        _same_length(keys, stored, f"values, from multi_get of {type(self._backing).__name__}")
        return stored

    def _write(self, entries: list[_Entry], txid: int | None) -> None:
        keys, values = [], []
        for entry in entries:
            if entry.changed:
                after = stored_after(self.semantics, entry.stored, txid, entry.value, self._incarnation)
                if after is not UNCHANGED:
                    keys.append(entry.key)
                    values.append(after)
        self._put(keys, values)

    def _put(self, keys: list[Key], values: list[Any]) -> None:
        if keys or self._epoch is not None:
            self._backing.multi_put(keys, values, epoch=self._epoch)


class NonTransactionalMap(_ValueMap):
    """Stores values as they are: a transaction that is tried again counts again (at least once).

    Outside of a transaction each update is written at once.
    """

    semantics = Semantics.NON_TRANSACTIONAL


class TransactionalMap(_ValueMap):
    """Stores (txid, value) and skips a txid that is stored: exactly once if a replay brings the same rows.

    Updates belong to a transaction; outside of one it can only be read.
    """

    semantics = Semantics.TRANSACTIONAL


class OpaqueMap(_ValueMap):
    """Stores (txid, current, previous): exactly once also if a replay brings other rows of the same keys.

    Updates belong to a transaction; outside of one it can only be read. A key
    that only the failed try touched is for :meth:`undo`; updates that are
    written after their batch is decided, as the framework's are, have none.
    """

    semantics = Semantics.OPAQUE

    def undo(self, keys: Sequence[Key], txid: int) -> None:
        """Writes keys back as they were before ``txid``, where it has changed them (docs/semantics.md 7.1).

        For a caller that writes before it knows whether the try counts, and
        remembers which keys a failed one touched. Outside of a transaction.
        """
        after = [(key, undone(old, txid, self._incarnation)) for key, old in zip(keys, self._stored(keys))]
        changed = [(key, value) for key, value in after if value is not UNCHANGED]
        self._put([key for key, _ in changed], [value for _, value in changed])


class SnapshottableMap:
    """A state of one value: the key ``()`` of a map."""

    KEY: Key = ()

    def __init__(self, map_state: MapState) -> None:
        self._map = map_state

    def begin_commit(self, txid: int | None) -> None:
        self._map.begin_commit(txid)

    def commit(self, txid: int | None) -> None:
        self._map.commit(txid)

    def get(self) -> Any:
        return self._map.multi_get([self.KEY])[0]

    def update(self, updater: Updater) -> Any:
        """Replaces the value by ``updater(value)``; the new value."""
        return self._map.multi_update([self.KEY], [updater])[0]

    def set(self, value: Any) -> None:
        self._map.multi_put([self.KEY], [value])


class CachedMap:
    """Keeps the rows used last in memory, as a map state writes them through it.

    Its values are right only as long as no other process writes these keys. It
    can tell for transactions: when one begins that does not follow directly on
    the last one committed through this object, with the same epoch and
    incarnation, it forgets everything, since the partition has been elsewhere
    in between. Used without transactions, that is the caller's duty
    (:meth:`clear`).

    Args:
        size: this many rows are kept, those used last.

    Raises:
        ConfigError: size is not a positive whole number.
    """

    def __init__(self, backing: BackingMap, size: int) -> None:
        if type(size) is not int or size < 1:
            raise ConfigError("the size of a cache is impossible", found=repr(size), expected="a whole number from 1")
        self._backing, self._size = backing, size
        # Texts, not objects: a value that a user changes in place must not change here.
        self._rows: OrderedDict[str, str] = OrderedDict()
        self._writer: tuple[int | None, str] | None = None
        self._committed: int | None = None

    @property
    def fenced(self) -> bool:
        return bool(getattr(self._backing, "fenced", False))

    @property
    def bound_to_one_host(self) -> "str | bool":
        """As the map below says."""
        return getattr(self._backing, "bound_to_one_host", False)

    def transaction_begins(self, txid: int | None, epoch: int | None, incarnation: str) -> None:
        """Forgets every row unless the transaction before this one was committed through this object."""
        if self._writer != (epoch, incarnation):
            self._writer, self._committed = (epoch, incarnation), None
        if txid is None or self._committed != txid - 1:
            self.clear()

    def transaction_committed(self, txid: int | None) -> None:
        self._committed = txid

    def multi_get(self, keys: Sequence[Key]) -> list[Any]:
        """One ``multi_get`` for the keys that are not in the cache, none if all are."""
        texts = [key_text(key) for key in keys]
        found = {text: self._rows[text] for text in texts if text in self._rows}
        missing = {text: key for text, key in zip(texts, keys) if text not in found}
        if missing:
            rows = self._backing.multi_get(list(missing.values()))
            _same_length(missing, rows, f"values, from multi_get of {type(self._backing).__name__}")
            found.update((text, dumps(row)) for text, row in zip(missing, rows))
        self._keep(found)
        return [loads(found[text]) for text in texts]

    def multi_put(self, keys: Sequence[Key], values: Sequence[Any], epoch: int | None = None) -> None:
        """Writes through. After an error the keys are forgotten: which were written is not known."""
        rows = {key_text(key): dumps(value) for key, value in zip(keys, values)}
        for text in rows:
            self._rows.pop(text, None)
        self._backing.multi_put(keys, values, epoch=epoch)
        self._keep(rows)

    def items(self) -> Any:
        """Every (key, stored value) of the store itself."""
        return self._backing.items()  # type: ignore[attr-defined]

    def clear(self) -> None:
        """Forgets every row."""
        self._rows.clear()

    def _keep(self, rows: dict[str, str]) -> None:
        self._rows.update(rows)
        for text in rows:
            self._rows.move_to_end(text)
        while len(self._rows) > self._size:
            self._rows.popitem(last=False)


class BufferedMap:
    """Reads through to a map and keeps what is put to itself: for results that are computed before they are decided.

    ``commit`` of a map state over it reaches nothing but :attr:`puts`. Their
    rows may be written later, and again: putting the same rows twice is the
    same as once.
    """

    def __init__(self, backing: BackingMap) -> None:
        self._backing = backing
        self._puts: dict[str, tuple[Key, Any]] = {}

    def transaction_begins(self, txid: int | None, epoch: int | None, incarnation: str) -> None:
        """Tells a cache below; the puts of an earlier try are forgotten."""
        self._puts.clear()
        if isinstance(self._backing, FollowsTransactions):
            self._backing.transaction_begins(txid, epoch, incarnation)

    def transaction_committed(self, txid: int | None) -> None:
        """Nothing was written, so nothing is told."""

    @property
    def puts(self) -> list[tuple[Key, Any]]:
        """(key, stored value) in the order of each key's last put; None = remove the key."""
        return [(key, fresh(value)) for key, value in self._puts.values()]

    def multi_get(self, keys: Sequence[Key]) -> list[Any]:
        """The rows; its own puts win. One ``multi_get`` for the others, if any."""
        texts = [key_text(key) for key in keys]
        missing = {text: key for text, key in zip(texts, keys) if text not in self._puts}
        rows = self._backing.multi_get(list(missing.values())) if missing else []
        _same_length(missing, rows, f"values, from multi_get of {type(self._backing).__name__}")
        found = dict(zip(missing, rows))
        return [fresh(self._puts[text][1]) if text in self._puts else found[text] for text in texts]

    def multi_put(self, keys: Sequence[Key], values: Sequence[Any], epoch: int | None = None) -> None:
        """Notes the puts. The epoch means nothing here: nothing is written."""
        for key, value in zip(keys, values):
            text = key_text(key)
            self._puts.pop(text, None)
            self._puts[text] = (key, fresh(value))


def _same_length(keys: Any, others: Sequence[Any], what: str) -> None:
    if len(keys) != len(others):
        raise ConfigError("a map got lists of different lengths", found=f"{len(keys)} keys, {len(others)} {what}")


def _constant(value: Any) -> Callable[[Any], Any]:
    return lambda _old: value
