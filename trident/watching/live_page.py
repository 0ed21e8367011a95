"""The live page over HTTP: its files, the state of the topology as JSON and as a stream, and the few things it does.

==================================  ============================================================
``GET /`` and ``/ui``               the page; ``GET /page/<file>``: its script and its style
``GET /events``                     server-sent events: the state, whenever it changes
``GET /state.json?since=SEQ``       the same state once, with what is new behind a sequence number
``GET /plan.json``                  the plan, as nodes and edges
``GET /states.json``                the states: size, rows, lag
``GET /state/<name>?key=…``         the values of a key; ``key`` once for each of its columns
``GET /dead-letters.json``          what was given up
``GET /take-overs.json``            who leads, who waits, who led
``POST /dead-letters/replay``       has dead letters tried again
==================================  ============================================================

An answer that changes seldom has an ETag: who asks again with ``If-None-Match`` is sent it only if it is another one.

The page's own files tell nothing of the topology and need no token; all else does where there is one. A request that
is posted must say so in a header that no page of another site can send, and come from this very address.

Each page has a stream. So there are few; one too many is answered with 503, and its page asks for ``/state.json``
instead.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from decimal import InvalidOperation
from functools import partial
from importlib import resources
from typing import Any, Generic, Protocol, TypeVar

from pyspark.sql.types import StructField
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from trident.coordinators.errors import (
    ConfigError,
    FieldError,
    ForeignTable,
    TableError,
    TopologyError,
    TridentError,
    WrongArguments,
)
from trident.drpc.values import converted
from trident.messages.dead_letters import DeadLetter
from trident.states.core.control import DOMAIN, decode_control
from trident.states.core.descriptor import StateDescriptor, list_descriptors
from trident.states.core.place import Place
from trident.states.delta.delta_log import LogTables, SizedTables, TableMissing, TableTotals, totals_of
from trident.states.keyed.tables import check_own, greatest_txid, merged_upto

# Parts of the live page's answers: what is found again only every few moments, keys as texts, values as JSON.


_WAIT_SECS = 1.0
# A look that takes long is not made again at once: at most so large a share of the time goes to it, up to a bound.
_SHARE, _RARE_SECS = 0.1, 60.0
Found = TypeVar("Found")


class Recent(Generic[Found]):
    """The answer that was found a moment ago, or is found now.

    One request looks, and may hang where the disk does; the others are told so, and keep no thread.

    Args:
        find: looks for it.
        secs: how long it counts as found a moment ago. A look that took long counts longer: ten times its time, up to
            ``rare_secs``.
        rare_secs: a minute, where nothing else is said.
    """

    def __init__(
        self,
        find: Callable[[], Found],
        secs: float,
        clock: Callable[[], float] = time.monotonic,
        rare_secs: float = _RARE_SECS,
    ) -> None:
        self._find, self._secs, self._clock, self._rare_secs = find, secs, clock, rare_secs
        self._lock = threading.Lock()
        self._found: tuple[float, Found] | None = None  # until when it counts
        self._forgotten = 0  # how often

    def __call__(self) -> Found:
        """Gives it.

        Raises:
            HTTPException: 503, an earlier request still looks for it.
        """
        if not self._lock.acquire(timeout=_WAIT_SECS):
            raise HTTPException(503, "the answer to an earlier request is still being looked for; ask again")
        try:
            known = self._found
            if known is None or self._clock() >= known[0]:
                began, forgotten = self._clock(), self._forgotten
                found, ended = self._find(), self._clock()
                rests = min((ended - began) / _SHARE, self._rare_secs)
                # An answer that is forgotten while it is looked for may have been found before the change.
                until = max(began + self._secs, ended + rests) if forgotten == self._forgotten else ended
                known = self._found = until, found
            return known[1]
        finally:
            self._lock.release()

    def forget(self) -> None:
        """The next one who asks has it looked for again, also where a look is under way."""
        self._forgotten += 1
        self._found = None


def key_of_texts(state: str, fields: Sequence[StructField], texts: Sequence[str]) -> tuple[Any, ...]:
    """A key from what a person has typed, one text for each of its columns.

    Raises:
        WrongArguments: there are more or fewer, or one is not of its column's type.
    """
    if len(texts) != len(fields):
        raise WrongArguments(
            f"this is no key of state {state}",
            found=f"{len(texts)} values",
            expected=", ".join(f"{field.name} {field.dataType.simpleString()}" for field in fields) or "none",
        )
    return tuple(_value(state, field, text) for field, text in zip(fields, texts, strict=True))


def _value(state: str, field: StructField, text: str) -> Any:
    try:
        return converted(text, field.dataType)
    except (ValueError, TypeError, KeyError, OverflowError, OSError, InvalidOperation):
        raise WrongArguments(
            f"this is no value of key {field.name} of state {state}",
            found=repr(text)[:100],
            expected=field.dataType.simpleString(),
        ) from None


def shown_value(value: Any) -> Any:
    """A value for a page: numbers, text, lists and objects as JSON has them; all else as text."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        # A page counts in doubles: a larger number would be shown as another.
        return value if abs(value) < 2**53 else str(value)
    if isinstance(value, float):
        return value if value - value == 0 else str(value)
    if isinstance(value, Mapping):
        return {_as_name(name): shown_value(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [shown_value(one) for one in value]
    return str(value)


def _as_name(key: Any) -> str:
    return key if isinstance(key, str) else json.dumps(shown_value(key))


# The states of a topology for a page: size, rows and lag of their tables, by the tables' logs alone, without Spark.


class StateSizes:
    """Looks at the tables of one topology. Keep one: of a log that was read only the newest entries are read again.

    The files of logs are remembered, which a MERGE shortens; of all other tables, which may grow for ever, sums alone.
    """

    def __init__(self, warehouse: Place, topology: str) -> None:
        self._warehouse, self._topology = warehouse, topology
        self._logs, self._sized = LogTables(), SizedTables()

    def records(self, advanced: Mapping[str, int] | None = None) -> list[dict[str, Any]]:
        """A record for each state that has a descriptor, by name.

        Args:
            advanced: batch group → its last advanced transaction, where it is known; else the tables are asked.

        Returns:
            of each ``name``, ``kind``, ``group``, ``keys`` (``name`` and ``type``), ``has_keys`` (it can be looked up),
            ``txid`` (the last transaction that it has), ``tables`` (``path``, ``version``, ``rows``, None where the log
            does not say, ``files``, ``bytes``), of a keyed state ``merged`` (the last transaction that the plain table
            has), ``lag`` (transactions that it is behind) and ``waiting_files`` (of the log, not merged yet);
            ``trouble`` where its tables cannot be read.
        """
        try:
            states = list_descriptors(self._warehouse, self._topology)
        except TableError as error:
            return [{"name": "(unreadable)", "trouble": str(error), "tables": [], "keys": [], "has_keys": False}]
        found = [self._record(state) for state in states if state.ends_at is None]
        newest = _newest(found) | dict(advanced or {})
        for one in found:
            if one.get("merged") is not None:
                one["lag"] = max(newest.get(one["group"], 0) - one["merged"], 0)
        return found

    def _record(self, state: StateDescriptor) -> dict[str, Any]:
        types = {field.name: field.dataType.simpleString() for field in state.schema.fields}
        found: dict[str, Any] = {
            "name": state.name,
            "kind": state.kind,
            "group": state.group,
            "keys": [{"name": key, "type": types[key]} for key in state.keys],
            "has_keys": state.state_kind.has_log and not state.history_by,
            "txid": None,
            "tables": [],
            "trouble": "",
        }
        try:
            self._add_tables(state, found)
        except (TableError, ForeignTable) as error:
            found["trouble"] = str(error)
        return found

    def _add_tables(self, state: StateDescriptor, found: dict[str, Any]) -> None:
        keyed = state.state_kind.has_log
        path = str(self._warehouse / state.published_path)
        try:
            log = self._logs.load(path) if keyed else None
            published = self._sized.load(path) if log is None else totals_of(log)
        except TableMissing:
            return
        found["tables"].append(_record(state.published_path, published))
        control = decode_control(path, published.control(DOMAIN))
        check_own(state, path, control)
        found["txid"] = control.txid
        if log is None:
            return
        found["merged"] = control.starts_at - 1
        with suppress(TableMissing):
            plain = self._sized.load(str(self._warehouse / state.plain_path))
            found["tables"].append(_record(state.plain_path, plain))
            found["merged"] = merged_upto(state, plain, control.starts_at)
        found["waiting_files"] = sum(greatest_txid(file) > found["merged"] for file in log.files.values())


def _record(path: str, table: TableTotals) -> dict[str, Any]:
    return {
        "path": path,
        "version": table.version,
        "rows": table.rows,
        "files": table.files,
        "bytes": table.bytes,
    }


def _newest(found: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Batch group → the last transaction that any of its tables has."""
    newest: dict[str, int] = {}
    for one in found:
        if one["txid"] is not None:
            newest[one["group"]] = max(newest.get(one["group"], 0), one["txid"])
    return newest


log = logging.getLogger("trident.watching")
STREAMS = 8
TICK_SECS = 0.25
# A page that has nothing new to read is sent a line all the same, which finds out whether it is still there.
QUIET_SECS = 5.0
# A stream ends where all looks have failed for so long.
LOST_SECS = 20.0
LETTERS = 100
HEADER = "X-Trident-Page"
_LOOK_UPS = 2
LIVE_SECS = 0.2
_OFTEN_SECS = 2.0
# A look at the states, letters and notes of a warehouse in a store costs requests for each table and file.
_STORE_OFTEN_SECS = 30.0
_TEXT_CHARS = 16_000
_JSON = "application/json; charset=utf-8"
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_FILES = {
    "index.html": "text/html; charset=utf-8",
    "page.css": "text/css; charset=utf-8",
    **dict.fromkeys(("page.js", "plan.js", "panels.js", "words.js", "feed.js"), "text/javascript; charset=utf-8"),
}
# Errors whose text is for the person who asked, not for the log alone.
_CALLER_ERRORS = (WrongArguments, FieldError, TableError, TopologyError, ConfigError)


class PageSource(Protocol):
    """The page's way to a topology: one that runs in this process, or what a warehouse has of one.

    Attributes:
        ended: set when nothing more comes.
        read_only: why nothing can be done from the page; "" where it can.
        live_secs, refresh_secs: for so long an answer of ``live``, and of the parts that change slowly, is given again.
    """

    ended: threading.Event
    read_only: str
    live_secs: float
    refresh_secs: float

    def live(self) -> dict[str, Any]:
        """The topology as it is now."""

    def since(self, sequence: int) -> dict[str, Any]:
        """``seq``, and ``transactions`` and ``failures`` behind it; with ``all`` they are all that there are."""

    def plan(self) -> dict[str, Any]: ...

    def states(self) -> list[dict[str, Any]]: ...

    def take_overs(self) -> dict[str, Any]: ...

    def look_up(self, state: str, texts: Sequence[str]) -> dict[str, Any]: ...

    def letters(self, last: int) -> tuple[list[DeadLetter], int | None, list[dict[str, Any]]]:
        """Dead letters, how many there are (None: not known), and refused requests: at least so many of the newest."""

    def replay(self, stream: str | None, messages: Sequence[str], again: bool) -> list[str]: ...


def refresh_secs(warehouse: Place) -> float:
    """``PageSource.refresh_secs`` of a warehouse."""
    return _OFTEN_SECS if warehouse.is_local else _STORE_OFTEN_SECS


class LivePage:
    """Answers the page's requests.

    Args:
        source: where it has all from.
    """

    def __init__(self, source: PageSource) -> None:
        self._source = source
        self._streams = 0
        self._look_ups = threading.BoundedSemaphore(_LOOK_UPS)
        # Things that move are looked at soon again, however long one look took.
        self._live = Recent(source.live, source.live_secs, rare_secs=max(2.0, 2 * source.live_secs))
        self._slow = {
            path: Recent(partial(_written, find), source.refresh_secs)
            for path, find in {
                "/plan.json": source.plan,
                "/states.json": lambda: {"states": source.states()},
                "/dead-letters.json": self._letters,
                "/take-overs.json": source.take_overs,
            }.items()
        }

    def routes(self) -> tuple[Route, ...]:
        """The page's paths."""
        return (
            Route("/", self._index),
            Route("/ui", self._index),
            Route("/page/{name}", self._file),
            Route("/events", self._events),
            Route("/state.json", self._state),
            *(Route(path, self._one(recent)) for path, recent in self._slow.items()),
            Route("/state/{name}", self._look_up),
            Route("/dead-letters/replay", self._replay, methods=["POST"]),
        )

    # --- the page -----------------------------------------------------------------------------

    def _index(self, request: Request) -> Response:
        return self._file(request)

    def _file(self, request: Request) -> Response:
        name = request.path_params.get("name", "index.html")
        if name not in _FILES:
            raise HTTPException(404, f"the page has no file {name[:100]!r}")
        data = (resources.files("trident.watching") / "page" / name).read_bytes()
        headers = {
            "Content-Security-Policy": _POLICY,
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
        }
        return Response(data, 200, headers, media_type=_FILES[name])

    # --- what it shows ------------------------------------------------------------------------

    def _state(self, request: Request) -> Response:
        given = request.query_params.get("since", "0")
        if not (given.isascii() and given.isdigit() and len(given) < 16):
            expected = "expected: a number that an answer had as seq"
            raise HTTPException(400, f"since cannot be used; found: {given[:100]!r}; {expected}")
        return _json(self._snapshot(int(given)))

    def _snapshot(self, sequence: int) -> dict[str, Any]:
        return {"at": time.time(), **self._live(), **self._source.since(sequence)}

    async def _events(self, request: Request) -> ASGIApp:
        if self._streams >= STREAMS:
            raise HTTPException(503, f"too many streams; found: {STREAMS}; expected: fewer. Ask /state.json instead")
        pieces = live_stream(self._snapshot, self._source.ended)
        stream = StreamingResponse(pieces, media_type="text/event-stream; charset=utf-8")

        async def counted(scope: Scope, receive: Receive, send: Send) -> None:
            self._streams += 1  # at once: of requests that come together none is let in by the same place
            try:
                await stream(scope, receive, send)
            finally:
                self._streams -= 1

        return counted

    def _one(self, recent: Recent[_Written]) -> Callable[[Request], Response]:
        def answer(request: Request) -> Response:
            return _answer(lambda: _unless_known(request, recent()))

        return answer

    def _letters(self) -> dict[str, Any]:
        letters, count, refused = self._source.letters(LETTERS)
        # By time: the transactions of each batch group have numbers of their own.
        newest = sorted(letters, key=lambda letter: letter.given_up_at)[-LETTERS:]
        return {
            "letters": [_letter(letter) for letter in reversed(newest)],
            "count": count,
            "refused": [
                _shortened(one, ("answer", "body"), "its file")
                for one in sorted(refused, key=lambda one: str(one["given_up_at"]))[-LETTERS:]
            ],
            "read_only": self._source.read_only,
        }

    # --- what it does -------------------------------------------------------------------------

    def _look_up(self, request: Request) -> Response:
        name = request.path_params["name"]
        if not self._look_ups.acquire(blocking=False):
            return _json({"error": f"{_LOOK_UPS} look-ups run already; ask again"}, 503)
        try:
            return _answer(lambda: self._source.look_up(name, request.query_params.getlist("key")))
        finally:
            self._look_ups.release()

    async def _replay(self, request: Request) -> Response:
        _check_own_page(request)
        if self._source.read_only:
            raise HTTPException(403, f"this page only reads: {self._source.read_only}")
        try:
            given = await request.json()
        except ValueError:
            given = None
        return await run_in_threadpool(self._replayed, given)

    def _replayed(self, given: Any) -> Response:
        if not isinstance(given, Mapping):
            expected = 'expected: JSON, {"stream": text, "messages": [text], "again": false}'
            raise HTTPException(400, f"the body cannot be read; {expected}")
        stream, messages = given.get("stream"), given.get("messages", [])
        texts = isinstance(messages, list) and all(isinstance(one, str) for one in messages)
        if not (stream is None or isinstance(stream, str)) or not texts:
            expected = "expected: a stream as text or null, messages as a list of texts"
            raise HTTPException(400, f"the body cannot be used; {expected}")
        done = _answer(lambda: {"done": self._source.replay(stream, messages, given.get("again") is True)})
        self._slow["/dead-letters.json"].forget()
        return done


def _check_own_page(request: Request) -> None:
    """Refuses what a page of another site, or of another port of this machine, has a browser send.

    A header of one's own is sent across sites only after a question that this server does not answer.
    """
    origin = request.headers.get("Origin")
    host = request.headers.get("Host", "")
    if HEADER not in request.headers:
        raise HTTPException(403, f"only the page itself, and programs, may ask this; expected: a header {HEADER}")
    if origin is not None and origin.partition("://")[2] != host:
        expected = f"expected: that of {host[:100]}"
        found = f"found: Origin: {origin[:100]}; {expected}"
        raise HTTPException(403, f"no page of another address may ask this; {found}")
    if request.headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none"):
        raise HTTPException(403, "no page of another address may ask this")


def _letter(letter: DeadLetter) -> dict[str, Any]:
    found = _shortened(asdict(letter), ("tuples", "error", "traceback", "metadata"), "the table")
    return found | {"given_up_at": letter.given_up_at.timestamp(), "can_replay": letter.tuples is not None}


def _shortened(found: Mapping[str, Any], names: Sequence[str], where: str) -> dict[str, Any]:
    """With long texts cut: an answer waits in memory until it is read."""
    long = {name: found[name] for name in names if len(found[name] or "") > _TEXT_CHARS}
    cut = {name: f"{text[:_TEXT_CHARS]}… ({len(text)} characters; {where} has all)" for name, text in long.items()}
    return {**found, **cut}


@dataclass(frozen=True)
class _Written:
    """An answer as JSON, and its mark: who has the one with this mark is not sent it again."""

    text: str
    mark: str


def _written(find: Callable[[], Any]) -> _Written:
    text = _as_text(find())
    return _Written(text, hashlib.sha256(text.encode()).hexdigest()[:32])


def _unless_known(request: Request, found: _Written) -> Response:
    mark = f'"{found.mark}"'
    known = [one.strip().removeprefix("W/") for one in request.headers.get("If-None-Match", "").split(",")]
    if mark in known:
        return Response(status_code=304, headers={"ETag": mark})
    return Response(found.text, 200, {"ETag": mark}, media_type=_JSON)


def _answer(find: Callable[[], Any]) -> Response:
    """The answer, or an error that is the business of the person who asked."""
    try:
        found = find()
        return found if isinstance(found, Response) else _json(found)
    except HTTPException:
        raise
    except _CALLER_ERRORS as error:
        return _json({"error": str(error)}, 400)
    except TridentError as error:
        return _json({"error": str(error)}, 503)


def _json(value: Any, status: int = 200) -> Response:
    return Response(_as_text(value), status, media_type=_JSON)


def _as_text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=True, allow_nan=False, default=str) + "\n"


async def live_stream(
    poll: Callable[[int], dict[str, Any]], ended: threading.Event, clock: Callable[[], float] = time.monotonic
) -> AsyncIterator[bytes]:
    """Server-sent events: what is new, a few times a second, until the topology has ended. Goes on as its page reads.

    Args:
        poll: gives the state of the page after a sequence number; "seq" in it is the next one. One that raises ends no
            stream, unless all do for ``LOST_SECS``: then the page says that the connection is lost, and asks again.
        ended: set when nothing more comes; a last state is sent then.
    """
    yield b"retry: 2000\n\n"
    sequence, last, sent_at = 0, "", clock()
    found_at = sent_at
    while True:
        ends, now = ended.is_set(), clock()
        try:
            state = await run_in_threadpool(poll, sequence)
        except Exception as error:  # a store does not answer, or another page's look takes long: the next one may not
            log.debug("a page does not get what is new: %s", error)
            if now >= found_at + LOST_SECS:
                return
            state = None
        else:
            found_at = now
        # The time of a look alone is nothing new.
        same = last if state is None else json.dumps({**state, "at": None}, ensure_ascii=True)
        if state is not None and same != last:
            last, sent_at, sequence = same, now, int(state["seq"])
            yield f"event: live\ndata: {json.dumps(state, ensure_ascii=True, allow_nan=False)}\n\n".encode()
        elif now >= sent_at + QUIET_SECS:
            sent_at = now
            yield b": nothing new\n\n"
        if ends:
            yield b"event: ended\ndata: {}\n\n"
            return
        await asyncio.sleep(TICK_SECS)
