"""The contracts between a user's own state and the framework (docs/semantics.md 5).

A user-written state is updated *after* its batch has been decided, from rows
that were made durable before (docs/semantics.md 9.5): the same txid always comes
with the same rows, however often and in whichever process it is tried. A state
must still notice by itself that it has applied a txid, since a
crash may come between its write and the moment the coordinator hears of it;
:mod:`trident.states.maps.map_states` does that over any :class:`BackingMap`.

Who calls what, and where::

    driver      pickles StateFactory, StateUpdater, QueryFunction
    executor    state = factory.make_state(config, partition_index, num_partitions)
                updater.prepare(config, partition_index, num_partitions)
                state.begin_commit(txid)
                updater.update_state(state, tuples, collector)
                state.commit(txid)
                updater.cleanup()

One partition's calls come from one thread at a time, its transactions in the
order of txids. A partition may move to another process between any two
transactions; nothing may be kept in memory that the store does not have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Protocol, runtime_checkable

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
    state, a spout and a bolt (:mod:`trident.states.core.host_bound`).
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
