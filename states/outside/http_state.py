"""A state outside of the warehouse: an outbox, whose rows go to an HTTP server, each with a key that tells a repeat."""

from __future__ import annotations

import base64
import os
import re
import time
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, ClassVar, Union
from urllib.parse import urlsplit

import pyarrow as pa

from trident.coordinators.errors import ConfigError, FieldError, StateAway, TopologyError, described
from trident.states.core.addresses import check_server_url, is_this_host, without_credentials
from trident.states.core.names import check_flag, check_name
from trident.states.core.place import Place
from trident.states.outside.http_sender import RETRY_AFTER_SECS_MAX, Refusal, Request, RetryLater, Sender, Target
from trident.states.outside.outbox import Letters, OutboxLog
from trident.states.outside.port import OutsideMark, OutsidePart, OutsideRows, OutsideState
from trident.states.outside.row_formats import check_json, objects, values_alone, with_problems

# Checks of the arguments of an HttpState, which show none that may hold a secret.


_URL = "https://host/path"
_PROXY = "http://host:port, perhaps with user:password@ before the host"


def check_url(url: Any, user: str) -> None:
    """Raises ConfigError for a url that no request can be sent to."""
    check_server_url(url, user, ("http", "https"), expected=_URL)
    parts = urlsplit(url)
    if not parts.hostname or parts.username or parts.password or not url.isascii():
        raise ConfigError(  # not `found`: it may be the password
            f"the url of {user} cannot be used",
            expected=f"{_URL}; credentials as secrets={{'Authorization': 'Basic env:VARIABLE'}}",
        )
    if not url.isprintable() or " " in url:
        raise ConfigError(
            f"the url of {user} cannot be used", found="a space in it", expected=f"{_URL}, %20 for a space"
        )
    if "#" in url:
        raise ConfigError(
            f"the url of {user} cannot be used", found="a #fragment, which no server is sent", expected=_URL
        )


def check_proxy(proxy: Any, user: str) -> None:
    """Raises ConfigError for a proxy that cannot be used."""
    whose = f"the proxy of {user}"
    check_server_url(proxy, whose, ("http", "https"), expected=_PROXY)
    parts = urlsplit(proxy)
    whole = parts.path in ("", "/") and not parts.query and "#" not in proxy
    if not (parts.hostname and whole and proxy.isascii() and proxy.isprintable() and " " not in proxy):
        # Not `found`: it may have its password anywhere.
        raise ConfigError(f"the url of {whose} cannot be used", expected=_PROXY)


def check_kinds(state: Any, user: str) -> None:
    """Raises ConfigError for an argument of another type than the documented one."""
    for name in ("headers", "secrets"):
        given = getattr(state, name)
        if not isinstance(given, Mapping):  # its type alone: it may be a secret
            raise ConfigError(
                f"{name} of {user} cannot be used",
                found=f"a value of type {type(given).__name__}",
                expected="a dict: the name of each header with its value, or the place of its value",
            )
    accepts = state.accepts
    if isinstance(accepts, (str, bytes, Mapping)) or not _is_iterable(accepts):
        raise ConfigError(
            f"accepts of {user} cannot be used", found=described(accepts), expected="several statuses, such as (409,)"
        )
    ordered_by = state.ordered_by
    if ordered_by is not None and (isinstance(ordered_by, (bytes, Mapping)) or not _is_iterable(ordered_by)):
        raise ConfigError(
            f"ordered_by of {user} cannot be used", found=described(ordered_by), expected="a field, or several"
        )
    for name in ("ca", "certificate", "private_key"):
        given = getattr(state, name)
        if given is not None and not (isinstance(given, str) and given):
            raise ConfigError(f"{name} of {user} cannot be used", found=described(given), expected="the path of a file")


def _is_iterable(value: Any) -> bool:
    try:
        iter(value)
    except TypeError:
        return False
    return True


_USER = "an HttpState"
_METHODS = ("POST", "PUT", "PATCH")
# The end of a secret's place: "env:VARIABLE" or "file:/path", perhaps behind a word such as "Bearer".
_KEPT_IN = re.compile(r"(?:([A-Za-z]+) )?(env|file):(.+)")
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_HEADER_VALUE = re.compile(r"[\x20-\x7e]*")
_OURS = ("host", "content-length", "transfer-encoding", "connection")
# How often a part says how far it is, and looks whether it is still its turn.
_PROGRESS_SECS = _FENCE_SECS = 1.0
_REQUESTS_OF_A_LANE = 8


