"""Dead letters: read from the tables of a topology, of which incarnation each is, and requests to try them again."""

from __future__ import annotations

import json
import logging
import math
import re
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from trident.coordinators.errors import TopologyError, TridentError
from trident.coordinators.identities import first_id
from trident.coordinators.stored_json import Unreadable, as_record, parse_stored, plain, shown
from trident.messages.ledger import greatest_time
from trident.spouts.rich import DEFAULT_STREAM, Given
from trident.states.core import storage
from trident.states.core.control import DOMAIN, decode_control
from trident.states.core.names import STREAMS_FOLDER, check_name
from trident.states.core.place import Place
from trident.states.core.values import loads
from trident.states.delta.append import DEAD_LETTERS, MESSAGES, SideTableKind
from trident.states.delta.data_files import rows_of
from trident.states.delta.delta_log import LogTables, has_log
from trident.states.delta.kernel_files import LiveFile
from trident.states.publishing.dead_letters import ENDS, LETTERS, side_tables

# Dead letters that are to be tried again: requests, as files in the stream's folder (docs/semantics.md 6).
#
# ``trident dead-letters replay`` writes a request; the running topology, or the
# next one, takes its messages into batches like those of the spout, and removes it when all are
# settled. A message of a request is another than the spout's of the same id, so
# each request counts once, whatever is killed when.


log = logging.getLogger("trident.messages")
_FOLDER = "replays"
_POLL_SECS = 0.5


@dataclass(frozen=True)
class _Letter:
    """A dead letter of a request.

    Attributes:
        message: its id, as JSON.
        tuples: its rows, as ``stored_values`` writes them.
    """

    message: str
    tuples: str

    def again(self) -> Given:
        rows = tuple(tuple(row) for row in loads(self.tuples))
        return parse_stored(self.message, halves=True), rows, DEFAULT_STREAM


def _read_request(path: Place) -> list[_Letter]:
    """Raises Unreadable where it is no request, FileNotFoundError where it is finished."""
    letters = parse_stored(storage.read(path))
    if not isinstance(letters, list):
        raise Unreadable("it is no list of messages", shown(repr(letters)))
    return [as_record(letter, _Letter) for letter in letters]


def request_replay(state_folder: Place, letters: Sequence[Mapping[str, Any]]) -> str:
    """Asks for dead letters to be tried again; durable when this returns.

    Args:
        letters: with ``message`` and ``tuples`` as in the dead-letter table.
    """
    name = uuid.uuid4().hex
    folder = state_folder / _FOLDER
    storage.make_folder(folder, storage.anchor_of(folder))
    wanted = [plain(_Letter(one["message"], one["tuples"])) for one in letters]
    storage.write(folder / f"{name}.json", json.dumps(wanted).encode())
    return name


def _requests_in(folder: Place) -> list[str]:
    names = storage.list_names(folder)
    return [name.removesuffix(".json") for name in names if name.endswith(".json") and name[0] != "."]


class ReplayRequests:
    """The requests of one stream, as its executor sees them."""

    def __init__(self, state_folder: Place) -> None:
        self._folder = state_folder / _FOLDER
        self._left: dict[str, set[str]] = {}  # request → keys of messages that are not settled
        self._polled_at = -_POLL_SECS

    def poll_at_once(self) -> None:
        """The next poll reads the requests, however recent the last one was."""
        self._polled_at = -_POLL_SECS

    def unfinished(self) -> list[str]:
        """The names of the requests that there are."""
        return sorted(_requests_in(self._folder))

    @staticmethod
    def pending_ids(state_folder: Place) -> list[str]:
        """The ids, as JSON, of the messages of requests that are not finished."""
        found = []
        for path in (state_folder / _FOLDER / f"{name}.json" for name in _requests_in(state_folder / _FOLDER)):
            try:
                found += [letter.message for letter in _read_request(path)]
            except FileNotFoundError:
                pass  # finished meanwhile
            except Unreadable as error:
                log.error("the replay request %s cannot be read and is left alone: %s", path, error)
        return found

    def poll(self) -> Iterator[tuple[str, Given]]:
        """(request, message) of requests that were not seen yet."""
        now = time.monotonic()
        if now - self._polled_at < _POLL_SECS:
            return
        self._polled_at = now
        for name in self.unfinished():
            if name not in self._left:
                yield from [(name, message) for message in self._read(name)]

    def _read(self, name: str) -> list[Given]:
        path = self._folder / f"{name}.json"
        try:
            letters = _read_request(path)
            messages = [letter.again() for letter in letters]
        except (Unreadable, TypeError, TridentError) as error:
            log.error("the replay request %s cannot be read and is left alone: %s", path, error)
            self._left[name] = {""}  # never finished
            return []
        self._left[name] = {f"replay {name} {letter.message}" for letter in letters}
        return messages

    def settle(self, name: str, key: str) -> None:
        self._left.get(name, set()).discard(key)

    def done(self) -> None:
        """Removes the requests all of whose messages are settled."""
        for name in [name for name, left in self._left.items() if not left]:
            storage.delete(self._folder / f"{name}.json")
            del self._left[name]


