"""Sends requests to an HTTP server: several at a time, not too fast, again where the server may take them later."""

from __future__ import annotations

import email.utils
import os
import random
import socket
import ssl
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from trident.coordinators.errors import ConfigError, EnvironmentProblem, StateAway, TridentError, described
from trident.coordinators.retries import backoff_secs
from trident.coordinators.threads import DaemonPool
from trident.states.core.addresses import without_credentials
from trident.states.core.imports import client_module

# Bounds the time of a whole HTTP request, whatever arrives meanwhile: httpx bounds each read alone.


_PIECE_BYTES = 65_536


class Deadline(threading.local):
    """The end of the request of this thread; it begins with the first thing that the network does for it."""

    secs = 0.0
    until: float | None = None

    def begin(self, secs: float) -> None:
        self.secs, self.until = secs, None

    def left(self, secs: float | None) -> float:
        """The seconds that a step may take; 0 or less: none."""
        now = time.monotonic()
        if self.until is None:
            self.until = now + self.secs
        left = self.until - now
        return left if secs is None else min(secs, left)


DEADLINE = Deadline()


def bound(transport: Any) -> Any:
    """Has the connections of an httpx.HTTPTransport keep the thread's DEADLINE.

    httpx hands no network backend on to httpcore, which has one for this, so that it is put into its pool.
    """
    pool = transport._pool
    pool._network_backend = _Backend(pool._network_backend)
    return transport


class _Backend:
    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def connect_tcp(self, *args: Any, timeout: float | None = None, **more: Any) -> Any:
        return _Stream(self._inner.connect_tcp(*args, timeout=_left(timeout, "ConnectTimeout"), **more))


class _Stream:
    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def read(self, max_bytes: int, timeout: float | None = None) -> Any:
        return self._inner.read(max_bytes, timeout=_left(timeout, "ReadTimeout"))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        for at in range(0, len(buffer), _PIECE_BYTES):
            self._inner.write(buffer[at : at + _PIECE_BYTES], timeout=_left(timeout, "WriteTimeout"))

    def start_tls(self, *args: Any, timeout: float | None = None, **more: Any) -> Any:
        return _Stream(self._inner.start_tls(*args, timeout=_left(timeout, "ConnectTimeout"), **more))


def _left(timeout: float | None, error: str) -> float:
    left = DEADLINE.left(timeout)
    if left <= 0:
        raise getattr(client_module("httpcore", "an HttpState", "the HTTP client", "httpx", "http"), error)(
            "no whole answer in time"
        )
    return left


# A request that fails is sent so often, with pauses, before the publication fails, which `trident status` shows.
_TRIES = 4
_FIRST_SECS, _PAUSE_SECS = 0.2, 5.0
# A server that asks for more than this is believed to mean this.
RETRY_AFTER_SECS_MAX = 3600.0
_CONNECT_SECS = 10.0
_ANSWER_BYTES, _SHOWN_CHARS = 65_536, 1000
_LATER = (408, 425, 429)
# A request with the same key is under way, says the draft of the header's standard; or a conflict, for good.
_CONFLICT = 409
# A server may still be at work on a request whose answer was lost, in this process or in the one before: so many
# timeout_secs long a conflict is believed to be that.
_CONFLICT_TIMES = 4
# These say that the url or the credentials are wrong, and nothing of the rows.
_OF_ALL = (401, 403, 404, 405, 407)


def httpx_module() -> Any:
    return client_module("httpx", "an HttpState", "the HTTP client", "httpx", "http")


@dataclass(frozen=True)
class Request:
    """One request.

    Attributes:
        first: the number of its first row in the part.
        rows: how many it holds.
        key: the same whenever these rows are sent.
        problem: why it cannot be sent, if so.
        lane: of two with the same lane the second waits for the first; None: any order.
    """

    first: int
    rows: int
    key: str
    body: bytes = field(repr=False)
    lane: Any = None
    problem: str = ""