@dataclass(frozen=True, repr=False)
class HttpState(OutsideState):
    """An outbox: rows as requests to an HTTP server, sent when they are decided, again and again until it takes them.

    ``stream.partition_persist(HttpState("https://api.example/orders", secrets={"Authorization": "Bearer env:TOKEN"}))``

    A request is a row as a JSON object. It has the header ``Idempotency-Key``, made of incarnation, txid, state and
    place: the same whenever the row is sent again. **Each row is sent at least once. A server that takes requests of
    one key once has each row exactly once**; say ``honours_keys=True`` where yours does. Repeats come after a crash,
    for requests of about the last second, and where an answer was lost. The warehouse keeps how far it is.

    Statuses 2xx are taken as done. For 5xx, 408, 425, 429, 409 at first, a time-out, and a server that is away, a
    request is sent again, with back-off or when ``Retry-After`` says; the batch group waits without an end, and
    ``trident status`` shows it. 401, 403, 404, 405, 407, and any redirect, which is not followed, say nothing of
    the row: the topology stops after ``max_attempts``, with the decision kept. Any other 4xx refuses the request for
    good: that stops the topology likewise, or makes it a dead letter.

    Needs httpx on each machine that sends: ``pip install 'trident-spark[http]'``.

    Args:
        url: ``https://host/path``, without user and password.
        name: the state's; by default the last part of the url's path, or its host.
        method: "POST", "PUT" or "PATCH".
        body: the field that is the body: binary and text as they are, other types as JSON. None: a JSON object of
            all fields, as ``KafkaSpout(value="json")`` reads it.
        headers: of each request, by name.
        secrets: further headers by where they are kept: ``{"Authorization": "Bearer env:TOKEN"}``, ``"env:VARIABLE"``
            or ``"file:/run/secrets/api"``. Read in the driver for each transaction; they go to tasks, and into no
            text or stored record.
        key_header: the name of the header of the key.
        honours_keys: whether the server takes requests of one key once; without it building warns that rows may be
            there twice.
        dead_letters: a row that is refused for good, or that cannot be JSON (NaN), goes into a file beside the marks,
            and the next one on. False: it stops the topology.
        accepts: statuses that are taken as done besides: ``(409,)`` where it means that the row is there.
        ordered_by: a field, or several: rows that have the same values go one behind the other, in the order of the
            transactions; within a transaction in the order of the stream, if ``stream.partition_by(…)`` has brought
            them together. A refused row does not hold up those behind it.
        rows_per_request: more than 1: a request is a JSON array of so many rows, which is taken or refused as a whole.
        concurrency: requests of a part at a time. With ``ordered_by`` and several rows a request there is one.
        rate: requests a second at most, over all parts; None: no limit.
        timeout_secs: for a request and its answer, whatever arrives meanwhile. A 409 that stays so for four times this
            is a refusal.
        ca: a file of certificates of authorities, in place of the usual ones.
        certificate: a file with a certificate for the server to see, and its key unless ``private_key`` has that.
        private_key: a file with the key of ``certificate``.
        proxy: ``http://host:port``, perhaps with ``user:password@``, which no text shows; variables such as
            ``HTTPS_PROXY`` do not count.
        partitions, adopt: as of every OutsideState.

    Raises:
        TopologyError: an argument cannot be used.
        ConfigError: the url or a number cannot be used.
    """

    url: str = field(repr=False)
    name: str = ""
    method: str = "POST"
    body: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict, compare=False)
    secrets: Mapping[str, str] = field(default_factory=dict, compare=False)
    key_header: str = "Idempotency-Key"
    honours_keys: bool = False
    dead_letters: bool = False
    accepts: Collection[int] = ()
    ordered_by: Union[str, Sequence[str], None] = None
    rows_per_request: int = 1
    concurrency: int = 8
    rate: float | None = None
    timeout_secs: float = 30.0
    ca: str | None = None
    certificate: str | None = None
    private_key: str | None = None
    proxy: str | None = None
    partitions: int = 1
    adopt: bool = False
    _sent_headers: Mapping[str, str] | None = field(default=None, init=False, compare=False)
    _folder: Place | None = field(default=None, init=False, compare=False)

    calls_user: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_url(self.url, _USER)
        check_kinds(self, _USER)
        if self.proxy is not None:
            check_proxy(self.proxy, _USER)
        parts = urlsplit(self.url)
        last = parts.path.rstrip("/").rpartition("/")[2]
        usual = re.sub("[^A-Za-z0-9]+", "_", last if re.match("[A-Za-z]", last) else parts.hostname or "").strip("_")
        object.__setattr__(self, "name", check_name("state", self.name or usual))
        if self.method not in _METHODS:
            raise TopologyError(f"method of {_USER} cannot be used", found=described(self.method), expected=_METHODS)
        given = () if self.ordered_by is None else self.ordered_by
        fields = (given,) if isinstance(given, str) else tuple(given)
        for what, names in (("ordered_by", fields), ("body", (self.body,) if self.body is not None else ())):
            if not all(isinstance(one, str) and one for one in names):
                raise TopologyError(f"{what} of {_USER} cannot be used", found=described(names), expected="fields")
        object.__setattr__(self, "ordered_by", fields)
        for what in ("honours_keys", "dead_letters"):
            check_flag(getattr(self, what), f"{what} of state {self.name}")
        for what in ("partitions", "rows_per_request", "concurrency"):
            if type(getattr(self, what)) is not int or getattr(self, what) < 1:
                raise ConfigError(f"{what} of {_USER} is impossible", found=described(getattr(self, what)))
        for what in ("rate", "timeout_secs"):
            value = getattr(self, what)
            if not (what == "rate" and value is None) and not (type(value) in (int, float) and 0 < value < 1e9):
                raise ConfigError(f"{what} of {_USER} is impossible", found=described(value))
        if self.body is not None and self.rows_per_request > 1:
            raise TopologyError(
                f"{_USER} cannot put several rows into one body", expected="body=, or rows_per_request="
            )
        if not all(type(status) is int and 300 <= status < 600 for status in self.accepts):
            raise TopologyError(
                f"accepts of {_USER} cannot be used", found=described(self.accepts), expected="statuses"
            )
        if self.private_key is not None and self.certificate is None:
            raise TopologyError(f"{_USER} has a private_key, and no certificate")
        object.__setattr__(self, "accepts", tuple(sorted(set(self.accepts))))
        self._check_headers()

    def _check_headers(self) -> None:
        for name, value in {**self.headers, **self.secrets, self.key_header: ""}.items():
            if not isinstance(name, str) or not _HEADER_NAME.fullmatch(name) or name.lower() in _OURS:
                raise TopologyError(f"a header of {_USER} cannot have this name", found=described(name))
            if not isinstance(value, str) or not _HEADER_VALUE.fullmatch(value):
                # Not `found`: it may be a secret.
                raise TopologyError(f"the header {name} of {_USER} cannot be used", expected="text in ASCII")
        for name, place in self.secrets.items():
            if not _KEPT_IN.fullmatch(place):
                raise TopologyError(
                    f"the secret {name} of {_USER} cannot be used",
                    expected="'env:VARIABLE' or 'file:/path', perhaps after a word: 'Bearer env:VARIABLE'",
                )
        names = [name.lower() for name in (*self.headers, *self.secrets, self.key_header)]
        if len(set(names)) < len(names):
            raise TopologyError(f"a header of {_USER} is given twice", found=", ".join(sorted(names)))

    def __repr__(self) -> str:
        return f"HttpState({without_credentials(self.url)!r})"

    def __getstate__(self) -> dict[str, Any]:
        """Goes to tasks with its secrets, which only the driver can read; it is stored nowhere."""
        return {**self.__dict__, "headers": {}, "secrets": {}, "_sent_headers": self._headers()}

    @property
    def exactly_once(self) -> bool:
        return self.honours_keys

    @property
    def bound_to_one_host(self) -> "str | bool":
        """A url with a loopback address names another server on each host of a cluster."""
        return "write the name or the address that every host knows the server by" if is_this_host(self.url) else False

    def check_rows(self, rows: OutsideRows) -> None:
        kinds = {each.name: each.dataType for each in rows.schema}
        missing = [name for name in (*self._lanes, *filter(None, (self.body,))) if name not in kinds]
        if missing:
            raise FieldError(
                f"{self._what} is made of fields that its rows do not have",
                found=", ".join(missing),
                expected=list(kinds),
            )
        for name in {*self._lanes, *([self.body] if self.body else kinds)}:
            check_json(kinds[name], f"the field {name!r} of {self._what}")

    def decided_with(self) -> Mapping[str, Any]:
        """With a part of the keys that no other decision has: a transaction that is decided anew has other rows."""
        return {
            "rows_per_request": self.rows_per_request,
            "body": self.body,
            "ordered_by": list(self._lanes),
            "decision": uuid.uuid4().hex[:12],
        }

    def kept_in(self, folder: Place) -> "HttpState":
        kept = replace(self)
        object.__setattr__(kept, "_folder", folder)
        object.__setattr__(kept, "_sent_headers", self._sent_headers)
        return kept

    def check_store(self, rows: OutsideRows) -> None:
        """Looks whether the client is installed, the secrets are there, and the server takes connections."""
        self._target(self.decided_with()).check()

    def take_over(self, topology: str, incarnation: str, epoch: int) -> Mapping[int, OutsideMark]:
        log = self._log()
        log.make()
        log.read()
        record = log.update(lambda record: record.taken_over(incarnation, epoch, self.adopt))
        log.keep_letters()
        marks = {number: progress.mark for number, progress in record.parts.items()}
        return {**marks, -1: record.fence} if record.fence else marks

    def count_dead_letters(self) -> int:
        return self._log().read().refused if self.dead_letters else 0

    def publish(self, part: OutsidePart, batches: "Iterator[pa.RecordBatch]") -> None:
        sending = _Sending(self, self._log(), part, self._target(part.settings))
        sending.run(self._requests(part, batches))

    # --- parts

    @property
    def _what(self) -> str:
        return f"state {self.name}"

    @property
    def _lanes(self) -> tuple[str, ...]:
        return tuple(self.ordered_by or ())

    def _log(self) -> OutboxLog:
        assert self._folder is not None, "kept_in() was not called"
        return OutboxLog(self._folder)

    def _headers(self) -> Mapping[str, str]:
        if self._sent_headers is not None:
            return self._sent_headers
        usual = {"Content-Type": "application/json", "User-Agent": "trident-spark"}
        given = {**self.headers, **{name: self._secret(name, place) for name, place in self.secrets.items()}}
        named = {name.lower() for name in given}
        return {**{name: value for name, value in usual.items() if name.lower() not in named}, **given}

    def _secret(self, name: str, place: str) -> str:
        found = _KEPT_IN.fullmatch(place)
        assert found is not None
        word, kind, where = found.groups()
        what = f"the header {name} of {self._what}"
        if kind == "env":
            value = os.environ.get(where)
            if value is None:
                raise ConfigError(f"{what} is kept in an environment variable that is not set", expected=where)
        else:
            try:
                value = Path(where).read_text(encoding="utf-8").strip()
            except (OSError, ValueError) as problem:
                raise ConfigError(
                    f"{what} is kept in a file that cannot be read", found=described(problem), expected=where
                ) from None
        if not _HEADER_VALUE.fullmatch(value):
            raise ConfigError(f"{what} cannot be used", expected=f"one line of ASCII in {kind}:{where}")
        return f"{word} {value}" if word else value

    def _lanes_of(self, settings: Mapping[str, Any]) -> tuple[str, ...]:
        """The fields of ``ordered_by`` as decided; a decision of an older release has none, and takes those of now."""
        return tuple(settings.get("ordered_by", self._lanes))

    def _target(self, settings: Mapping[str, Any]) -> Target:
        """The server, asked as the requests of a decision are cut, whatever the arguments are by now."""
        ordered = bool(self._lanes_of(settings)) and settings.get("rows_per_request", 1) > 1
        return Target(
            self.url,
            self.method,
            self._headers(),
            self.key_header,
            frozenset(self.accepts),
            self.timeout_secs,
            1 if ordered else self.concurrency,
            self.ca,
            self.certificate,
            self.private_key,
            self.proxy,
            self._what,
        )

    def _requests(self, part: OutsidePart, batches: "Iterator[pa.RecordBatch]") -> Iterator[Request]:
        """The requests of a part, the same with the same keys whenever it is published."""
        settings, mark, first = part.settings, part.mark, 0
        size, body, lanes_by = settings.get("rows_per_request", 1), settings.get("body"), self._lanes_of(settings)
        stem = f"{mark.incarnation}-{mark.txid}-{part.state}-{settings.get('decision', '')}-{part.number}"
        waiting: list[tuple[bytes, str]] = []

        def made_of(batch: "pa.RecordBatch") -> Sequence[bytes | None]:
            if body is not None:
                return values_alone(batch, body, self._what)
            return objects(batch, batch.schema.names, self._what)

        def lanes_of(batch: "pa.RecordBatch") -> Sequence[bytes | None]:
            return objects(batch, lanes_by, self._what)

        for batch in batches:
            names = [*lanes_by, *([body] if body is not None else [])]
            if missing := [name for name in names if name not in batch.schema.names]:
                raise FieldError(
                    f"rows of {self._what} were decided without a field that their requests are made of",
                    found=", ".join(missing),
                    expected=batch.schema.names,
                    action="start with ordered_by= and body= as they were, until these rows are sent",
                )
            lanes = with_problems(lanes_of, batch) if lanes_by else [(None, "")] * batch.num_rows
            for (made, problem), (lane, _) in zip(with_problems(made_of, batch), lanes):
                if size == 1:
                    yield Request(first, 1, f"{stem}-{first}", made or b"", lane, problem)
                    first += 1
                    continue
                waiting.append((made or b"null", problem))
                if len(waiting) == size:
                    yield _array(first, stem, waiting)
                    first, waiting = first + size, []
        if waiting:
            yield _array(first, stem, waiting)


