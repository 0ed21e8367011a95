"""The commands for dead letters: shows them, and has them tried again (docs/semantics.md 6)."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from trident.config import TridentConfig, as_config
from trident.coordinators.errors import TopologyError
from trident.messages.replays import ReplayRequests, request_replay
from trident.running.own_zookeeper import own_zookeeper
from trident.spark.session import make_session, spark_settings
from trident.spark.stores import configure_by_session
from trident.states.core import storage
from trident.states.core.names import check_name
from trident.states.core.place import Place
from trident.states.delta.beside import DEAD_LETTERS, MESSAGES
from trident.states.delta.whole_files import require_whole_log
from trident.states.outside.outbox_letters import RefusedRequest, refused_requests
from trident.states.publishing.dead_letters import tables_beside

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class DeadLetter:
    """A message that was given up, or a transaction that was skipped.

    Attributes:
        txid: the transaction that it is part of.
        stream: of the message; None for a skipped transaction.
        message: the message's id as JSON.
        tuples: what it was emitted as, JSON.
        attempts: how often it was tried.
        operation, location, error, traceback: why the last try failed.
        metadata: of a skipped transaction, JSON by stream.
        given_up_at: when.
        replay: "" or what became of its replay: "asked for", "acked" or "dead".
    """

    txid: int
    stream: str | None
    message: str | None
    tuples: str | None
    attempts: int | None
    operation: str | None
    location: str | None
    error: str | None
    traceback: str | None
    metadata: str | None
    given_up_at: datetime
    replay: str = ""

    def line(self) -> str:
        """For people."""
        if self.stream is None:
            return f"transaction {self.txid}: skipped: {_first(self.error)}"
        replay = f" [replay: {self.replay}]" if self.replay else ""
        where = f" in {self.operation}" if self.operation else ""
        return (
            f"{self.stream} message {self.message}: given up in transaction {self.txid} after {self.attempts} tries"
            f"{where}: {_first(self.error)}{replay}"
        )


def _first(text: str | None) -> str:
    return (text or "no error is known").splitlines()[0]


def dead_letters(
    name: str, config: TridentConfig | None = None, spark: "SparkSession | None" = None
) -> list[DeadLetter]:
    """The dead letters of a topology, the oldest first. It may be running.

    Args:
        spark: the session; one is made when None.

    Raises:
        TopologyError: the warehouse knows no such topology.
    """
    config = as_config(config)
    warehouse = _warehouse(name, config)
    paths = [path for path, _ in tables_beside(warehouse, name, (DEAD_LETTERS,))]
    if not paths:
        return []
    spark = spark or make_session(f"trident dead-letters {name}", spark_settings(config))
    configure_by_session(warehouse, spark)
    replays = _replays(spark, warehouse, name)
    fields = [field for field in DeadLetter.__dataclass_fields__ if field != "replay"]
    rows = [row for path in sorted(paths) for row in _read(spark, path).select(fields).collect()]
    return [
        DeadLetter(**row.asDict(), replay=_replayed(replays.get((row.stream, row.message), []), row.txid))
        for row in sorted(rows, key=lambda row: (row.txid, row.given_up_at))
    ]


def refused_by_servers(name: str, config: TridentConfig | None = None) -> list[RefusedRequest]:
    """The dead letters of a topology's HttpStates, by state, the oldest first. It may be running.

    Those are decided rows, which no replay sends again.

    Raises:
        TopologyError: the warehouse knows no such topology.
        OutboxDamaged, TableError: what is kept of them is not as it was written.
    """
    return refused_requests(_warehouse(name, as_config(config)), name)


def _replayed(replays: list[tuple[float, str]], txid: int) -> str:
    """Returns the fate of a letter: its message's first replay that ended behind it, since that one was its own."""
    later = [outcome for ended_in, outcome in replays if ended_in > txid and outcome != "failed"]
    return later[0] if later else ""


