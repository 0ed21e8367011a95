"""08: windows. Every five minutes the clicks per page of the last ten, by the time of the click; and by threes.

    python examples/08_windows.py

Clicks come late and out of order. A window fires once the watermark, which is
two minutes behind the latest click, has passed its end. A click that comes later
is late: it is counted, and here it is kept in a table of its own. Rows of open
windows are part of the transaction: start it again in the middle, and each
window still fires once, with exactly its clicks.
"""

import tempfile
from datetime import datetime, timezone
from pathlib import Path

from trident import Count, DeltaAppend, FixedBatchSpout, TridentTopology


def at(minute: int) -> datetime:
    return datetime(2026, 5, 1, 12, minute, tzinfo=timezone.utc)


batches = [
    [(at(1), "home"), (at(4), "home"), (at(3), "cart")],
    [(at(9), "cart"), (at(6), "home")],  # 12:06 came after 12:09: in time
    [(at(18), "home")],  # the watermark is 12:16 now
    [(at(2), "home"), (at(29), "home")],  # 12:02 is late
]

topology = TridentTopology("clicks")
clicks = topology.new_stream("clicks", FixedBatchSpout("at timestamp, page string", batches))

windows = clicks.with_watermark("at", "2 minutes").sliding_window("10 minutes", "5 minutes", name="open_clicks")
windows.group_by("page").aggregate(Count(), "clicks").partition_persist(DeltaAppend("per_page"))
windows.late_rows().partition_persist(DeltaAppend("late"))

clicks.tumbling_window(3, name="last_three").rows().partition_persist(DeltaAppend("by_three"))

if __name__ == "__main__":
    query = topology.start(warehouse=str(Path(tempfile.mkdtemp(prefix="trident-example-")) / "warehouse"))
    query.process_all_available()
    for row in sorted(query.snapshot("per_page").collect()):
        start, end = (time.astimezone(timezone.utc) for time in row.window)
        print(f"{start:%H:%M} to {end:%H:%M}  {row.page}  {row.clicks}")
    print("late:", [f"{row.at.astimezone(timezone.utc):%H:%M} {row.page}" for row in query.snapshot("late").collect()])
    for row in sorted(query.snapshot("by_three").select("window", "page").collect()):
        print(f"clicks {row.window.start} to {row.window.end - 1}: {row.page}")
    query.stop()