def _array(first: int, stem: str, rows: Sequence[tuple[bytes, str]]) -> Request:
    body = b"[" + b",".join(made for made, _ in rows) + b"]"
    problem = next((problem for _, problem in rows if problem), "")
    return Request(first, len(rows), f"{stem}-{first}", body, problem=problem)


class _Sending:
    """The publication of one part."""

    def __init__(self, state: HttpState, log: OutboxLog, part: OutsidePart, target: Target) -> None:
        self._state, self._log, self._part, self._target = state, log, part, target
        self._settled = 0  # rows, as the record says
        self._said_at = self._checked_at = time.monotonic()

    def run(self, requests: Iterator[Request]) -> None:
        part, what = self._part, self._state._what
        record = self._log.read()
        settled = record.begins(part, what)
        self._log.keep_letters()
        if settled is None:
            self._put_mark()
            return
        secs = record.wait_until - time.time()
        if secs > RETRY_AFTER_SECS_MAX:  # the clock of the machine that wrote it was ahead of this one
            secs, until = RETRY_AFTER_SECS_MAX, time.time() + RETRY_AFTER_SECS_MAX
            self._log.update(lambda record: record.waiting(part, until))
        if secs > 0:
            raise StateAway(f"{what}: the server asks to wait for {secs:.0f} s more")
        self._settled = settled
        rate = self._state.rate and self._state.rate / self._state.partitions
        sender = Sender(self._target, rate, self._state.dead_letters, self._check_fence)
        size = self._target.concurrency * _REQUESTS_OF_A_LANE
        size = max(1, min(size, int(rate))) if rate else size
        rows, chunk = settled, []
        for request in requests:
            if request.first < settled:
                continue
            chunk.append(request)
            if len(chunk) == size:
                rows = self._send(sender, chunk)
                chunk = []
        if chunk:
            rows = self._send(sender, chunk)
        self._say(rows, [], done=True)

    def _send(self, sender: Sender, chunk: Sequence[Request]) -> int:
        """Sends requests, and writes down how far they came; returns how many rows are settled."""
        count, refused, error = sender.send(chunk)
        rows = chunk[count - 1].first + chunk[count - 1].rows if count else chunk[0].first
        if refused or (rows > self._settled and (error or time.monotonic() - self._said_at > _PROGRESS_SECS)):
            self._say(rows, refused, done=False)
        if isinstance(error, RetryLater):
            until = time.time() + error.secs
            self._log.update(lambda record: record.waiting(self._part, until))
        if error is not None:
            raise error
        return rows

    def _check_fence(self) -> None:
        """Raises StaleEpoch once a later coordinator has taken the state over."""
        now = time.monotonic()
        if now - self._checked_at > _FENCE_SECS:
            self._checked_at = now
            self._log.read().begins(self._part, self._target.what)

    def _say(self, rows: int, refused: Sequence[Refusal], done: bool) -> None:
        before, part = self._settled, self._part
        letters = None
        if refused:
            # Of the decision: another one of the same number has other rows, and dead letters of its own.
            of = f"{part.mark.incarnation}-{part.mark.txid:020d}-{part.settings.get('decision', '')}"
            name = f"{of}-{part.number:04d}-{before:012d}.jsonl"
            letters = Letters(name, tuple(self._letter(one) for one in refused))
        self._log.update(lambda record: record.settled(part, before, rows, done, letters))
        self._log.keep_letters()
        self._settled, self._said_at = rows, time.monotonic()

    def _put_mark(self) -> None:
        part, what = self._part, self._target.what

        def marked(record: Any) -> Any:
            record.begins(part, what)
            progress = replace(record.parts[part.number], mark=part.mark)
            return replace(record, parts={**record.parts, part.number: progress})

        self._log.update(marked)

    def _letter(self, refusal: Refusal) -> Mapping[str, Any]:
        request, mark = refusal.request, self._part.mark
        try:
            body, form = request.body.decode(), "text"
        except UnicodeDecodeError:
            body, form = base64.b64encode(request.body).decode(), "base64"
        return {
            "txid": mark.txid,
            "attempt_id": mark.attempt_id,
            "part": self._part.number,
            "row": request.first,
            "rows": request.rows,
            "key": request.key,
            "status": refusal.status,
            "answer": refusal.answer,
            "body": body,
            "body_form": form,
            "given_up_at": datetime.now(timezone.utc).isoformat(),
        }
