"""11: event time in a shop. Visits are sessions, buys join the views before them, and a timer tells of what was left.

    python examples/11_event_time.py

A view is reported twice now and then: its id is remembered for an hour. A visit ends
when its user does nothing for ten minutes. A buy belongs to what the same user viewed in
the half hour before it; a view that no buy follows comes out alone once that time is over. And
who put something aside and did nothing for half an hour is told of by a timer.
"""

import tempfile
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from trident import Count, DeltaAppend, FixedBatchSpout, TridentTopology


def at(minute: int) -> datetime:
    return datetime(2026, 5, 1, 12, tzinfo=timezone.utc) + timedelta(minutes=minute)


class LeftAlone:
    """Gives the time at which a user had done nothing for half an hour, and how many views there were."""

    def on_row(self, context: Any, viewed_at: datetime) -> None:
        seen = context.state or 0
        context.clear()  # its timer too: this row begins the half hour anew
        context.state = seen + 1
        context.set_timer(viewed_at + timedelta(minutes=30))

    def on_time(self, context: Any, time: datetime) -> Iterator[tuple[datetime, int]]:
        yield time, context.state
        context.clear()


views = [
    [("v1", at(1), "ann", "boots"), ("v2", at(2), "bob", "hat")],
    [("v2", at(2), "bob", "hat"), ("v3", at(8), "ann", "coat")],  # v2 is reported again
    [("v4", at(40), "ann", "scarf")],
    [("v5", at(120), "zoe", "hat")],  # time goes on
]
buys = [[(at(12), "ann", "b1")], [], [], [(at(121), "zoe", "b2")]]

topology = TridentTopology("shop-visits")
viewed = (
    topology.new_stream("views", FixedBatchSpout("view string, viewed_at timestamp, user string, item string", views))
    .with_watermark("viewed_at", "2 minutes")
    .drop_duplicates("view", within="1 hour")
)
bought = topology.new_stream("buys", FixedBatchSpout("bought_at timestamp, user string, buy string", buys))
bought = bought.with_watermark("bought_at", "2 minutes")

visits = viewed.session_window("10 minutes", name="open_visits").group_by("user").aggregate(Count(), "views")
visits.partition_persist(DeltaAppend("visits"))

pairs = viewed.join(bought, "user", "left", within=("0 minutes", "30 minutes"))
pairs.project("user", "item", "buy").partition_persist(DeltaAppend("conversions"))

left = viewed.group_by("user").process("viewed_at", LeftAlone(), "since timestamp, views long", state="views long")
left.partition_persist(DeltaAppend("left_alone"))


def clock(time: datetime) -> str:
    return f"{time.astimezone(timezone.utc):%H:%M}"


if __name__ == "__main__":
    warehouse = str(Path(tempfile.mkdtemp(prefix="trident-example-")) / "warehouse")
    query = topology.start(warehouse=warehouse)
    query.process_all_available()
    for row in sorted(query.snapshot("visits").select("window", "user", "views").collect()):
        print(f"{row.user} was here from {clock(row.window.start)} to {clock(row.window.end)}: {row.views} views")
    for row in query.snapshot("conversions").orderBy("user", "item").collect():
        print(f"{row.user} viewed the {row.item}:", f"bought with {row.buy}" if row.buy else "not bought")
    for row in query.snapshot("left_alone").orderBy("since").collect():
        print(f"{row.user} did nothing until {clock(row.since)}, after {row.views} views")
    query.stop()
