"""Dead letters that are to be tried again: requests, as files in the stream's folder (docs/semantics.md 6).

``trident dead-letters replay`` writes a request; the running topology, or the
next one, takes its messages into batches like those of the spout, and removes it when all are
settled. A message of a request is another than the spout's of the same id, so
each request counts once, whatever is killed when.
"""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trident.coordinators.errors import TridentError
from trident.coordinators.stored_json import Unreadable, as_record, parse_stored, plain, shown
from trident.spouts.rich import Message
from trident.states.core import storage
from trident.states.core.place import Place
from trident.states.core.stored_values import loads

log = logging.getLogger("trident.messages")
_FOLDER = "replays"
_LOOK_SECS = 0.5


@dataclass(frozen=True)
class _Letter:
    """A dead letter of a request.

    Attributes:
        message: its id, as JSON.
        tuples: its rows, as ``stored_values`` writes them.
    """

    message: str
    tuples: str

    def again(self) -> Message:
        return Message(parse_stored(self.message, halves=True), tuple(tuple(row) for row in loads(self.tuples)))


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
        self._looked_at = -_LOOK_SECS

    def look_again(self) -> None:
        """The next poll looks for requests, however short ago the last one did."""
        self._looked_at = -_LOOK_SECS

    def unfinished(self) -> list[str]:
        """The names of the requests that there are."""
        return sorted(_requests_in(self._folder))

    @staticmethod
    def asked(state_folder: Place) -> list[str]:
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

    def poll(self) -> Iterator[tuple[str, Message]]:
        """(request, message) of requests that were not seen yet."""
        now = time.monotonic()
        if now - self._looked_at < _LOOK_SECS:
            return
        self._looked_at = now
        for name in self.unfinished():
            if name not in self._left:
                yield from [(name, message) for message in self._read(name)]

    def _read(self, name: str) -> list[Message]:
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
