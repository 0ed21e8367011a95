"""What the command line does with dead letters: shows them, and has them tried again (SEMANTICS 6)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coordinators.errors import TopologyError
from states.dead_letters import MESSAGES, tables_beside
from states.names import check_name
from trident.config import TridentConfig
from trident.query import spark_settings
from trident.replays import ReplayRequests, request_replay
from trident.session import make_session

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
        replay: "" or what became of the last replay: "asked for", "acked", "dead" or "failed".
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
        name: the topology's.
        config: for the warehouse.
        spark: the session; one is made when None.

    Raises:
        TopologyError: the warehouse knows no such topology.
    """
    config = config or TridentConfig()
    warehouse = _warehouse(name, config)
    paths = [path for path, _ in tables_beside(warehouse, name, ("dead_letters",))]
    if not paths:
        return []
    spark = spark or make_session(f"trident dead-letters {name}", spark_settings(config))
    replays = _replays(spark, warehouse, name)
    fields = [field for field in DeadLetter.__dataclass_fields__ if field != "replay"]
    found = []
    for path in sorted(paths):
        for row in _read(spark, path).select(fields).collect():
            found.append(DeadLetter(**row.asDict(), replay=replays.get((row.stream, row.message), "")))
    return sorted(found, key=lambda letter: (letter.txid, letter.given_up_at))


def replay(
    name: str, config: TridentConfig | None = None, stream: str | None = None, messages: Collection[str] = (),
    again: bool = False, spark: "SparkSession | None" = None,
) -> str:  # fmt: skip
    """Has dead letters tried again by the topology that runs, or by its next start.

    Each request counts each message once. What fails again, as often as
    ``max_replays`` says, is a dead letter again.

    Args:
        name: the topology's.
        config: for the warehouse.
        stream: only of this stream.
        messages: only these, by their ids as ``dead-letters list`` shows them; all when empty.
        again: also those of which a replay was asked for already.
        spark: the session; one is made when None.

    Returns:
        what was done, a line a stream.

    Raises:
        TopologyError: there is no such dead letter.
    """
    config = config or TridentConfig()
    warehouse = _warehouse(name, config)
    wanted: dict[str, dict[str, Any]] = {}
    known: set[str] = set()
    for letter in dead_letters(name, config, spark):
        if letter.stream is None or (stream is not None and letter.stream != stream):
            continue
        assert letter.message is not None
        known.add(letter.message)
        if (not messages or letter.message in messages) and (again or letter.replay not in ("asked for", "acked")):
            # Of one message only once, whatever often it was given up.
            wanted.setdefault(letter.stream, {})[letter.message] = {"message": letter.message, "tuples": letter.tuples}
    missing = sorted(set(messages) - known)
    if missing:
        raise TopologyError(
            f"{name} has no such dead letter", found=", ".join(missing),
            expected=f"one of {', '.join(sorted(known)[:20]) or 'none'}",
            action="`trident dead-letters list` shows them; a text is written with its quotes",
        )  # fmt: skip
    if not wanted:
        return f"{name}: no dead letter is to be replayed"
    lines = []
    for one, letters in sorted(wanted.items()):
        request_replay(warehouse / "_trident" / name / "streams" / one, list(letters.values()))
        lines.append(f"{one}: {len(letters)} to be tried again, by the running topology or its next start")
    return "\n".join(lines)


def _warehouse(name: str, config: TridentConfig) -> Path:
    check_name("topology", name)
    warehouse = Path(config.warehouse).resolve()
    if not (warehouse / "_trident" / name).is_dir():
        raise TopologyError(
            f"the warehouse {warehouse} has no topology {name!r}",
            action="check the name, or name the warehouse with --set warehouse=…",
        )
    return warehouse


def _is_table(path: Path) -> bool:
    return (path / "_delta_log").is_dir()


def _read(spark: "SparkSession", path: Path) -> "DataFrame":
    return spark.read.format("delta").load(str(path))


def _replays(spark: "SparkSession", warehouse: Path, name: str) -> dict[tuple[str, str], str]:
    """(stream, message) → how its last replay ended, or that one was asked for."""
    from pyspark.sql import functions as F

    found: dict[tuple[str, str], str] = {}
    for folder in (warehouse / "_trident" / name / "streams").glob("*"):
        path = warehouse / MESSAGES.format(topology=name, stream=folder.name)
        if _is_table(path):
            rows = _read(spark, path).where(F.col("message").startswith("replay ")).orderBy("txid").collect()
            found |= {(folder.name, row.message.split(" ", 2)[2]): row.outcome for row in rows}
        for message in ReplayRequests.asked(folder):
            found[folder.name, message] = "asked for"
    return found
