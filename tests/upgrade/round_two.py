"""Topologies with what round-one does not have: windows, timers, sequences, outside states, a fork, a migrated job.

    python tests/upgrade/round_two.py FOLDER feed FROM TO
    python tests/upgrade/round_two.py FOLDER old
    python tests/upgrade/round_two.py FOLDER run NAME…

``old`` is the job of Structured Streaming that topology ``moved`` takes over. Only public names are used, so that the
same file runs with any version. Everything lies in FOLDER, relative to it: a copy elsewhere is the same topology.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from trident import (
    Count,
    DeltaAppend,
    DeltaMapState,
    FileSpout,
    HttpState,
    KafkaState,
    MapGet,
    Sum,
    TridentTopology,
    Upsert,
    configure_spark,
)
from trident import functions as F

# What names files by their absolute paths finds them in every copy of the folder.
HERE = "/proc/self/cwd"
BEGIN = datetime(2026, 5, 1, 12, tzinfo=timezone.utc)
OF_A_FILE = 12
SCHEMA = "id long, at timestamp, user string, n long, item long, name string, lsn long, gone boolean"
REFUSED = 5  # of the mails those whose id is 5, 15, 25…
APP = "old-job"


def event(number: int) -> dict[str, Any]:
    """Of one user seven after one another, 20 seconds apart; the changes of an item come out of order."""
    return {
        "id": number,
        "at": BEGIN + timedelta(seconds=20 * number),
        "user": ("ann", "bob", "cid")[number // 7 % 3],
        "n": number * 5 % 11,
        "item": number % 7,
        "name": f"name {number}",
        "lsn": number * 370 % 1009,
        "gone": number % 4 == 0,
    }


def line(number: int) -> str:
    """The line of the old job's input."""
    return " ".join(("oak", "pine", "yew", "rowan")[number * step % 4] for step in range(1, 4))


class Greatest:
    """A combiner in Python: the greatest number as text."""

    def init(self, n: int) -> str:
        return f"{n:03}"

    def combine(self, a: str, b: str) -> str:
        return max(a, b)

    def zero(self) -> str:
        return ""


class Squares:
    """A reducer: the sum of the squares."""

    def init(self) -> int:
        return 0

    def reduce(self, curr: int, n: int) -> int:
        return curr + n * n


class Ticks:
    """Counts the rows of a key, and gives 0 ninety seconds after each."""

    def on_row(self, context: Any, at: datetime) -> tuple[datetime, int]:
        context.state = (context.state or 0) + 1
        context.set_timer(at + timedelta(seconds=90))
        return at, context.state

    def on_time(self, context: Any, time: datetime) -> Iterator[tuple[datetime, int]]:
        yield time, 0


def events() -> FileSpout:
    return FileSpout(f"{HERE}/events/*.json", "json", SCHEMA, min_rows=OF_A_FILE, max_rows=OF_A_FILE)


def kept(name: str = "kept") -> TridentTopology:
    """All that is in Delta tables, so that it can be forked."""
    made = TridentTopology(name)
    stream = made.new_stream("events", events())
    by_user, by_item = stream.group_by("user"), stream.group_by("item")
    counts = by_user.persistent_aggregate(DeltaMapState("counts", merge_every_txids=2), Count(), "count")
    stream.state_query(counts, "user", MapGet(), "before").project("id", "before").partition_persist(
        DeltaAppend("asked", txid_column="_txid")
    )
    by_item.persistent_aggregate(DeltaMapState("greatest"), "n", Greatest(), "greatest string")
    squares = by_user.persistent_aggregate(DeltaMapState("squares"), "n", Squares(), "squares long")
    squares.new_values_stream().partition_persist(DeltaAppend("changes"))
    stream.persistent_aggregate(DeltaMapState("total"), "n", Sum(), "total")
    upsert = Upsert("item", delete_when="gone", sequence_by="lsn", deleted_retention_txids=1000)
    stream.partition_persist(DeltaMapState("items"), "item, name, lsn, gone", upsert)
    history = Upsert("item", delete_when="gone", sequence_by="lsn", history=True)
    stream.partition_persist(DeltaMapState("periods"), "item, name, lsn, gone", history)

    timed = stream.project("id", "at", "user", "n").with_watermark("at", "70 seconds")
    sliding = timed.sliding_window("4 minutes", "2 minutes", name="open_parts").group_by("user")
    sliding.aggregate("n", Sum(), "total").partition_persist(DeltaAppend("by_window"))
    own = timed.sliding_window("4 minutes", "2 minutes", name="open_own_parts").group_by("user")
    own.aggregate("n", Greatest(), "greatest string").partition_persist(DeltaAppend("own_by_window"))
    timed.project("id", "at").tumbling_window("3 minutes", name="open_rows").rows().partition_persist(
        DeltaAppend("rows_by_window")
    )
    timed.project("id").tumbling_window(10, name="open_ten").aggregate(Count(), "count").partition_persist(
        DeltaAppend("by_ten")
    )
    sessions = timed.session_window("2 minutes", name="open_visits").group_by("user")
    sessions.aggregate(Count(), "count").partition_persist(DeltaAppend("visits"))
    firsts = timed.with_column("slot", F.col("id") % 5).drop_duplicates("slot", within="5 minutes", name="slots")
    firsts.project("id").partition_persist(DeltaAppend("firsts"))
    ticks = timed.group_by("user").process("at", Ticks(), "at timestamp, seen long", state="seen long", name="ticking")
    ticks.partition_persist(DeltaAppend("ticks"))
    odd = stream.where("n % 2 = 1").select("user", F.col("at").alias("odd_at"), F.col("id").alias("odd_id"))
    even = timed.where("n % 2 = 0").project("user", "at", "id")
    pairs = even.join(
        odd.with_watermark("odd_at", "70 seconds"), "user", "left", within=("0 seconds", "1 minute"), name="waiting"
    )
    pairs.project("id", "odd_id").partition_persist(DeltaAppend("pairs"))
    return made


