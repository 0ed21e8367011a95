"""A durable queue with receipts in an SQLite file, for the processes of one machine.

A message that is taken stays in the queue, invisible, until it is
acknowledged or given back, or until its lease runs out, as in Amazon SQS.
Every operation is one transaction that takes the write lock first (``BEGIN
IMMEDIATE``) and is on disk when it returns (``synchronous=FULL``); a process that is
killed has done it or not. A commit whose answer is lost may have happened:
then a taken message is hidden for one lease, and an acknowledged one is gone,
as it should be.

A named *consumer* can do three things more (:meth:`SqliteQueue.consumer`):
take over what processes of that name before it had taken; hold messages
beyond their lease; and be refused once a newer process of its name has come.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from trident.coordinators import faults
from trident.coordinators.errors import (
    ConfigError,
    Deposed,
    ForeignTable,
    OutcomeUnknown,
    SourceError,
    TridentError,
    described,
)
from trident.spouts import contracts as spout_arguments
from trident.states.maps.sqlite_store import USABLE, OpenFile, transaction

PUT = faults.register("queue.put", "the SQLite transaction that puts messages into a queue")
TAKE = faults.register("queue.take", "the SQLite transaction that takes messages from a queue")
HOLD = faults.register("queue.hold", "the SQLite transaction that holds messages for an attempt that may be decided")
ACKNOWLEDGE = faults.register("queue.acknowledge", "the SQLite transaction that acknowledges messages")
GIVE_BACK = faults.register("queue.give_back", "the SQLite transaction that gives messages back")
TAKE_OVER = faults.register("queue.take_over", "the SQLite transaction in which a consumer takes over its name")

SYNCHRONOUS = "FULL"  # what has returned survives a loss of power
_FREE = 0.0  # visible_at of a message that no consumer has
_HELD = 1e300  # … and of one that is held: no clock gets there
_SCHEMA = 1
# AUTOINCREMENT: an id is never used again, also when the last message goes.
# A receipt is a message's id and the ticket of its last take; consumer is who took it, if it has a name.
_TABLES = (
    """CREATE TABLE messages (id INTEGER PRIMARY KEY AUTOINCREMENT, payload TEXT NOT NULL,
       visible_at REAL NOT NULL DEFAULT 0, ticket TEXT, consumer TEXT)""",
    "CREATE INDEX messages_by_consumer ON messages (consumer) WHERE consumer IS NOT NULL",
    "CREATE TABLE consumers (name TEXT PRIMARY KEY, life TEXT NOT NULL, epoch INTEGER NOT NULL)",
    "CREATE TABLE ended_lives (name TEXT, life TEXT, PRIMARY KEY (name, life))",
    "CREATE TABLE queue (schema INTEGER NOT NULL, id TEXT NOT NULL)",
)


class QueueMessage(NamedTuple):
    """A message that was taken.

    Attributes:
        id: the same at each delivery; never used for another message.
        payload: the text that was put.
        receipt: of this delivery.
    """

    id: str
    payload: str
    receipt: str


class SqliteQueue:
    """A queue of texts in an SQLite file; for any number of threads and processes of one machine.

    Messages are taken in the order in which they were put, as far as no other
    consumer has them. The file must be on a local disk: SQLite's locks do not hold on
    network file systems. A topology that reads it is refused on a Spark
    cluster: its standby on another host would read another queue.

    Args:
        path: the file; made when it is not there, but not its folder.
        lease_secs: how long a message that was taken stays invisible.
        clock: the time in seconds, the same for all processes; for tests.

    Raises:
        ConfigError: an argument cannot be used.
    """

    bound_to_one_host = (
        "use a queue that all hosts reach, such as a RedisListSpout; SQLite over a network folder is not safe"
    )

    def __init__(
        self, path: "str | os.PathLike[str]", lease_secs: float = 60.0, clock: Callable[[], float] = time.time
    ) -> None:
        text = spout_arguments.path("the path of a SqliteQueue", path, ConfigError)
        if text.startswith((":memory:", "file:")):
            raise ConfigError("the path of a SqliteQueue cannot be used", found=repr(path), expected="a file's path")
        lease_secs = spout_arguments.seconds("lease_secs of a SqliteQueue", lease_secs, zero=False, error=ConfigError)
        if not callable(clock):
            raise ConfigError(
                "the clock of a SqliteQueue cannot be used",
                found=described(clock),
                expected="a function without arguments",
            )
        self.path, self.lease_secs = os.path.abspath(text), float(lease_secs)
        self._clock = clock
        self._open = _Open()

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "lease_secs": self.lease_secs, "_clock": self._clock}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _open=_Open())

    @property
    def id(self) -> str:
        """Random, made with the file: a copy has the same, a new queue at the same path another."""
        with self._read() as connection:
            return str(connection.execute("SELECT id FROM queue").fetchone()[0])

    def put(self, payloads: Iterable[str]) -> list[str]:
        """Adds messages, all or none; returns their ids, in order.

        Raises:
            TridentError: nothing was put.
            OutcomeUnknown: all of them may have been put, or none.
        """
        texts = list(payloads)
        wrong = next((text for text in texts if not isinstance(text, str)), None)
        if wrong is not None:
            raise ConfigError("a message of a SqliteQueue cannot be put", found=repr(wrong)[:200], expected="text")
        with self._write(PUT) as connection:
            put = "INSERT INTO messages (payload) VALUES (?)"
            return [str(connection.execute(put, (text,)).lastrowid) for text in texts]

    def take(self, n: int) -> list[QueueMessage]:
        """Up to n messages that no consumer has; they are invisible for lease_secs.

        Raises:
            SourceError: as all operations below, when the file cannot be used.
        """
        with self._write(TAKE) as connection:
            return self._take(connection, n, None)

    def acknowledge(self, tickets: Iterable[str]) -> None:
        """Removes messages for good; doing it again does nothing.

        Args:
            tickets: ids, which count whichever consumer has the message; or
                receipts, which count only if it was not delivered again since.
        """
        given = [_split(ticket) for ticket in tickets]
        with self._write(ACKNOWLEDGE) as connection:
            connection.executemany("DELETE FROM messages WHERE id = ?1 AND (?2 IS NULL OR ticket = ?2)", given)

    def give_back(self, receipts: Iterable[str]) -> None:
        """Makes messages visible again at once, as far as the receipts are their last ones."""
        given = [_split(receipt) for receipt in receipts]
        with self._write(GIVE_BACK) as connection:
            connection.executemany(
                "UPDATE messages SET visible_at = 0, ticket = NULL, consumer = NULL WHERE id = ? AND ticket = ?", given
            )

    def consumer(self, name: str, life: str = "", epoch: int | None = None) -> "SqliteConsumer":
        """The process that takes messages under a name; see :class:`SqliteConsumer`."""
        return SqliteConsumer(self, name, life, epoch)

    def release(self, consumer: str) -> None:
        """Makes all visible that is taken or held under a name; for a consumer that will never come back."""
        with self._write(GIVE_BACK) as connection:
            _release(connection, consumer)

    def ready(self, most: int) -> int:
        """Counts how many are visible; counts no further than most."""
        with self._read() as connection:
            visible = "SELECT count(*) FROM (SELECT 1 FROM messages WHERE visible_at <= ? LIMIT ?)"
            return int(connection.execute(visible, (self._clock(), most)).fetchone()[0])

    def __len__(self) -> int:
        """Messages that are not acknowledged, visible or not."""
        with self._read() as connection:
            return int(connection.execute("SELECT count(*) FROM messages").fetchone()[0])

    def close(self) -> None:
        """Closes the file; the next call opens it again."""
        self._open.close()

    # --- within a transaction -------------------------------------------------------------------

    def _take(self, connection: sqlite3.Connection, n: int, consumer: str | None) -> list[QueueMessage]:
        now, ticket = self._clock(), uuid.uuid4().hex
        visible = "SELECT id, payload FROM messages WHERE visible_at <= ? ORDER BY id LIMIT ?"
        found = connection.execute(visible, (now, n)).fetchall()
        connection.executemany(
            "UPDATE messages SET visible_at = ?, ticket = ?, consumer = ? WHERE id = ?",
            [(now + self.lease_secs, ticket, consumer, id) for id, _ in found],
        )
        return [QueueMessage(str(id), payload, f"{id}-{ticket}") for id, payload in found]

    @contextmanager
    def _write(self, point: str) -> Iterator[sqlite3.Connection]:
        with faults.fault_point(point), self._open.lock, self._errors(point):
            with transaction(self._open.connection(self.path)) as connection:
                yield connection

    @contextmanager
    def _read(self) -> Iterator[sqlite3.Connection]:
        with self._open.lock, self._errors(""):
            yield self._open.connection(self.path)

    @contextmanager
    def _errors(self, point: str) -> Iterator[None]:
        try:
            yield
        except OutcomeUnknown as problem:
            if point == PUT:
                raise OutcomeUnknown(f"messages may have been put into {self.path}", found=problem.found) from problem
            # All else may be done again: a lease runs out, a message is acknowledged once.
            raise SourceError(f"a commit to {self.path} failed; it may have happened", found=problem.found) from problem
        except sqlite3.Error as problem:
            raise SourceError(
                f"the queue {self.path} cannot be used",
                found=f"{type(problem).__name__}: {problem}",
                expected=USABLE,
            ) from problem


class SqliteConsumer:
    """One process's part in a consumer: a name under which messages are taken by one process at a time.

    Args:
        name: of the consumer; the next process that takes under it owns what was taken under it before.
        life: a random id of everything that the name has been used for since it
            began anew: epochs of different lives are not compared. A life that
            was followed by another may not come back.
        epoch: the greater one wins, the same may start again; None takes the next one.
    """

    def __init__(self, queue: SqliteQueue, name: str, life: str, epoch: int | None) -> None:
        self.queue, self.name, self.life, self.epoch = queue, name, life, epoch

    def start(self) -> None:
        """Takes the name over: messages taken and held under it are visible again; its earlier processes are refused.

        The caller must have acknowledged what those processes had decided.

        Raises:
            Deposed: a newer process of this life has the name.
            SourceError: another life has followed this one.
        """
        with self.queue._write(TAKE_OVER) as connection:
            found = self._registered(connection)
            if found is not None and found[0] == self.life and self.epoch is not None and self.epoch < found[1]:
                raise self._refused(*found)
            ended = "SELECT 1 FROM ended_lives WHERE name = ? AND life = ?"
            if found is not None and connection.execute(ended, (self.name, self.life)).fetchone():
                raise self._refused(*found)
            if found is not None and found[0] != self.life:
                connection.execute("INSERT INTO ended_lives VALUES (?, ?)", (self.name, found[0]))
            if self.epoch is None:
                self.epoch = found[1] + 1 if found is not None and found[0] == self.life else 1
            connection.execute("INSERT OR REPLACE INTO consumers VALUES (?, ?, ?)", (self.name, self.life, self.epoch))
            _release(connection, self.name)

    def take(self, n: int) -> list[QueueMessage]:
        """As :meth:`SqliteQueue.take`.

        Raises:
            Deposed: this process is not the one that has the name.
        """
        with self.queue._write(TAKE) as connection:
            self._check(connection)
            return self.queue._take(connection, n, self.name)

    def hold(self, receipts: Iterable[str]) -> None:
        """Keeps messages from everybody until they are acknowledged or given back, whatever their lease; all or none.

        Raises:
            SourceError: the lease of one has run out and it was taken again.
            Deposed: this process is not the one that has the name.
        """
        given = [_split(receipt) for receipt in receipts]
        with self.queue._write(HOLD) as connection:
            self._check(connection)
            hold = "UPDATE messages SET visible_at = ? WHERE id = ? AND ticket = ?"
            held = connection.executemany(hold, [(_HELD, *receipt) for receipt in given]).rowcount if given else 0
            if held != len(given):
                raise SourceError(
                    f"{len(given) - held} messages of {self.queue.path} were taken by another consumer",
                    found=f"it took longer than their lease of {self.queue.lease_secs:g} s",
                    expected="a lease longer than it takes to process a batch",
                    action="raise lease_secs, or make batches smaller; the batch is tried again",
                )

    def give_back(self, receipts: Iterable[str]) -> None:
        """As :meth:`SqliteQueue.give_back`; leaves alone what another process has taken over."""
        self.queue.give_back(receipts)

    def ready(self, most: int) -> int:
        """As :meth:`SqliteQueue.ready`."""
        return self.queue.ready(most)

    def _registered(self, connection: sqlite3.Connection) -> tuple[str, int] | None:
        return connection.execute("SELECT life, epoch FROM consumers WHERE name = ?", (self.name,)).fetchone()

    def _check(self, connection: sqlite3.Connection) -> None:
        found = self._registered(connection)
        if found is None:
            raise SourceError(f"the consumer {self.name!r} of {self.queue.path} was not started", action="call start()")
        if found != (self.life, self.epoch):
            raise self._refused(*found)

    def _refused(self, life: str, epoch: int) -> TridentError:
        error = Deposed if life == self.life else SourceError
        return error(
            f"the consumer {self.name!r} of {self.queue.path} is another process now",
            found=f"life {life!r}, epoch {epoch}",
            expected=f"life {self.life!r}, epoch {self.epoch}",
            action="stop one of the two, or give one of them another consumer name",
        )


def _release(connection: sqlite3.Connection, consumer: str) -> None:
    connection.execute(
        "UPDATE messages SET visible_at = 0, ticket = NULL, consumer = NULL WHERE consumer = ?", (consumer,)
    )


def _split(ticket: str) -> tuple[int, str | None]:
    """(id, ticket of the take or None) of an id or a receipt."""
    id, _, rest = str(ticket).partition("-")
    # isdecimal takes digits of all scripts.
    if not (id.isascii() and id.isdecimal()):
        raise SourceError("this is no id and no receipt of a SqliteQueue", found=repr(ticket)[:100])
    return int(id), rest or None


# --- SQLite --------------------------------------------------------------------------------------


class _Open:
    """The connection of one queue object in one process, used by one thread at a time."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._file: OpenFile | None = None

    def connection(self, path: str) -> sqlite3.Connection:
        if self._file is None or not self._file.is_current():
            self.close()  # removed, and perhaps made again: new messages go there
            self._file = _opened(path)
        return self._file.connection

    def close(self) -> None:
        with self.lock:
            if self._file is not None:
                self._file.close()
                self._file = None


def _opened(path: str) -> OpenFile:
    file = OpenFile(path, SYNCHRONOUS, any_thread=True)
    try:
        with transaction(file.connection) as connection:
            _make_tables(connection, path)
    except BaseException:
        file.close()
        raise
    return file


def _make_tables(connection: sqlite3.Connection, path: str) -> None:
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if not tables:
        for statement in _TABLES:
            connection.execute(statement)
        connection.execute("INSERT INTO queue VALUES (?, ?)", (_SCHEMA, uuid.uuid4().hex))
    elif "queue" not in tables or "messages" not in tables:
        raise ForeignTable(
            f"{path} was not made by a SqliteQueue",
            found=f"tables {', '.join(sorted(tables))}",
            expected="a file of its own",
            action="choose another path",
        )
    else:
        (schema,) = connection.execute("SELECT schema FROM queue").fetchone()
        if schema != _SCHEMA:
            raise ForeignTable(f"the queue {path} is of another version", found=schema, expected=_SCHEMA)