@dataclass(frozen=True)
class Refusal:
    """A request that the server does not take, whenever it comes; one with status 0 was not sent."""

    request: Request
    status: int
    answer: str = field(repr=False)


class RetryLater(StateAway):
    """The server accepts no request for some time.

    Attributes:
        secs: how long.
    """

    def __init__(self, message: str, secs: float, **more: Any) -> None:
        super().__init__(message, **more)
        self.secs = secs


@dataclass(frozen=True)
class Target:
    """The server and how it is asked; goes to tasks with its secrets, and into no text.

    Attributes:
        headers: of each request, with the secret ones.
        accepts: statuses beside 2xx that say that the server has the rows.
        ca, certificate, private_key: files of this machine.
        what: the state, for messages.
    """

    url: str
    method: str
    headers: Mapping[str, str] = field(repr=False)
    key_header: str
    accepts: Collection[int]
    timeout_secs: float
    concurrency: int
    ca: str | None
    certificate: str | None
    private_key: str | None
    proxy: str | None = field(repr=False)
    what: str

    @property
    def shown(self) -> str:
        return without_credentials(self.url)

    def check(self) -> None:
        """Looks whether the server takes connections; asks it for nothing.

        Raises:
            StateAway: it does not answer.
            ConfigError, EnvironmentProblem: its certificate or one of ours cannot be used.
        """
        httpx_module()
        context = self._context()
        if self.proxy is not None:
            return
        parts = urlsplit(self.url)
        host = parts.hostname or ""
        try:
            connection = socket.create_connection(
                (host, parts.port or (443 if context else 80)), min(_CONNECT_SECS, self.timeout_secs)
            )
            with connection:
                if context is not None:
                    context.wrap_socket(connection, server_hostname=host).close()
        except ssl.SSLCertVerificationError as error:
            raise EnvironmentProblem(
                f"{self.what} does not trust the server at {self.shown}",
                found=error.verify_message,
                expected="a certificate of an authority that it knows",
                action="name the file of the authority's certificate: ca=",
            ) from None
        except OSError as error:
            raise StateAway(
                f"{self.what}: the server at {self.shown} does not answer", found=described(error)
            ) from None

    def _context(self) -> ssl.SSLContext | None:
        if not self.url.startswith("https:"):
            return None
        try:
            context = ssl.create_default_context(cafile=self.ca) if self.ca else httpx_module().create_ssl_context()
            if self.certificate is not None:
                context.load_cert_chain(self.certificate, self.private_key)
        except OSError as error:  # ssl's errors are some, too
            raise ConfigError(
                f"the certificates of {self.what} cannot be used", found=described(error), expected="files in PEM form"
            ) from None
        return context

    def client(self) -> Any:
        """The transport of this process: it keeps connections, follows no redirect, and has no cookies and no log."""
        parts = (self.ca, self.certificate, self.private_key)
        files = tuple((path, os.stat(path).st_mtime_ns) for path in parts if path is not None)
        url = urlsplit(self.url)
        # With state and server: one that hangs takes no connection from another.
        at = (os.getpid(), self.what, url.scheme, url.hostname, url.port, files, self.proxy, self.concurrency)
        with _lock:
            if at not in _clients:
                httpx = httpx_module()
                limits = httpx.Limits(max_connections=self.concurrency, max_keepalive_connections=self.concurrency)
                verify = self._context() or False
                try:
                    made = httpx.HTTPTransport(verify=verify, trust_env=False, limits=limits, proxy=self.proxy)
                except (httpx.InvalidURL, ValueError):  # not its text: it shows the password
                    raise ConfigError(f"the proxy of {self.what} cannot be used", expected="http://host:port") from None
                _clients[at] = bound(made)
            return _clients[at]


_clients: dict[tuple[Any, ...], Any] = {}
_lock = threading.Lock()


class RateLimiter:
    """Limits the requests a second of this process, over all publications to a url."""

    def __init__(self) -> None:
        self._next: dict[tuple[str, float], float] = {}
        self._lock = threading.Lock()

    def turn(self, url: str, rate: float) -> float:
        """Takes the next turn; returns the seconds until then."""
        with self._lock:
            now = time.monotonic()
            at = max(now, self._next.get((url, rate), 0.0))
            self._next[url, rate] = at + 1 / rate
            return at - now