def kept_fork() -> TridentTopology:
    return kept("kept_fork")


def sent() -> TridentTopology:
    """A table, and a mail for each of its rows."""
    made = TridentTopology("sent")
    stream = made.new_stream("events", events()).project("id", "user")
    stream.partition_persist(DeltaAppend("sent_events"))
    server = ThreadingHTTPServer(("127.0.0.1", 0), Mails)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/mails"
    stream.partition_persist(HttpState(url, "mails", honours_keys=True, dead_letters=True, concurrency=1))
    return made


class Mails(BaseHTTPRequestHandler):
    """Writes key and body of each request into mails.jsonl; ends the process at the one that DIE_AT_MAIL says."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        mail = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with open("mails.jsonl", "a") as file:
            file.write(json.dumps({"key": self.headers["Idempotency-Key"], **mail}) + "\n")
        if mail["id"] == int(os.environ.get("DIE_AT_MAIL", "-1")):
            os.kill(os.getpid(), signal.SIGKILL)
        self.send_response(422 if mail["id"] % 10 == REFUSED else 200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args: object) -> None: ...


def topics() -> TridentTopology:
    """A table, and a message for each of its rows, in the topic "mirrored" of the brokers that BROKERS says."""
    made = TridentTopology("topics")
    stream = made.new_stream("events", events()).project("id", "item")
    stream.partition_persist(DeltaAppend("topic_events"))
    stream.partition_persist(KafkaState(os.environ["BROKERS"], "mirrored", key="item"))
    return made


def moved() -> TridentTopology:
    """Goes on with the table of the old job."""
    made = TridentTopology("moved")
    words = made.new_stream("lines", FileSpout(f"{HERE}/lines/*.txt")).flat_map(str.split, "word string")
    words.group_by("word").persistent_aggregate(DeltaMapState("words", adopt=True), Count(), "count")
    return made


# Topology -> its program and its warehouse.
TOPOLOGIES = {
    "kept": (kept, "warehouse"),
    "kept_fork": (kept_fork, "fork"),
    "sent": (sent, "warehouse"),
    "topics": (topics, "warehouse"),
    "moved": (moved, "warehouse"),
}
# What is shown of each by Spark, as of its last transaction: a read of a state's log and table, whatever is merged.
SHOWN = {"kept": ("counts", "greatest", "squares", "items", "periods"), "moved": ("words",)}
SHOWN["kept_fork"] = SHOWN["kept"]


def old() -> None:
    """The job of Structured Streaming: it reads the lines that are there, one file a batch, and ends."""
    from delta.tables import DeltaTable
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql import functions as spark_functions

    spark = configure_spark(SparkSession.builder.master("local[2]")).getOrCreate()
    spark.sql(f"CREATE TABLE delta.`{HERE}/warehouse/words` (word STRING, count BIGINT) USING delta")
    spark.conf.set("spark.databricks.delta.write.txnAppId", APP)

    def merge(rows: DataFrame, batch: int) -> None:
        session = rows.sparkSession
        session.conf.set("spark.databricks.delta.write.txnVersion", batch)
        words = rows.select(spark_functions.explode(spark_functions.split("value", " ")).alias("word"))
        counts = words.groupBy("word").count().alias("s")
        target = DeltaTable.forPath(session, f"{HERE}/warehouse/words").alias("t")
        merged = target.merge(counts, "t.word = s.word")
        merged.whenMatchedUpdate(set={"count": "t.count + s.count"}).whenNotMatchedInsertAll().execute()

    lines = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(f"{HERE}/lines")
    query = lines.writeStream.foreachBatch(merge).option("checkpointLocation", f"{HERE}/checkpoint")
    query.trigger(availableNow=True).start().awaitTermination()
    spark.stop()


def feed(first: int, last: int) -> None:
    """Files FIRST to LAST - 1 of the events and of the lines."""
    for number in range(first, last):
        rows = [event(one) for one in range(number * OF_A_FILE, (number + 1) * OF_A_FILE)]
        made = [json.dumps({**row, "at": row["at"].strftime("%Y-%m-%dT%H:%M:%SZ")}) for row in rows]
        put(Path("events") / f"{number:03}.json", made, number)
        put(Path("lines") / f"{number:03}.txt", [line(number)], number)


def put(path: Path, lines: list[str], number: int) -> None:
    path.parent.mkdir(exist_ok=True)
    new = Path(f"new-{number}")
    new.write_text("".join(f"{line}\n" for line in lines))
    os.utime(new, (1_700_000_000 + number, 1_700_000_000 + number))
    os.rename(new, path)


def run(names: list[str]) -> None:
    for name in names:
        program, warehouse = TOPOLOGIES[name]
        query = program().start(warehouse=warehouse, zookeeper_session_timeout_secs=4.0)
        query.process_all_available(300)
        shown = {state: query.snapshot(state).toJSON().collect() for state in SHOWN.get(name, ())}
        Path(f"{name}-shown.json").write_text(json.dumps(shown))
        query.stop()
        print(f"{name} advanced", flush=True)
    print("all advanced")


if __name__ == "__main__":
    os.chdir(sys.argv[1])
    if sys.argv[2] == "feed":
        feed(int(sys.argv[3]), int(sys.argv[4]))
    elif sys.argv[2] == "old":
        old()
    else:
        run(sys.argv[3:])
