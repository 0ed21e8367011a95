"""An outbox in the warehouse: how far each part is, which rows were refused, and the requests that were given up."""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from trident.coordinators.errors import OutboxDamaged, StateAway, TableError
from trident.coordinators.stored_json import Unreadable, as_record, parse_stored, shown
from trident.states.core import storage
from trident.states.core.place import Place
from trident.states.outside.port import OutsideMark, OutsidePart

# The record of an outbox, in the warehouse: how far each part is, and which rows were refused; one writer at a time.
#
# A server that takes requests keeps no mark of ours. So the marks are here, in small files that are numbered: the
# newest
# counts, and a writer puts the next one only if its number is free. A stale coordinator's writer finds that it is
# taken,
# reads it, and sees its successor's fence.


_NAME = re.compile(r"(\d{20})\.json")
_DRAFT = re.compile(r"\.(\d{20})\.[0-9a-f]+\.tmp")
_KEPT, _SCHEMA = 20, 1
REFUSED_FOLDER = "refused"
_SEALED = re.compile(rb'\{"digest":"([0-9a-f]{64})","record":(.*)\}', re.DOTALL)


@dataclass(frozen=True)
class Letters:
    """Refused requests that may not yet be in their file.

    Attributes:
        file: its name.
        lines: a JSON object for each.
    """

    file: str
    lines: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True)
class Begun:
    """A transaction of which some rows may be sent.

    Attributes:
        rows: that are settled.
        decision: the bits that no other decision has: another one of the same number has other rows.
    """

    txid: int
    attempt_id: int
    rows: int
    decision: str


@dataclass(frozen=True)
class PartProgress:
    """How far a part is.

    Attributes:
        mark: of the last transaction that is done.
        begun: the one behind it.
        letters: of the rows that were settled last.
    """

    mark: OutsideMark
    begun: Begun | None = None
    letters: Letters | None = None


