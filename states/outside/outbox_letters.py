"""The requests that an outbox has given up, as people read them: from their files, and from its record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trident.coordinators.errors import TableError
from trident.coordinators.stored_json import Unreadable, as_record, parse_stored
from trident.states.core import storage
from trident.states.core.place import Place
from trident.states.outside.outbox_log import REFUSED_FOLDER, OutboxLog, outbox_folder, outboxes_of


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

    Raises:
        OutboxDamaged: the record of one is damaged.
        TableError: a file of theirs is not as it was written.
    """
    return [
        request
        for state in outboxes_of(topology, storage.list_names(warehouse))
        for request in _of_state(outbox_folder(warehouse, topology, state), state)
    ]


def _of_state(folder: Place, state: str) -> list[RefusedRequest]:
    # The record first: its lines may go into their files meanwhile, and are the same there.
    letters = [one.letters for one in OutboxLog(folder).read().parts.values() if one.letters]
    found = {one.file: [_request(line, state) for line in one.lines] for one in letters}
    for name in storage.list_names(folder / REFUSED_FOLDER):
        if name.endswith(".jsonl"):
            found[name] = _of_file(folder / REFUSED_FOLDER / name, state)
    every = [request for requests in found.values() for request in requests]
    return sorted(every, key=lambda one: (one.given_up_at, one.part, one.row))


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