# The order of dead letters and replays: after a ``trident reset`` that keeps tables txids begin at 1 again.
#
# A staged file is in a folder of its incarnation, which names the first start that it goes back to; among rows of one
# first start txids say which came first. A file that an OPTIMIZE has written does not say it: there the times count, by
# the clocks of the hosts that led.


_STAGED = re.compile(r"data/([^/]+)/\d+-\d+-[^/]+/")


class LetterRow(NamedTuple):
    """A row of a table of dead letters.

    Attributes:
        first_start: the first start that its transaction goes back to; None: not known.
        row: its columns.
    """

    first_start: str | None
    row: dict[str, Any]


class ReplayEnd(NamedTuple):
    """The end of a replay, or that one was asked for.

    Attributes:
        first_start: that of the stream's table of messages. A reset deletes the table: all its rows have one.
        txid: in which the replay ended; infinite where it has not.
        at: when; None where it has not.
        outcome: "asked for", "acked", "failed" or "dead".
    """

    first_start: str
    txid: float
    at: datetime | None
    outcome: str

    def is_after(self, letter: LetterRow) -> bool:
        """Tells whether the letter was there first: then the replay may be its own."""
        if self.at is None:
            return True
        if letter.first_start is None:
            return bool(self.at > letter.row["given_up_at"])
        return letter.first_start != self.first_start or self.txid > letter.row["txid"]


UNFINISHED = ReplayEnd("", math.inf, None, "asked for")


def first_start_of(file: LiveFile) -> str | None:
    """The first start that a file's rows go back to; None: not known."""
    staged = _STAGED.match(file.path)
    return first_id(staged[1]) if staged else None


def in_order(rows: Iterable[LetterRow]) -> list[LetterRow]:
    """The oldest first: by time, but by txid where the first start is the same, as clocks of hosts differ."""
    by_time = sorted(rows, key=lambda one: (one.row["given_up_at"], one.row["txid"]))
    by_txid: dict[str, list[LetterRow]] = {}
    for one in by_time:
        if one.first_start is not None:
            by_txid.setdefault(one.first_start, []).append(one)
    of_start = {
        first_start: iter(sorted(some, key=lambda one: one.row["txid"])) for first_start, some in by_txid.items()
    }
    return [one if one.first_start is None else next(of_start[one.first_start]) for one in by_time]


# Dead letters as people read them, and have them tried again: from the tables of a topology, without Spark.
#
# The topology may be running: what is read is of one version of each table.


# The ids under which replays have ended, in the table of a stream's messages; all others sort before or behind.
_REPLAY, _BEHIND_REPLAY = "replay ", "replay!"
_SETTLED = ("asked for", "acked")
# So many are named where one is asked for that there is not.
_NAMED = 20


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


# (table, file) → its rows that were wanted; a file of a table never changes.
_Rows = dict[tuple[str, str], list[dict[str, Any]]]