@dataclass(frozen=True)
class Outbox:
    """The record.

    Attributes:
        fence: epoch and incarnation of the coordinator that took the state over last.
        refused: requests in files of dead letters, since the first transaction.
        wait_until: the server has asked for no request before, seconds since the epoch.
    """

    fence: OutsideMark | None = None
    parts: Mapping[int, PartProgress] = field(default_factory=dict)
    refused: int = 0
    wait_until: float = 0.0

    def taken_over(self, incarnation: str, epoch: int, adopt: bool) -> Outbox:
        """The record once a coordinator has taken the state over.

        Raises:
            ForeignMarks: it is of another incarnation, and is not to be adopted.
        """
        parts = {}
        for number, progress in self.parts.items():
            mark = progress.mark.taken_over(incarnation, epoch, adopt)
            begun = progress.begun if mark.incarnation == progress.mark.incarnation else None
            parts[number] = PartProgress(mark, begun, progress.letters)
        own = OutsideMark(incarnation, epoch, 0, 0)
        return replace(self, fence=self.fence.taken_over(incarnation, epoch, adopt) if self.fence else own, parts=parts)

    def begins(self, part: OutsidePart, where: str) -> int | None:
        """Tells how many rows of a part are settled; None: all, and its mark is here.

        Raises:
            StaleEpoch: a later coordinator has taken the state over.
            StateLostTransactions: the record lacks the transaction before.
        """
        if self.fence is not None:
            part.mark.check_fence(self.fence, where)
        part.check_known([progress.mark for progress in self.parts.values()], where)
        progress = self.parts.get(part.number)
        if progress is None:
            return 0
        if not part.mark.is_new(progress.mark, where):
            return None
        if progress.begun is not None and progress.mark.incarnation == part.mark.incarnation:
            if progress.begun == _begun(part, progress.begun.rows):
                return progress.begun.rows
        return 0

    def settled(self, part: OutsidePart, before: int, rows: int, done: bool, letters: Letters | None) -> Outbox:
        """The record once more rows of a part are settled.

        Args:
            before: rows that this writer knows as settled.
            rows: rows that are settled now.
            done: whether these are all.

        Raises:
            StateAway: another process has settled rows of this part meanwhile: it is to be begun again.
            StaleEpoch, StateLostTransactions: as ``begins``.
        """
        where = "the record of the outbox"
        if self.begins(part, where) != before:
            raise StateAway(f"another process sends part {part.number} of transaction {part.mark.txid}, too")
        progress = self.parts.get(part.number)
        if done:
            after = PartProgress(part.mark, None, letters)
        else:
            none = OutsideMark(part.mark.incarnation, part.mark.epoch, 0, 0)
            of_this_life = progress is not None and progress.mark.incarnation == part.mark.incarnation
            mark = replace(progress.mark, epoch=part.mark.epoch) if progress and of_this_life else none
            after = PartProgress(mark, _begun(part, rows), letters)
        refused = self.refused + (len(letters.lines) if letters else 0)
        return replace(self, parts={**self.parts, part.number: after}, refused=refused)

    def waiting(self, part: OutsidePart, until: float) -> Outbox:
        """The record once the server has asked for no request before a time.

        Raises:
            StaleEpoch, StateLostTransactions: as ``begins``.
        """
        self.begins(part, "the record of the outbox")
        return replace(self, wait_until=until)

    def kept(self, letters: Mapping[int, Letters]) -> Outbox:
        """The record once letters of parts are in their files."""
        parts = {
            number: replace(progress, letters=None) if progress.letters == letters.get(number) else progress
            for number, progress in self.parts.items()
        }
        return replace(self, parts=parts)

    def last_of(self, incarnation: str) -> tuple[int, int]:
        """(txid, attempt id) of the last transaction that is done; (0, 0): none is."""
        ours = (one.mark for one in self.parts.values() if one.mark.incarnation == incarnation)
        return max(((mark.txid, mark.attempt_id) for mark in ours), default=(0, 0))

    def begun_of(self, incarnation: str) -> tuple[int, int]:
        """(txid, attempt id) of the last transaction that a part has begun and not ended; (0, 0): none has."""
        ours = (one.begun for one in self.parts.values() if one.begun and one.mark.incarnation == incarnation)
        return max(((begun.txid, begun.attempt_id) for begun in ours), default=(0, 0))

    # --- as it is stored

    def encode(self, writer: str) -> bytes:
        parts = {
            str(number): {
                "mark": _mark_fields(progress.mark),
                "begun": progress.begun and vars(progress.begun),
                "letters": progress.letters and vars(progress.letters),
            }
            for number, progress in self.parts.items()
        }
        value = {
            "schema": _SCHEMA,
            "writer": writer,
            "fence": self.fence and _mark_fields(self.fence),
            "parts": parts,
            "refused": self.refused,
            "wait_until": self.wait_until,
        }
        return sealed(value)

    @classmethod
    def decode(cls, data: bytes) -> tuple[Outbox, str]:
        """The record, and who wrote it.

        Raises:
            Unreadable: it is not as it was written.
        """
        found = _SEALED.fullmatch(data)
        if found is None:
            raise Unreadable("it is no record with a digest", shown(data))
        if hashlib.sha256(found[2]).hexdigest().encode() != found[1]:
            raise Unreadable("its digest is of another content", shown(data))
        schema, writer, fence, parts, refused, until = _fields(
            parse_stored(found[2]),
            schema=int,
            writer=str,
            fence=(list, None),
            parts=dict,
            refused=int,
            wait_until=float,
        )
        if schema != _SCHEMA:
            raise Unreadable(f"its schema is {schema}, not {_SCHEMA}")
        if not all(re.fullmatch(r"\d{1,9}", number) for number in parts):
            raise Unreadable("a part has no number", shown(repr(list(parts))))
        of_parts = {int(number): _progress(one) for number, one in parts.items()}
        return cls(None if fence is None else _mark(fence), of_parts, refused, until), writer


