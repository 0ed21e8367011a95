"""The requests that an outbox has given up, as people read them: from their files, and from its record."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trident.coordinators.errors import TableError
from trident.coordinators.stored_json import Unreadable, as_record, parse_stored
from trident.states.core import storage
from trident.states.core.place import Place
from trident.states.outside.outbox_log import REFUSED_FOLDER, OutboxLog, outbox_folder, outboxes_of

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

    Raises: as :meth:`RefusedBox.requests`.
    """
    return RefusedBox(warehouse, topology).requests()


class RefusedBox:
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