def replay(
    name: str,
    config: TridentConfig | None = None,
    stream: str | None = None,
    messages: Collection[str] = (),
    again: bool = False,
    spark: "SparkSession | None" = None,
    force: bool = False,
) -> str:
    """Has dead letters tried again by the topology that runs, or by its next start.

    Each request counts each message once. A message that fails again, as often
    as ``max_replays`` says, is a dead letter again.

    Args:
        stream: only of this stream.
        messages: only these, by their ids as ``dead-letters list`` shows them; all when empty.
        again: also those of which a replay was asked for already.
        spark: the session; one is made when None.
        force: do not ask whether this is the topology's ZooKeeper; none is needed then.

    Returns:
        what was done, a line a stream.

    Raises:
        TopologyError: there is no such dead letter.
        CoordinationError: the topology is another ZooKeeper's.
    """
    config = as_config(config)
    warehouse = _warehouse(name, config)
    if not force:
        with own_zookeeper(config, warehouse, name, "dead-letters replay"):
            pass
    # Of one message only the newest letter counts, however often it was given up.
    newest = {
        (letter.stream, letter.message): letter
        for letter in dead_letters(name, config, spark)
        if letter.stream is not None and stream in (None, letter.stream)
    }
    known = {str(message) for _, message in newest}
    wanted: dict[str, list[dict[str, Any]]] = {}
    lost = []
    for (of_stream, message), letter in newest.items():
        if letter.tuples is None and (not messages or message in messages):
            lost.append(f"{of_stream}: {message} cannot be tried again: a value of it could not be written down")
            continue
        if (not messages or message in messages) and (again or letter.replay not in ("asked for", "acked")):
            wanted.setdefault(str(of_stream), []).append({"message": message, "tuples": letter.tuples})
    missing = sorted(set(messages) - known)
    if missing:
        raise TopologyError(
            f"{name} has no such dead letter",
            found=", ".join(missing),
            expected=f"one of {', '.join(sorted(known)[:20]) or 'none'}",
            action="`trident dead-letters list` shows them; a text is written with its quotes",
        )
    if not wanted and not lost:
        return f"{name}: no dead letter is to be replayed"
    lines = lost
    for one, letters in sorted(wanted.items()):
        check_name("stream", one)  # it becomes a path
        request_replay(warehouse / "_trident" / name / "streams" / one, letters)
        lines.append(f"{one}: {len(letters)} to be tried again, by the running topology or its next start")
    return "\n".join(lines)


def _warehouse(name: str, config: TridentConfig) -> Place:
    check_name("topology", name)
    warehouse = config.warehouse_place()
    if not storage.is_folder(warehouse / "_trident" / name):
        raise TopologyError(
            f"the warehouse {warehouse} has no topology {name!r}",
            action="check the name, or name the warehouse with --set warehouse=…",
        )
    return warehouse


def _read(spark: "SparkSession", path: Place) -> "DataFrame":
    require_whole_log(str(path))
    return spark.read.format("delta").load(str(path))


def _replays(spark: "SparkSession", warehouse: Place, name: str) -> dict[tuple[str, str], list[tuple[float, str]]]:
    """(stream, message) → its replays: in which transaction one ended, and how; the last of them may be asked for."""
    found: dict[tuple[str, str], list[tuple[float, str]]] = {}
    before, behind = MESSAGES.table_name(name, "*").split("*")
    for path, _ in tables_beside(warehouse, name, (MESSAGES,)):
        stream = path.name[len(before) : -len(behind)]
        # Before the ends: a request that ends meanwhile is among these, and would else be among neither.
        asked = ReplayRequests.asked(warehouse / "_trident" / name / "streams" / stream)
        rows = _read(spark, path).where(F.col("message").startswith("replay ")).orderBy("txid").collect()
        for row in rows:
            found.setdefault((stream, row.message.split(" ", 2)[2]), []).append((row.txid, row.outcome))
        for message in asked:
            found.setdefault((stream, message), []).append((math.inf, "asked for"))
    return found