def sealed(value: Mapping[str, Any]) -> bytes:
    """The bytes of a file, with the digest of what it holds."""
    content = json.dumps(value, separators=(",", ":")).encode()
    return b'{"digest":"%s","record":%s}' % (hashlib.sha256(content).hexdigest().encode(), content)


def _begun(part: OutsidePart, rows: int) -> Begun:
    return Begun(part.mark.txid, part.mark.attempt_id, rows, str(part.settings.get("decision", "")))


def _mark_fields(mark: OutsideMark) -> list[Any]:
    return [mark.incarnation, mark.epoch, mark.txid, mark.attempt_id]


def _mark(value: Sequence[Any]) -> OutsideMark:
    if [type(one) for one in value] != [str, int, int, int]:
        raise Unreadable("a mark is not as it should be", shown(repr(value)))
    return OutsideMark(*value)


def _progress(value: Any) -> PartProgress:
    mark, begun, letters = _fields(value, mark=list, begun=(dict, None), letters=(dict, None))
    kinds, of_letters = {"txid": int, "attempt_id": int, "rows": int, "decision": str}, None
    of_begun = Begun(*_fields(begun, **kinds)) if begun is not None else None
    if letters is not None:
        file, lines = _fields(letters, file=str, lines=list)
        if "/" in file or not all(isinstance(line, dict) for line in lines):
            raise Unreadable("dead letters are not as they should be", shown(file))
        of_letters = Letters(file, tuple(lines))
    return PartProgress(_mark(mark), of_begun, of_letters)


def _fields(value: Any, **kinds: Any) -> list[Any]:
    """The values of an object that has exactly these keys, each of its type or types; None: it may be null.

    Executors of a cluster read the record, too, and they do not have what ``as_record`` needs.
    """
    if not isinstance(value, dict) or value.keys() != kinds.keys():
        raise Unreadable("its keys are not as they should be", shown(repr(value)))
    for name, kind in kinds.items():
        allowed = kind if isinstance(kind, tuple) else (kind,)
        if type(value[name]) not in allowed and not (value[name] is None and None in allowed):
            raise Unreadable(f"{name} is not as it should be", shown(repr(value[name])))
    return [value[name] for name in kinds]


def outbox_folder(warehouse: Place, topology: str, state: str) -> Place:
    """The folder of a state of a topology, and of no other: a state's name has no "__"."""
    return warehouse / f"{topology}__{state}__outbox"


def outboxes_of(topology: str, names: Sequence[str]) -> list[str]:
    """The states of a topology that have an outbox, by the names in the warehouse."""
    pairs = (name.removesuffix("__outbox").rpartition("__") for name in names if name.endswith("__outbox"))
    return sorted(state for owner, _, state in pairs if owner == topology)


