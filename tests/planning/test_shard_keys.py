"""The fields by whose values the late part of a large batch goes to several tasks; None: it is one task's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.streams.stream_helpers import Longest, RowsSpout
from trident import functions as F
from trident.operations.aggregators import Count
from trident.operations.persisting import Upsert
from trident.planning.groups import plan
from trident.states.core.values import MapGet, SnapshotGet
from trident.states.delta.append import DeltaAppend
from trident.states.keyed.delta_map import DeltaMapState
from trident.topology import TridentTopology


@pytest.mark.parametrize(
    "last",
    [
        lambda rows: rows.first_n(1),
        lambda rows: rows.max_by("n"),
        lambda rows: rows.min_by("n", scope="batch"),
        lambda rows: rows.partition_persist(DeltaMapState("last"), None, Upsert("word", sequence_by="n")),
        lambda rows: rows.partition_persist(DeltaMapState("last"), None, Upsert("word", order_by="n")),
    ],
)
def test_a_late_part_in_which_the_later_of_equal_rows_counts_has_the_batchs_order(last: Callable[[Any], Any]) -> None:
    made = TridentTopology("t")
    rows = made.new_stream("rows", RowsSpout("word string, n long"))
    rows = rows.state_query(counted(rows, "word"), "word", MapGet(), "before")
    rows = last(rows)
    if hasattr(rows, "partition_persist"):
        rows.partition_persist(DeltaAppend("out"))
    assert plan(made.graph)[0].lowered.late_order


def reduced(stream: Any, *keys: str) -> Any:
    return stream.group_by(*keys).persistent_aggregate(DeltaMapState("longest"), "word", Longest(), "text")


def counted(stream: Any, *keys: str) -> Any:
    return stream.group_by(*keys).persistent_aggregate(DeltaMapState("counts"), Count(), "n")


def queried(stream: Any, asked: str) -> None:
    stream.state_query(counted(stream, "word"), asked, MapGet(), "before").partition_persist(DeltaAppend("asked"))


def by_another_name(stream: Any) -> None:
    """The field of the key has another name when it is read the second time."""
    counts = counted(stream, "word")
    news = counts.new_values_stream().rename({"word": "w"})
    news.state_query(counts, "w", MapGet(), "before").partition_persist(DeltaAppend("asked"))


def made_again(stream: Any) -> None:
    """The second key has the first one's name, and another value."""
    counts = counted(stream, "word")
    news = counts.new_values_stream().with_column("word", F.upper(F.col("word")))
    news.state_query(counts, "word", MapGet(), "before").partition_persist(DeltaAppend("asked"))


def grouped_again(stream: Any) -> None:
    news = counted(stream, "word").new_values_stream()
    news.group_by("n").aggregate(Count(), "words").partition_persist(DeltaAppend("histogram"))


def whole(stream: Any) -> None:
    total = stream.persistent_aggregate(DeltaMapState("total"), Count(), "n")
    stream.state_query(total, None, SnapshotGet(), "n").partition_persist(DeltaAppend("asked"))


def timed(stream: Any) -> Any:
    return stream.with_watermark("at", "1 second")


def windowed(stream: Any, *keys: str) -> None:
    windows = timed(stream).tumbling_window("1 minute")
    windows.group_by(*keys).aggregate(Count(), "n").partition_persist(DeltaAppend("out"))


def first_seen(stream: Any) -> Any:
    return timed(stream).drop_duplicates("word", within="1 hour").partition_persist(DeltaAppend("first"))


def first_seen_and_windowed(stream: Any) -> None:
    """The window's watermark is that of all rows which go on, and not of one task's."""
    first = timed(stream).drop_duplicates("word", within="1 hour")
    windows = first.tumbling_window("1 minute")
    windows.group_by("word").aggregate(Count(), "n").partition_persist(DeltaAppend("out"))


def reduced_and_first_seen(stream: Any) -> None:
    """The reducer's rows would be staged by each task."""
    news = reduced(stream, "word", "at").new_values_stream()
    timed(news).drop_duplicates("word", within="1 hour").partition_persist(DeltaAppend("first"))


def of_users_and_first_seen(stream: Any) -> None:
    """A function of the user's may give each task another key."""
    asked = stream.state_query(counted(stream, "word"), "word", MapGet(), "before")
    timed(asked.each("user", repr, "shown string")).drop_duplicates("shown", within="1 hour").partition_persist(
        DeltaAppend("f")
    )


def windowed_and_counted(stream: Any) -> None:
    """The fired windows of several keys are counted together."""
    windows = timed(stream).tumbling_window("1 minute")
    fired = windows.group_by("word").aggregate(Count(), "n")
    fired.group_by("n").aggregate(Count(), "words").partition_persist(DeltaAppend("out"))


@pytest.mark.parametrize(
    ("made", "keys"),
    [
        (lambda stream: reduced(stream, "word"), {"boundary0": ("word",)}),
        (lambda stream: reduced(stream, "word", "user"), {"boundary0": ("word", "user")}),
        (
            lambda stream: counted(stream, "word").new_values_stream().partition_persist(DeltaAppend("news")),
            {"counts": ("word",)},
        ),
        (lambda stream: queried(stream, "word"), {"boundary0": ("word",)}),
        (lambda stream: (reduced(stream, "word"), queried(stream, "word")), {"boundary0": ("word",)}),
        (by_another_name, {"counts": ("word",)}),
        # Rows of one key of the reducer may be of several that are looked up.
        (lambda stream: (reduced(stream, "word"), queried(stream, "user")), None),
        (made_again, None),
        (grouped_again, None),
        (whole, None),
        (lambda stream: windowed(stream, "word"), {"boundary0": None}),
        (lambda stream: windowed(stream), None),
        (first_seen, {"boundary0": None}),
        (first_seen_and_windowed, None),
        (reduced_and_first_seen, None),
        (of_users_and_first_seen, None),
        (windowed_and_counted, None),
        # Of rows that are staged twice each part is cut for itself.
        (lambda stream: (first_seen(stream), queried(stream, "word")), {"boundary0": ("word",), "boundary1": None}),
    ],
)
def test_what_a_late_part_is_cut_by(made: Callable[[Any], Any], keys: dict[str, tuple[str, ...] | None] | None) -> None:
    topology = TridentTopology("cut")
    made(topology.new_stream("rows", RowsSpout("word string, user string, at timestamp")))
    (group,) = plan(topology.graph)
    assert group.is_late and group.shard_keys == keys
