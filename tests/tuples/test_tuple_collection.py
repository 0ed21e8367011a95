"""TupleCollectionGet of states of one's own: every entry for each row, as of the transaction before."""

from __future__ import annotations

import itertools
from typing import Any

import pyarrow as pa
import pytest

from tests.streams.stream_helpers import ATTEMPT, stream_of, topology_of
from trident import DeltaAppend, StaticMap, Stream, Sum, TupleCollectionGet, opaque, transactional
from trident.coordinators.errors import ConfigError, OutputTypeError, TopologyError
from trident.planning.groups import plan
from trident.planning.operation import PyOp
from trident.states.maps.map_states import CachedMap, OpaqueMap, TransactionalMap
from trident.states.publishing.user_tasks import BatchInfo
from trident.testing import MemoryBackingMap
from trident.workers.chain import Frame, Meter
from trident.workers.states import MapAsOf, NewerThanRequested, QueryRows

numbers = itertools.count()


def asked(stream: Stream, state: Any, outputs: str, txid: int = 2) -> list[tuple]:
    """What two rows get."""
    stream.state_query(state, TupleCollectionGet(), outputs).partition_persist(DeltaAppend("out"))
    lowered = plan(stream._graph)[0].lowered
    segments = (*lowered.segments, *lowered.late_segments)
    ops = [op for segment in segments for op in segment.ops if isinstance(op, PyOp)]
    (step,) = [op.step for op in ops if isinstance(op.step, QueryRows)]
    names = [*step.keep, *([step.place] if step.place else [])]
    rows = Frame({name: pa.array([0, 0] if name == step.place else ["r", "s"]) for name in {*names, "k"}}, 2, Meter())
    info = BatchInfo(type(ATTEMPT)(txid, 0), "life", 1)
    (made,) = step.for_batch(info).run(iter([rows]))
    return sorted(zip(*(made.values(name) for name in step.outputs)))


def written(kind: type, backing: Any, txid: int, **values: Any) -> None:
    made = kind(backing, epoch=1, incarnation="life")
    made.begin_commit(txid)
    made.multi_put([(key,) for key in values], list(values.values()))
    made.commit(txid)


@pytest.mark.parametrize("cache_size", [0, 10])
def test_a_map_of_ones_own_gives_all_that_it_held_before_this_transaction(cache_size: int) -> None:
    backing = MemoryBackingMap(f"collection{next(numbers)}")
    written(OpaqueMap, backing, 1, a=1, b=2, gone=3)
    written(OpaqueMap, backing, 2, a=10, new=20)  # an earlier try of the transaction that asks
    stream = stream_of("k string, n long")
    state = stream.group_by("k").persistent_aggregate(opaque("s", backing, cache_size=cache_size), "n", Sum(), "total")
    assert asked(stream, state, "key, total") == [("a", 1), ("a", 1), ("b", 2), ("b", 2), ("gone", 3), ("gone", 3)]


def test_a_request_sees_the_keys_of_its_transaction() -> None:
    backing = MemoryBackingMap(f"collection{next(numbers)}")
    written(OpaqueMap, backing, 1, a=1)
    written(OpaqueMap, backing, 2, a=2, b=1)
    as_of = MapAsOf(OpaqueMap(backing, incarnation="life"), 1)
    assert dict(zip(as_of.keys(), as_of.multi_get(as_of.keys()))) == {("a",): 1, ("b",): None}
    once = MemoryBackingMap(f"collection{next(numbers)}")
    written(TransactionalMap, once, 2, a=1)
    newer = MapAsOf(TransactionalMap(once, incarnation="life"), 1)
    with pytest.raises(NewerThanRequested):
        newer.multi_get(newer.keys())


class Entries:
    """A state that is an ITupleCollection in Storm."""

    def get_tuples(self) -> Any:
        yield "a", 1
        yield "b", 2


def test_a_static_state_gives_its_tuples() -> None:
    stream = stream_of("k string")
    state = topology_of(stream).new_static_state(Entries())
    assert asked(stream, state, "key string, v long") == [("a", 1), ("a", 1), ("b", 2), ("b", 2)]
    stream = stream_of("k string")
    state = topology_of(stream).new_static_state(StaticMap({("x", 1): 2.5}))
    assert asked(stream, state, "key string, n long, v double") == [("x", 1, 2.5)] * 2


class Unlisted:
    def multi_get(self, keys: Any) -> Any:
        return [None] * len(keys)

    def multi_put(self, keys: Any, values: Any, epoch: Any = None) -> None: ...


def test_what_cannot_be_listed_is_refused_when_the_topology_is_built() -> None:
    stream = stream_of("k string, n long")
    grouped = stream.group_by("k")
    unlisted = grouped.persistent_aggregate(transactional("u", Unlisted()), "n", Sum(), "total")
    with pytest.raises(TopologyError, match="without items"):
        stream.state_query(unlisted, TupleCollectionGet(), "key, total")
    spread = grouped.persistent_aggregate(opaque("p", MemoryBackingMap("spread"), partitions=2), "n", Sum(), "total")
    with pytest.raises(TopologyError, match="several partitions"):
        stream.state_query(spread, TupleCollectionGet(), "key, total")
    static = topology_of(stream).new_static_state(Entries())
    with pytest.raises(TopologyError, match="takes no inputs"):
        stream.state_query(static, "k", TupleCollectionGet(), "key string, v long")
    with pytest.raises(OutputTypeError, match="type of output 'v'"):
        stream.state_query(static, TupleCollectionGet(), "key string, v")
    with pytest.raises(ConfigError, match="without items"):
        OpaqueMap(Unlisted()).keys()
    assert list(CachedMap(MemoryBackingMap("c"), 1).items()) == []