class OutboxLog:
    """The record's files: one writer of several that put the next one wins.

    Args:
        folder: of the state; it is in the warehouse.
    """

    def __init__(self, folder: Place) -> None:
        self._folder, self._log, self._refused = folder, folder / "log", folder / REFUSED_FOLDER
        self._known: tuple[int, Outbox] | None = None

    def make(self) -> None:
        """Makes the folders, and removes what writers that were killed have left."""
        for folder in (self._log, self._refused):
            storage.make_folder(folder, self._folder.parent)
        names = storage.list_names(self._log)
        newest = _newest(names)
        for name in names:
            if (draft := _DRAFT.fullmatch(name)) and int(draft[1]) <= newest:  # it has lost
                storage.try_delete(self._log / name)

    def read(self) -> Outbox:
        """The newest record; an empty one where there is none.

        Raises:
            OutboxDamaged: it is not as it was written.
        """
        while True:
            newest = _newest(storage.list_names(self._log))
            if self._known is not None and self._known[0] >= newest:
                return self._known[1]
            if not newest:
                return Outbox()
            path = self._log / f"{newest:020d}.json"
            try:
                self._known = newest, self._decoded(path)[0]
            except FileNotFoundError:  # it has become an old one meanwhile
                continue
            return self._known[1]

    def update(self, change: Callable[[Outbox], Outbox]) -> Outbox:
        """Puts the next record; ``change`` makes it of the newest, and is called again where another was put meanwhile.

        Raises:
            what ``change`` raises; nothing was put.
        """
        while True:
            before = self._known[1] if self._known is not None else self.read()
            after = change(before)
            if after == before:
                return before
            version = (self._known[0] if self._known is not None else 0) + 1
            if self._put(version, after):
                self._known = version, after
                return after
            self._known = None

    def begin_anew(self) -> None:
        """Puts an empty record behind one that is damaged or of another moment; for a leader, while none sends."""
        while not self._put(version := _newest(storage.list_names(self._log)) + 1, Outbox()):
            pass
        self._known = version, Outbox()

    def keep_letters(self) -> None:
        """Writes the files of dead letters that the record has: it has them first, so that none is there twice."""
        record = self._known[1] if self._known is not None else self.read()
        letters = {number: progress.letters for number, progress in record.parts.items() if progress.letters}
        for one in letters.values():
            lines = [json.dumps(line, ensure_ascii=False, separators=(",", ":")) for line in one.lines]
            storage.write(self._refused / one.file, "".join(f"{line}\n" for line in lines).encode())
        if letters:
            self.update(lambda record: record.kept(letters))

    def _put(self, version: int, record: Outbox) -> bool:
        """Tells whether the record has got the number."""
        writer, name = uuid.uuid4().hex, f"{version:020d}.json"
        draft = storage.draft(self._log, f".{version:020d}.{writer}.tmp")
        storage.create(draft, record.encode(writer))
        try:
            with storage.hold(self._log) as folder:
                try:
                    folder.claim(draft, name)
                except (FileExistsError, storage.OutcomeUnknown):
                    if not self._is_of(name, writer):
                        return False
                folder.flush()
                # Older numbers are free again: one of them is not the next.
                if _newest(folder.names()) - version >= _KEPT:
                    folder.delete(name)
                    return False
        finally:
            storage.try_delete(draft)
        if version > _KEPT:
            storage.try_delete(self._log / f"{version - _KEPT:020d}.json")
        return True

    def _is_of(self, name: str, writer: str) -> bool:
        try:
            return self._decoded(self._log / name)[1] == writer
        except FileNotFoundError:
            return False

    def _decoded(self, path: Place) -> tuple[Outbox, str]:
        try:
            return Outbox.decode(storage.read(path))
        except Unreadable as problem:
            topology, _, state = self._folder.name.removesuffix("__outbox").rpartition("__")
            raise OutboxDamaged(
                f"the record of the outbox of state {state} is damaged: {path}: {problem}",
                found=problem.found,
                expected="the file as it was written",
                action="bring the file back from a copy; or `trident repair "
                f"{topology} --accept-outside {state} --apply` begins the record anew",
            ) from problem


def _newest(names: Sequence[str]) -> int:
    return max((int(found[1]) for name in names if (found := _NAME.fullmatch(name))), default=0)


# The requests that an outbox has given up, as people read them: from their files, and from its record.


# As ``HttpState`` names them: the incarnation, the transaction, and what tells the files of one transaction apart.
_FILE = re.compile(r"(.*?)-\d{20}-")


