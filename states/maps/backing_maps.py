"""Backing maps without a store of their own: one in memory for tests, one with fixed contents (docs/semantics.md 5)."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from trident.coordinators.errors import ConfigError, StaleEpoch, TopologyError, described
from trident.states.core.addresses import SHARED_STORE
from trident.states.core.names import check_name
from trident.states.core.values import dumps, fresh, loads
from trident.states.maps.map_states import Key, key_text


def stale_epoch(where: str, epoch: int, newest: int) -> StaleEpoch:
    """The error of a fenced map that refuses a write."""
    return StaleEpoch(
        f"{where} refused a write of coordinator epoch {epoch}",
        found=f"a coordinator of epoch {newest} has written",
        expected=f"epoch {newest} or later",
        action="nothing was written; this coordinator was replaced and must stop. If it was not (ZooKeeper was "
        "wiped or set back), the map is newer than ZooKeeper: `trident reset NAME`, then clear the map",
    )


class _Contents:
    """One map of this process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.rows: dict[str, str] = {}
        self.epoch = 0


_contents: dict[str, _Contents] = {}
_making = threading.Lock()


@dataclass(frozen=True)
class MemoryBackingMap:
    """A fenced backing map in this process's memory, for tests: two of one name are one map.

    It survives a stop and a start of a topology in one process, and is gone
    with the process. It travels by name: in another process, a Spark worker
    for one, it is another map.

    Args:
        name: of the map in this process.
    """

    name: str
    fenced: ClassVar[bool] = True
    bound_to_one_host: ClassVar[str] = SHARED_STORE

    def __post_init__(self) -> None:
        check_name("state", self.name)

    def multi_get(self, keys: Sequence[Key]) -> list[Any]:
        contents = self._of_this_process()
        with contents.lock:
            texts = [contents.rows.get(key_text(key)) for key in keys]
        return [None if text is None else loads(text) for text in texts]

    def multi_put(self, keys: Sequence[Key], values: Sequence[Any], epoch: int | None = None) -> None:
        """All keys in one atomic step with the fence; StaleEpoch: nothing was written."""
        # Texts, as in every other store: the map keeps a copy, and refuses what no other store could keep.
        rows = [(key_text(key), None if value is None else dumps(value)) for key, value in zip(keys, values)]
        contents = self._of_this_process()
        with contents.lock:
            if epoch is not None:
                if epoch < contents.epoch:
                    raise stale_epoch(f"the map {self.name}", epoch, contents.epoch)
                contents.epoch = epoch
            for key, text in rows:
                if text is None:
                    contents.rows.pop(key, None)
                else:
                    contents.rows[key] = text

    def items(self) -> Iterator[tuple[Key, Any]]:
        """Every (key, stored value) at this moment."""
        contents = self._of_this_process()
        with contents.lock:
            rows = list(contents.rows.items())
        return ((loads(key), loads(value)) for key, value in rows)

    def clear(self) -> None:
        """Removes every row and forgets the epoch."""
        contents = self._of_this_process()
        with contents.lock:
            contents.rows.clear()
            contents.epoch = 0

    def _of_this_process(self) -> _Contents:
        with _making:
            return _contents.setdefault(self.name, _Contents())


class StaticMap:
    """A state that is read and never changes: for ``new_static_state`` and ``state_query``.

    Args:
        values: key tuples -> plain values. Copied: later changes are not seen.

    Raises:
        ConfigError: a key or value is not a plain one, or this is no mapping.
    """

    def __init__(self, values: Mapping[Key, Any]) -> None:
        if not isinstance(values, Mapping):
            raise ConfigError(
                "a StaticMap needs its values by key", found=described(values), expected="{(key, …): value, …}"
            )
        self._values = {key_text(key): loads(dumps(value)) for key, value in values.items()}

    def begin_commit(self, txid: int | None) -> None:
        """Nothing: it has no transactions."""

    def commit(self, txid: int | None) -> None:
        """Nothing: it has no transactions."""

    def get_tuples(self) -> list[tuple[Any, ...]]:
        """Every (key fields…, value), for TupleCollectionGet."""
        return [(*loads(key), fresh(value)) for key, value in self._values.items()]

    def multi_get(self, keys: Sequence[Key]) -> list[Any]:
        """The values in the order of the keys; None where absent."""
        return [fresh(self._values.get(key_text(key))) for key in keys]

    def multi_update(self, keys: Sequence[Key], updaters: Sequence[Any]) -> list[Any]:
        raise _is_static()

    def multi_put(self, keys: Sequence[Key], values: Sequence[Any]) -> None:
        raise _is_static()


def _is_static() -> TopologyError:
    return TopologyError("a static state cannot be changed", action="use a state with a backing map")