_PACE = RateLimiter()


class Sender:
    """Sends the requests of one part.

    Args:
        rate: requests a second at most; None: as fast as it goes.
        past_refusals: whether it goes on behind a request that is refused for good. Else that is an error, and those
            behind it in its lane are not sent.
        check: raises when this process may send no more; called before each request.
    """

    def __init__(self, target: Target, rate: float | None, past_refusals: bool, check: Callable[[], None]) -> None:
        self._target, self._rate, self._past_refusals, self._check = target, rate, past_refusals, check
        self._stop = threading.Event()
        self._not_before = 0.0  # monotonic

    def send(self, requests: Sequence[Request]) -> tuple[int, list[Refusal], BaseException | None]:
        """Sends them; those with one lane in their order.

        Returns:
            how many of them, from the first on, are settled; the refusals among these; what kept the next one back.
        """
        lanes: dict[Any, list[int]] = {}
        for number, request in enumerate(requests):
            lanes.setdefault(("", number) if request.lane is None else ("lane", request.lane), []).append(number)
        outcomes: list[Refusal | bool | None] = [None] * len(requests)
        errors: list[BaseException] = []
        client = self._target.client()
        self._stop.clear()

        def work(numbers: Sequence[int]) -> None:
            try:
                for number in numbers:
                    if self._stop.is_set():
                        return
                    outcomes[number] = self._settled(client, requests[number]) or True
            except BaseException as error:
                errors.append(error)
                self._stop.set()

        if self._target.concurrency == 1 or len(lanes) == 1:
            work(range(len(requests)))
        else:
            pool = DaemonPool(min(self._target.concurrency, len(lanes)), "trident-http")
            for lane in [pool.submit(work, numbers) for numbers in lanes.values()]:
                lane.result()
            pool.shutdown()
        settled = next((number for number, outcome in enumerate(outcomes) if outcome is None), len(outcomes))
        refused = [outcome for outcome in outcomes[:settled] if isinstance(outcome, Refusal)]
        # A refusal goes before the server's wish to wait, and that before its silence.
        error = min(errors, key=lambda error: isinstance(error, StateAway) + (type(error) is StateAway), default=None)
        return settled, refused, error

    def _settled(self, client: Any, request: Request) -> Refusal | None:
        """Sends a request until the server has taken it, or refused it for good."""
        if request.problem:
            if not self._past_refusals:
                raise TridentError(request.problem, action="set dead_letters=True, then start again")
            return Refusal(request, 0, request.problem)
        failures = conflicts = 0
        conflict_since = 0.0
        while True:
            self._wait_for_turn()
            status, answer, retry_after = self._answer(client, request)
            if status in self._target.accepts or 200 <= status < 300:
                return None
            if status == _CONFLICT:
                conflicts += 1
                conflict_since = conflict_since if conflicts > 1 else time.monotonic()
                secs = time.monotonic() - conflict_since
                refused = conflicts >= _TRIES and secs >= _CONFLICT_TIMES * self._target.timeout_secs
            else:
                failures, conflicts = failures + 1, 0
                refused = 0 < status < 500 and status not in _LATER
            if refused:
                return self._refused(request, status, answer)
            said = f"status {status}" if status else answer
            if retry_after is not None and retry_after > _PAUSE_SECS:
                retry_after = min(retry_after, RETRY_AFTER_SECS_MAX)
                raise RetryLater(
                    f"{self._target.what}: the server at {self._target.shown} asks to wait {retry_after:.0f} s",
                    retry_after,
                    found=said,
                )
            if failures >= _TRIES:
                raise StateAway(f"{self._target.what}: no answer of {self._target.shown} to a request", found=said)
            pause = max(
                retry_after or 0.0,
                backoff_secs(conflicts or failures, _FIRST_SECS, _PAUSE_SECS) * random.uniform(0.5, 1.0),
            )
            if retry_after is not None:
                self._not_before = max(self._not_before, time.monotonic() + retry_after)
            self._stop.wait(pause)

    def _wait_for_turn(self) -> None:
        until = self._not_before - time.monotonic()
        if until > 0:
            self._stop.wait(until)
        if self._rate is not None and (secs := _PACE.turn(self._target.url, self._rate)) > 0:
            self._stop.wait(secs)
        if self._stop.is_set():
            raise StateAway(f"{self._target.what}: another request has failed")
        self._check()

    def _refused(self, request: Request, status: int, answer: str) -> Refusal:
        target = self._target
        if 300 <= status < 400:
            raise TridentError(
                f"{target.what}: the server at {target.shown} sends requests elsewhere, which they do not follow",
                found=f"status {status}",
                expected="the url itself",
                action="write the url that it leads to, if that is to have the rows and the credentials",
            )
        if status in _OF_ALL or status < 200:
            raise TridentError(
                f"{target.what}: the server at {target.shown} takes no request of this url, method or credentials",
                found=f"status {status}",
                action="correct url=, method= or secrets=, then start again: the decided rows are sent then",
            )
        if not self._past_refusals:
            raise TridentError(
                f"{target.what}: the server at {target.shown} refuses a row for good",
                found=f"status {status} for {target.key_header}: {request.key}",
                action="have the server take it, or set dead_letters=True; then start again: the decided rows are sent",
            )
        return Refusal(request, status, answer)

    def _answer(self, client: Any, request: Request) -> tuple[int, str, float | None]:
        """Status, the beginning of the answer, and for how long the server asks to wait; status 0: there was none."""
        httpx, target = httpx_module(), self._target
        secs = target.timeout_secs
        timeout = {"connect": min(secs, _CONNECT_SECS), "read": secs, "write": secs, "pool": None}
        sent = httpx.Request(
            target.method,
            target.url,
            headers={**target.headers, target.key_header: request.key},
            content=request.body,
            extensions={"timeout": timeout},
        )
        DEADLINE.begin(secs)
        try:
            response = client.handle_request(sent)
            try:
                found = _begin(response.stream)
            finally:
                response.close()
        except httpx.LocalProtocolError:
            # Not its text: it may show a header.
            raise TridentError(f"{target.what}: its requests are none of HTTP", expected="other headers") from None
        except httpx.ProxyError as error:
            if str(error).startswith(tuple(map(str, _OF_ALL))):
                raise TridentError(
                    f"{target.what}: the proxy takes no request of these credentials, or to {target.shown}",
                    found=str(error),
                    action="correct proxy=, then start again: the decided rows are sent then",
                ) from None
            return 0, f"ProxyError: {_reason(error)}", None
        except httpx.TransportError as error:
            return 0, f"{type(error).__name__}: {_reason(error)}", None
        retry_after = _retry_after_secs(response.headers.get("retry-after")) if response.status_code >= 400 else None
        return response.status_code, found.decode("utf-8", "replace")[:_SHOWN_CHARS], retry_after


def _begin(stream: Any) -> bytes:
    """The beginning of an answer, which the server may send for ever: its status is there by now, and counts."""
    found = b""
    try:
        for piece in stream:
            found += piece
            if len(found) >= _ANSWER_BYTES:
                break
    except httpx_module().TimeoutException:
        pass
    return found


def _reason(error: BaseException) -> str:
    inner = error.__cause__
    while inner is not None and inner.__cause__ is not None:
        inner = inner.__cause__
    return str(error) or str(inner or "no answer in time")


def _retry_after_secs(header: str | None) -> float | None:
    """The seconds of a Retry-After, which may be a date."""
    if header is None:
        return None
    try:
        return max(0.0, float(header))
    except ValueError:
        pass
    try:
        at = email.utils.parsedate_to_datetime(header)
    except ValueError:
        return None
    return max(0.0, at.timestamp() - time.time())