class DeadLetterReader:
    """The dead letters of one topology. Keep one for as long as it may be asked; may be used by several threads.

    Of repeated calls for the newest ones each file is read once.
    """

    def __init__(self, warehouse: Place, topology: str, tables: LogTables | None = None) -> None:
        self._warehouse, self._topology = warehouse, topology
        self._tables = tables or LogTables()
        self._ours: set[Place] = set()  # tables that are known to be this topology's
        self._newest: dict[int, _Rows] = {}  # by how many were wanted: what the last call with this number has read

    def letters(self, last: int | None = None, messages: Collection[str] = ()) -> list[DeadLetter]:
        """The dead letters, the oldest first.

        Args:
            last: of each table about so many of the newest: the files are read until these have so many; None: all.
            messages: only letters of these; none: of all. No others come into memory, of which there may be very many.

        Raises:
            TableError: a table cannot be read.
        """
        kept = None if messages else last
        reading = _Reading(last, messages, {} if kept is None else self._newest.get(kept, {}))
        names = [name for name in DeadLetter.__dataclass_fields__ if name != "replay"]
        rows = [row for path in self._paths(DEAD_LETTERS) for row in self._rows_of_letters(path, reading)]
        replays = self._replays(reading) if rows else {}
        if kept is not None:
            self._newest[kept] = reading.read
        return [
            DeadLetter(
                **{name: letter.row[name] for name in names},
                replay=_replayed(replays.get((letter.row["stream"], letter.row["message"]), []), letter),
            )
            for letter in in_order(rows)
        ]

    def count(self) -> int | None:
        """How many there are, by the tables' logs alone; None where these do not say."""
        total = 0
        for path in self._paths(DEAD_LETTERS):
            for file in self._files(path):
                if file.num_records is None:
                    return None
                total += file.num_records
        return total

    def replay(self, stream: str | None = None, messages: Collection[str] = (), again: bool = False) -> list[str]:
        """Has dead letters tried again, by the topology that runs or by its next start.

        Args:
            stream, messages, again: as for ``trident dead-letters replay``.

        Returns:
            what was done, a line a stream; nothing where no letter is to be replayed.

        Raises:
            TopologyError: there is no such dead letter.
        """
        # Of one message only the newest letter counts, however often it was given up.
        newest = {
            (letter.stream, letter.message): letter
            for letter in self.letters(messages=messages)
            if letter.stream is not None and stream in (None, letter.stream)
        }
        wanted: dict[str, list[dict[str, Any]]] = {}
        lines = []
        for (of_stream, message), letter in newest.items():
            if letter.tuples is None:
                lines.append(f"{of_stream}: {message} cannot be tried again: a value of it could not be written down")
            elif again or letter.replay not in _SETTLED:
                wanted.setdefault(str(of_stream), []).append({"message": message, "tuples": letter.tuples})
        missing = sorted(set(messages) - {str(message) for _, message in newest})
        if missing:
            known = {str(one.message) for one in self.letters(_NAMED) if one.stream is not None}
            raise TopologyError(
                f"{self._topology} has no such dead letter",
                found=", ".join(missing),
                expected=f"one of {', '.join(sorted(known)[:_NAMED]) or 'none'}",
                action="`trident dead-letters list` shows them; a text is written with its quotes",
            )
        for one, letters in sorted(wanted.items()):
            request_replay(self._stream_folder(one), letters)
            lines.append(f"{one}: {len(letters)} to be tried again, by the running topology or its next start")
        return lines

    def _stream_folder(self, stream: str) -> Place:
        check_name("stream", stream)  # it becomes a path
        return self._warehouse / "_trident" / self._topology / STREAMS_FOLDER / stream

    def _replays(self, reading: _Reading) -> dict[tuple[str, str], list[ReplayEnd]]:
        """(stream, message) → its replays, in the order of their ends; the last may be asked for."""
        found: dict[tuple[str, str], list[ReplayEnd]] = {}
        for path in self._paths(MESSAGES):
            stream = _stream_of(path, self._topology)
            # Before the ends: a request that ends meanwhile is among these, and would else be among neither.
            pending_ids = ReplayRequests.pending_ids(self._stream_folder(stream))
            table = self._tables.load(str(path))
            files = [file for file in self._tables.live_files(table) if _may_have_replays(file)]
            ends = [row for file in files for row in reading.rows(path, file, ENDS, _replays_of)]
            first_start = first_id(decode_control(path, table.control(DOMAIN)).incarnation) if ends else ""
            for row in sorted(ends, key=lambda row: row["txid"]):
                end = ReplayEnd(first_start, row["txid"], row["settled_at"], row["outcome"])
                found.setdefault((stream, row["message"].split(" ", 2)[2]), []).append(end)
            for message in pending_ids:
                found.setdefault((stream, message), []).append(UNFINISHED)
        return found

    def _paths(self, kind: SideTableKind) -> list[Place]:
        """The topology's tables of a kind. A table that was found to be its own once is not asked whose it is again."""
        pattern = kind.table_name(self._topology, "*")
        there = [self._warehouse / name for name in storage.list_names(self._warehouse) if fnmatchcase(name, pattern)]
        if not self._ours.issuperset(there):
            self._ours.update(path for path, _ in side_tables(self._warehouse, self._topology, (kind,)))
        return sorted(path for path in there if path in self._ours and has_log(path))

    def _files(self, path: Place) -> list[LiveFile]:
        return self._tables.live_files(self._tables.load(str(path)))

    def _rows_of_letters(self, path: Place, reading: _Reading) -> list[LetterRow]:
        files = self._files(path)
        if reading.last is not None:
            files.sort(key=_given_up_by, reverse=True)
        found: list[LetterRow] = []
        for file in files:
            if reading.last is not None and len(found) >= reading.last:
                break
            first_start = first_start_of(file)
            found += [LetterRow(first_start, row) for row in reading.rows(path, file, LETTERS, reading.of_letters)]
        return found


