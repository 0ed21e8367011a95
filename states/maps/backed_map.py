"""The setting objects of a map state over a backing map, as a user writes them in a topology (docs/semantics.md 5).

::

    counts = transactional("counts", SqliteMap("counts.db", "counts"))
    stream.group_by("word").persistent_aggregate(counts, Count(), "count")
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Union

from pyspark import cloudpickle

from trident.coordinators.errors import ConfigError, TopologyError
from trident.states.core.addresses import check_hosts
from trident.states.core.binding import DecidedRows, Guarantee, GuaranteeRow, StateBinding, TablelessKind
from trident.states.core.names import check_flag, check_name
from trident.states.core.typed_values import Row
from trident.states.core.values import Semantics, visible
from trident.states.maps.map_states import BackingMap, CachedMap, NonTransactionalMap, OpaqueMap, TransactionalMap

BackingFactory = Callable[[Mapping[str, Any], int, int], BackingMap]
Backing = Union[BackingMap, BackingFactory]

_MAPS: dict[Semantics, type[NonTransactionalMap | TransactionalMap | OpaqueMap]] = {
    Semantics.NON_TRANSACTIONAL: NonTransactionalMap,
    Semantics.TRANSACTIONAL: TransactionalMap,
    Semantics.OPAQUE: OpaqueMap,
}


def non_transactional(
    name: str, backing: Backing, *, cache_size: int = 0, partitions: int = 1, skip_replays: bool = False
) -> BackedMapState:
    """A map whose values are stored as they are: at least once, whatever the spout.

    Args:
        skip_replays: at most once instead: a transaction whose updates may have
            been written is not written again.

    The other arguments, and errors: :class:`BackedMapState`.
    """
    return BackedMapState(name, Semantics.NON_TRANSACTIONAL, backing, cache_size, partitions, skip_replays)


def transactional(name: str, backing: Backing, *, cache_size: int = 0, partitions: int = 1) -> BackedMapState:
    """A map that stores the txid beside each value and skips one that it has: see the table in docs/guarantees.md.

    Arguments and errors: :class:`BackedMapState`.
    """
    return BackedMapState(name, Semantics.TRANSACTIONAL, backing, cache_size, partitions)


def opaque(name: str, backing: Backing, *, cache_size: int = 0, partitions: int = 1) -> BackedMapState:
    """A map that stores the txid and the value before it: exactly once also when a replay brings other rows.

    Arguments and errors: :class:`BackedMapState`.
    """
    return BackedMapState(name, Semantics.OPAQUE, backing, cache_size, partitions)


@dataclass(frozen=True)
class BackedMapState:
    """A map state over a user's store.

    Made by :func:`non_transactional`, :func:`transactional` and :func:`opaque`.

    Attributes:
        name: the state's name; what ``snapshot`` takes.
        semantics: what is stored beside each value.
        backing: a :class:`~trident.states.maps.map_states.BackingMap`, or a function
            ``(config, partition_index, num_partitions)`` that makes one; pickled
            to the executors either way. A function says with an attribute
            ``fenced = True`` that what it makes is fenced.
        cache_size: this many rows are kept in memory per partition; 0: none.
        partitions: this many tasks update the state side by side, each its own
            keys. May be changed between runs if all of them use one store.
        skip_replays: see :func:`non_transactional`.

    Raises:
        TopologyError: the name cannot be used; the backing is no backing map,
            or cannot be pickled.
        ConfigError: a number is impossible.
    """

    name: str
    semantics: Semantics
    backing: Any
    cache_size: int = 0
    partitions: int = 1
    skip_replays: bool = False

    def __post_init__(self) -> None:
        check_name("state", self.name)
        _check_number(self, "cache_size", 0)
        _check_number(self, "partitions", 1)
        check_flag(self.skip_replays, f"skip_replays of state {self.name}")
        if not isinstance(self.semantics, Semantics):
            raise ConfigError(f"the semantics of state {self.name} are unknown", found=repr(self.semantics))
        if self.skip_replays and self.semantics is not Semantics.NON_TRANSACTIONAL:
            raise ConfigError(f"skip_replays of state {self.name}", expected="a non-transactional state")
        self._check_backing()
        self._check_pickles()

    @property
    def fenced(self) -> bool:
        """Tells whether the store refuses an old coordinator that wakes up; a function says so of itself."""
        return bool(getattr(self.backing, "fenced", False))

    def make_backing(self, config: Mapping[str, Any], partition_index: int, num_partitions: int) -> BackingMap:
        """The store of one partition, with its cache if it has one; on an executor.

        Raises:
            TopologyError: the function gave something else than a backing map.
        """
        backing = self.backing
        if not _is_map(backing):
            backing = backing(config, partition_index, num_partitions)
            if not _is_map(backing) or isinstance(backing, type):
                raise self._not_a_map(backing, "what its function returned")
            self._check_fence(backing)
            # Of what a function makes the driver knew nothing.
            made = f"the map that the function of state {self.name!r} made"
            check_hosts(backing, made, config.get("spark_master", "local"))
        return CachedMap(backing, self.cache_size) if self.cache_size else backing

    def map_over(
        self, backing: BackingMap, *, epoch: int | None = None, incarnation: str = ""
    ) -> NonTransactionalMap | TransactionalMap | OpaqueMap:
        """The map of these semantics over what :meth:`make_backing` gave, or a BufferedMap over that."""
        return _MAPS[self.semantics](backing, epoch=epoch, incarnation=incarnation)

    def _check_backing(self) -> None:
        if isinstance(self.backing, type):
            raise TopologyError(
                f"the backing map of state {self.name} is a class",
                found=self.backing.__qualname__,
                expected="an instance of it, or a function (config, partition_index, num_partitions) that makes one",
            )
        if not _is_map(self.backing):
            if not callable(self.backing):
                raise self._not_a_map(self.backing, "its backing")
            self._check_call(self.backing, "(config, partition_index, num_partitions)", None, None, None)
            return
        self._check_call(self.backing.multi_get, "multi_get(keys)", None)
        self._check_call(self.backing.multi_put, "multi_put(keys, values, epoch=None)", None, None, epoch=None)

    def _check_call(self, function: Any, shape: str, *arguments: None, **named: None) -> None:
        """That it can be called so, as far as that can be seen."""
        try:
            inspect.signature(function).bind(*arguments, **named)
        except ValueError:
            return  # written in C
        except TypeError as problem:
            raise TopologyError(
                f"the backing of state {self.name} cannot be called as it must be", found=str(problem), expected=shape
            ) from None

    def _check_fence(self, made: Any) -> None:
        if self.fenced and not getattr(made, "fenced", False):
            raise TopologyError(
                f"the function of state {self.name} says fenced = True, but what it makes is not",
                found=type(made).__qualname__,
                expected="a FencedBackingMap",
            )

    def _not_a_map(self, found: Any, what: str) -> TopologyError:
        return TopologyError(
            f"state {self.name} has no backing map: {what} is none",
            found=type(found).__qualname__,
            expected="an object with multi_get(keys) and multi_put(keys, values, epoch=None)",
        )

    def _check_pickles(self) -> None:
        try:
            cloudpickle.dumps(self.backing)
        except Exception as problem:
            raise TopologyError(
                f"the backing map of state {self.name} cannot be sent to the executors",
                found=f"{type(problem).__name__}: {problem}",
                expected="an object that can be pickled: without open connections, locks or files",
                action="open them at the first use, or give a function that makes the map on the executor",
            ) from problem


def _is_map(backing: Any) -> bool:
    return callable(getattr(backing, "multi_get", None)) and callable(getattr(backing, "multi_put", None))


def _check_number(state: BackedMapState, setting: str, least: int) -> None:
    value = getattr(state, setting)
    if type(value) is not int or value < least:
        raise ConfigError(
            f"{setting} of state {state.name} is impossible", found=repr(value), expected=f"a whole number from {least}"
        )


# The state kinds whose values the user's code keeps: maps over a backing map, and states of a StateFactory.


_UNFENCED = GuaranteeRow("UNFENCED", "transactional(map), opaque(map) over an unfenced map", Guarantee.UNLESS_WOKEN)
_TRANSACTIONAL = GuaranteeRow("TRANSACTIONAL", "transactional(map), fenced")
_OPAQUE = GuaranteeRow("OPAQUE", "opaque(map), fenced")
_USER = GuaranteeRow("USER", "a StateFactory of your own", Guarantee.AT_LEAST_ONCE)
_NON_TRANSACTIONAL = GuaranteeRow("NON_TRANSACTIONAL", "non_transactional(map)", Guarantee.AT_LEAST_ONCE)
_SKIPPING = GuaranteeRow(
    "NON_TRANSACTIONAL_SKIPPING", "non_transactional(map, skip_replays=True)", Guarantee.AT_MOST_ONCE
)


class OwnKind(TablelessKind):
    """States that the warehouse has nothing of: decided rows are given to them on the executors."""

    users_code = True

    def publish(self, binding: StateBinding, rows: DecidedRows) -> None:
        rows.user_code.publish(binding, rows)

    def rows_now(self, binding: StateBinding, incarnation: str) -> list[Row]:
        items = getattr(getattr(binding.state, "backing", None), "items", None)
        if not callable(items) or hasattr(binding.aggregator, "update_state"):
            raise TopologyError(
                f"state {binding.name} cannot be shown",
                found=repr(binding.state),
                expected="a map whose backing map has items(), under persistent_aggregate or Upsert",
                action="ask the store itself",
            )
        semantics = binding.state.semantics
        rows = [(key, visible(semantics, stored, incarnation)) for key, stored in items()]
        several = len(binding.value_fields) > 1
        # None: the key was removed, and the row is kept for a replay.
        return [(*key, *(value if several else (value,))) for key, value in rows if value is not None]


class MapKind(OwnKind):
    """Maps whose new values are found before the decision: transactional(…) and opaque(…)."""

    name = "map"
    example = "opaque(name, map), transactional(name, map)"
    values_by_key = True
    guarantee_rows = (_UNFENCED, _TRANSACTIONAL, _OPAQUE)

    def holds(self, state: object) -> bool:
        return isinstance(state, BackedMapState) and state.semantics is not Semantics.NON_TRANSACTIONAL

    def guarantee_row(self, state: Any) -> GuaranteeRow:
        if not state.fenced:
            return _UNFENCED
        return _OPAQUE if state.semantics is Semantics.OPAQUE else _TRANSACTIONAL


class UserKind(OwnKind):
    """States that change while they are published: those of a StateFactory, and non_transactional(…)."""

    name = "user"
    example = "a StateFactory"
    updated_when_published = True
    why_no_new_values = "a state whose updates are made while it is published, after the decision"
    guarantee_rows = (_USER, _NON_TRANSACTIONAL, _SKIPPING)

    def holds(self, state: object) -> bool:
        return isinstance(state, BackedMapState) or callable(getattr(state, "make_state", None))

    def guarantee_row(self, state: Any) -> GuaranteeRow:
        if not isinstance(state, BackedMapState):
            return _USER
        return _SKIPPING if state.skip_replays else _NON_TRANSACTIONAL

    def check_has_keys(self, state: Any, what: str) -> None:
        if not isinstance(state, BackedMapState):
            raise TopologyError(
                f"{what} needs a state with one value per key",
                found=repr(state),
                expected="DeltaMapState(name), or opaque(name, map) over a map of your own",
                action="use partition_persist with an updater to write a state of your own",
            )


MAP = MapKind()
USER = UserKind()
