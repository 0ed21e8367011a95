"""What keeps the grouping of a stream and what ends it: as in Storm's GroupedStream (docs/from-storm.md)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.streams.stream_helpers import stream_of, topology_of
from trident import Count, FilterNull, GroupedStream, MapGet, StaticMap, Stream, Sum

KEEP: dict[str, Callable[[GroupedStream], Any]] = {
    "each": lambda s: s.each("n", lambda n: n, "m long"),
    "filter": lambda s: s.filter("n", FilterNull()),
    "name": lambda s: s.name("here"),
    "partition_aggregate": lambda s: s.partition_aggregate("n", Sum(), "part"),
    "peek": lambda s: s.peek("n", print),
    "project": lambda s: s.project("k"),
    "parallelism_hint": lambda s: s.parallelism_hint(2),
}
END: dict[str, Callable[[GroupedStream], Any]] = {
    "aggregate": lambda s: s.aggregate("n", Sum(), "sum"),
    "chained_agg": lambda s: s.chained_agg().aggregate(Count(), "rows").chain_end(),
    "state_query": lambda s: s.state_query(
        topology_of(s.to_stream()).new_static_state(StaticMap({("a",): 1})), "k", MapGet(), "v long"
    ),
    "to_stream": lambda s: s.to_stream(),
}


@pytest.mark.parametrize("operation", KEEP)
def test_the_grouping_stays(operation: str) -> None:
    made = KEEP[operation](stream_of("k string, n long").group_by("k"))
    assert isinstance(made, GroupedStream) and made.keys == ("k",)


@pytest.mark.parametrize("operation", END)
def test_the_grouping_ends(operation: str) -> None:
    assert type(END[operation](stream_of("k string, n long").group_by("k"))) is Stream


def test_an_aggregate_behind_a_state_query_is_over_all_rows() -> None:
    grouped = stream_of("k string, n long").group_by("k")
    made = END["state_query"](grouped).each("v", FilterNull()).aggregate("v", Sum(), "sum")
    assert made.fields == ("sum",)