@dataclass(frozen=True)
class RefusedRequest:
    """A request that the server of an HttpState has refused for good, or that could not be made.

    Attributes:
        state: the HttpState.
        txid, attempt_id: the decided attempt that its rows are of.
        part, row, rows: its first row in that part of the transaction, and how many it has.
        key: its Idempotency-Key.
        status, answer: of the server, the beginning of it; status 0: it was not sent, and why.
        body, body_form: as it was to be sent; "text", or "base64" of what is not UTF-8.
        given_up_at: when, ISO 8601.
    """

    state: str
    txid: int
    attempt_id: int
    part: int
    row: int
    rows: int
    key: str
    status: int
    answer: str
    body: str
    body_form: str
    given_up_at: str

    def line(self) -> str:
        """For people."""
        what = "a row" if self.rows == 1 else f"{self.rows} rows"
        first = self.answer.splitlines()[0] if self.answer else "no answer"
        why = f"status {self.status}: {first}" if self.status else first
        return f"{self.state}: {what} of transaction {self.txid} given up, {self.key}: {why}"


def refused_requests(warehouse: Place, topology: str) -> list[RefusedRequest]:
    """Those of all outboxes of a topology, by state, the oldest first. It may be running.

    Raises: as :meth:`RefusedRequestReader.requests`.
    """
    return RefusedRequestReader(warehouse, topology).requests()


class RefusedRequestReader:
    """The requests that a topology's outboxes gave up. Keep one where it may be asked again: it reads each file once.

    For one thread at a time.
    """

    def __init__(self, warehouse: Place, topology: str) -> None:
        self._warehouse, self._topology = warehouse, topology
        self._outboxes: dict[str, _OneOutbox] = {}

    def requests(self, last: int | None = None) -> list[RefusedRequest]:
        """The refused requests, by state, the oldest first.

        Args:
            last: of each state about so many of the newest, for whose sake no others are read; None: all.

        Raises:
            OutboxDamaged: the record of one is damaged.
            TableError: a file of theirs is not as it was written.
        """
        states = outboxes_of(self._topology, storage.list_names(self._warehouse))
        folders = {state: outbox_folder(self._warehouse, self._topology, state) for state in states}
        self._outboxes = {
            state: self._outboxes.get(state) or _OneOutbox(folder, state) for state, folder in folders.items()
        }
        return [request for one in self._outboxes.values() for request in one.requests(last)]


class _OneOutbox:
    def __init__(self, folder: Place, state: str) -> None:
        self._log, self._files, self._state = OutboxLog(folder), folder / REFUSED_FOLDER, state
        self._known: dict[str, list[RefusedRequest]] = {}  # by file: one that is written never changes

    def requests(self, last: int | None) -> list[RefusedRequest]:
        # The record first: its lines may go into their files meanwhile, and are the same there.
        letters = [one.letters for one in self._log.read().parts.values() if one.letters]
        found = {one.file: [_request(line, self._state) for line in one.lines] for one in letters}
        for names in _newest_first(storage.list_names(self._files)):
            count = 0
            for name in names:
                if last is not None and count >= last:
                    break
                if name not in found:
                    found[name] = self._known.get(name) or _of_file(self._files / name, self._state)
                count += len(found[name])
        self._known = found
        every = [request for requests in found.values() for request in requests]
        return sorted(every, key=lambda one: (one.given_up_at, one.part, one.row))


def _newest_first(names: Sequence[str]) -> list[list[str]]:
    """The files of each incarnation, whose transactions have numbers of their own: those of the latest ones first."""
    found: dict[str, list[str]] = {}
    for name in sorted((name for name in names if name.endswith(".jsonl")), reverse=True):
        of = _FILE.match(name)
        found.setdefault(of[1] if of else "", []).append(name)
    return list(found.values())


def _of_file(path: Place, state: str) -> list[RefusedRequest]:
    try:
        return [_request(parse_stored(line, halves=True), state) for line in storage.read(path).split(b"\n") if line]
    except Unreadable as problem:
        raise TableError(
            f"a file of dead letters of state {state} is damaged: {path}: {problem}",
            found=problem.found,
            expected="the file as it was written",
            action="bring the file back from a copy, or move it away",
        ) from problem


def _request(line: Any, state: str) -> RefusedRequest:
    return as_record({**line, "state": state} if isinstance(line, dict) else line, RefusedRequest)
