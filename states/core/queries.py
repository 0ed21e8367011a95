"""The built-in queries of states (docs/semantics.md 4): for ``stream.state_query``."""

from __future__ import annotations


class _Query:
    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class MapGet(_Query):
    """The value of a key: ``state_query(counts, "word", MapGet(), "count")``.

    The inputs are the state's keys in their order, the outputs its values. A
    key that the state does not have gives nulls, and the row stays.
    """


class SnapshotGet(_Query):
    """The value of a state without keys, on each row: ``state_query(total, SnapshotGet(), "total")``."""


class TupleCollectionGet(_Query):
    """Every entry of a state, for each row: ``state_query(counts, TupleCollectionGet(), "word, count")``.

    The outputs are the state's keys, then its values. A state without entries drops the row. A map of your own
    needs ``items()`` beside ``multi_get``, as SqliteMap and RedisMap have it; a state of a StateFactory, or a
    static one, ``get_tuples()`` (Storm's ITupleCollection), and then the outputs name their types.
    """