class _Reading:
    """Reads rows of files, but for those that an earlier call with the same arguments has read.

    Args:
        last, messages: as for :meth:`DeadLetterReader.letters`.
        known: what the earlier call has read.

    Attributes:
        read: as ``known``, of this call.
    """

    def __init__(self, last: int | None, messages: Collection[str], known: _Rows) -> None:
        self.last, self._messages, self._known = last, messages, known
        self.read: _Rows = {}

    def rows(
        self, path: Place, file: LiveFile, schema: pa.Schema, wanted: Callable[[pa.RecordBatch], pa.RecordBatch]
    ) -> list[dict[str, Any]]:
        key = str(path), file.path
        found = self._known.get(key)
        if found is None:
            found = [row for batch in rows_of(str(path), [file], schema) for row in wanted(batch).to_pylist()]
        self.read[key] = found
        return found

    def of_letters(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self._messages:
            batch = batch.filter(pc.is_in(batch.column("message"), pa.array(list(self._messages), pa.string())))
        if self.last is not None and batch.num_rows > self.last:
            order = pc.sort_indices(batch, [("given_up_at", "descending"), ("txid", "descending")])
            batch = batch.take(order[: self.last])
        return batch


def _replays_of(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.filter(pc.starts_with(batch.column("message"), _REPLAY))


def _stream_of(path: Place, topology: str) -> str:
    """The stream whose messages a table has."""
    before, suffix = MESSAGES.table_name(topology, "*").split("*")
    return path.name[len(before) : -len(suffix)]


def _given_up_by(file: LiveFile) -> datetime:
    """The time of a file's newest letter, or a later one where the log does not say."""
    return greatest_time(file, "given_up_at") or datetime.max.replace(tzinfo=timezone.utc)


def _may_have_replays(file: LiveFile) -> bool:
    """Tells by the log's statistics; False only where the file surely has none."""
    stats: Any = file.stats or {}
    low, high = (dict(stats.get(name) or {}).get("message") for name in ("minValues", "maxValues"))
    return not (isinstance(low, str) and low > _BEHIND_REPLAY or isinstance(high, str) and high < _REPLAY)


def _replayed(replays: list[ReplayEnd], letter: LetterRow) -> str:
    """Returns the fate of a letter: its message's first replay that ended behind it, since that one was its own."""
    later = [end.outcome for end in replays if end.outcome != "failed" and end.is_after(letter)]
    return later[0] if later else ""
