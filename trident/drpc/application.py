"""Answers requests to DRPC streams over HTTP, while the batches run.

==========================================  ====================================================
``POST /drpc/<function>``                   the arguments as a JSON list or object, with
                                            Content-Type application/json; else the text of the
                                            body is the only argument
``GET /drpc/<function>/<argument>``         the rest of the path is the only argument, as in Storm
``GET /drpc``                               the functions, with their arguments and results
``GET /health``                             200 in the process that leads, else 503
==========================================  ====================================================

``?timeout_secs=5`` gives a request another time than 30 seconds, at most 300.
An answer is
``{"function", "request_id", "as_of": {group: txid}, "rows": [{field: value}]}``
(values: :mod:`trident.drpc.values`), a refusal ``{"error": text}`` with status
400 (the arguments), 401 (the token), 403 (a page of another site), 404 (no such
function), 413 and 431 (too large), 500 (a user's function raised, or the answer
is too large), 503 (this process does not lead,
enough requests run already, or states change faster than they can be read) or
504 (not answered in time).

Functions run in threads of their own, as many as requests may run; no further request waits for its turn. All else is
answered by the thread of the loop, or in threads of the library, so whatever the functions do, ``/health`` is answered.

Without a token every user of this machine is answered, with these limits:

- not a web page in a browser of this machine: a request must have been made to
  a loopback name, and not from a page of another site;
- an error that the caller did not make is told by the function's name, the
  error's class and an id; its text, with paths and values of rows, is in the
  log under that id. (Routes beside those of requests have limits of their own:
  the live page shows failures and dead letters in full.)
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import math
import re
import traceback
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol
from urllib.parse import unquote_to_bytes

from pyspark.sql.types import StructType
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import Message, Receive, Scope, Send

from trident.config_kinds import is_loopback
from trident.coordinators.errors import (
    DrpcError,
    DrpcTimeout,
    NotLeading,
    TridentError,
    UnknownFunction,
    WrongArguments,
)
from trident.coordinators.threads import DaemonPool
from trident.drpc.requests import _AT_ONCE, TIMEOUT_SECS, Answer, find_plan
from trident.drpc.values import as_json, read_json
from trident.planning.requests import DrpcPlan

log = logging.getLogger("trident.http")
_BODY_BYTES_MAX = 1 << 20
HEADER_BYTES_MAX = 256 << 10
HEADERS_TOO_LARGE = f"the headers are too large; expected: less than {HEADER_BYTES_MAX} bytes"
# Of requests that are read, and answers that are not sent: all together.
HELD_BYTES_MAX = 64 << 20
_PIECE_BYTES = 1 << 16
# In the scope of a request: set to True where its client was let in; and how many bytes of it are held.
LET_IN = "trident.let_in"
_HELD = "trident.held_bytes"
# These are answered without the token: they tell nothing.
_OPEN = re.compile("/|/ui|/page/[^/]*|/health")
# The rows of an answer, as JSON: it waits in memory until the client has read it.
_ANSWER_BYTES_MAX = 8 << 20
_DEPTH_MAX = 100
_TIMEOUT_SECS_MAX = 300.0
_AGAIN = {"Retry-After": "1"}
_JSON = "application/json; charset=utf-8"
# RFC 9112 3.2: a name or an IPv6 address in brackets, and perhaps a port.
_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._~%!$&'()*+,;=-]*))(?::[0-9]*)?")
_STATUS: tuple[tuple[type[Exception], int], ...] = (
    (UnknownFunction, 404),
    (WrongArguments, 400),
    (NotLeading, 503),
    (DrpcTimeout, 504),
    (DrpcError, 503),
)
# Everybody is told these in full: nothing in them comes from the user's code or data.
_CALLER_ERRORS = (UnknownFunction, WrongArguments, NotLeading, DrpcTimeout)


class Answers(Protocol):
    """Whom the server asks: see :class:`trident.drpc.endpoint.DrpcFront`."""

    name: str
    plans: dict[str, DrpcPlan]

    @property
    def is_leader(self) -> bool: ...

    @property
    def role(self) -> str: ...

    def answer(self, function: str, args: Sequence[Any], named: Mapping[str, Any], timeout_secs: float) -> Answer: ...


class AnswerNotWritable(TridentError):
    """An answer holds a value that Python or JSON has no notation for."""


class AnswerTooLarge(AnswerNotWritable):
    """An answer would take too much memory until it is read."""


class Application:
    """The ASGI application: who may ask, the routes, and errors as answers.

    Args:
        routes: answered beside those of requests; what they raise is answered as for requests.
    """

    def __init__(self, token: str | None, front: Answers, routes: Sequence[Route] = ()) -> None:
        self._token = token.encode() if token else None
        self._front = front
        own = [
            Route("/drpc", self._functions),
            Route("/drpc/{function}", self._post, methods=["POST"]),
            Route("/drpc/{function}/{argument:path}", self._get),
            Route("/health", self._health),
        ]
        self._router = Router([*own, *routes], redirect_slashes=False)
        self._pool = DaemonPool(_AT_ONCE, "trident-http")
        self._running = self._held = 0

    def close(self) -> None:
        """Its threads end with what they run."""
        self._pool.shutdown(wait=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"], scope[_HELD], request = self, 0, Request(scope, receive)
        try:
            try:
                refusal = self._refused(request)
                while refusal is not None and (await receive()).get("more_body"):
                    pass  # answered before it has sent all, a client might not read the answer
                await (refusal or self._router)(scope, *self._bounded(scope, receive, send))
            except (ClientDisconnect, asyncio.CancelledError):
                return  # no client waits for an answer
            except HTTPException as problem:
                await _error(problem.status_code, problem.detail, problem.headers)(scope, receive, send)
            except Exception as error:
                await self._failed(error, scope.get("path_params", {}).get("function"))(scope, receive, send)
        finally:
            self._held -= scope[_HELD]

    def _bounded(self, scope: Scope, receive: Receive, send: Send) -> tuple[Receive, Send]:
        """Both with their limits. An answer is sent in pieces, each when its client has read those before."""
        started: list[Message] = []
        read = 0

        async def received() -> Message:
            nonlocal read
            message = await receive()
            size = len(message.get("body", b""))
            read += size
            if read > _BODY_BYTES_MAX:
                while message.get("more_body"):
                    message = await receive()
                raise HTTPException(413, f"the body is too large; expected: at most {_BODY_BYTES_MAX} bytes")
            self._hold(scope, size)
            return message

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                started.append(message)  # with the body: until then there may be a refusal
                return
            body = message.get("body", b"")
            self._hold(scope, len(body))
            while started:
                await send(started.pop())
            for start in range(0, len(body) or 1, _PIECE_BYTES):
                more = message.get("more_body", False) or start + _PIECE_BYTES < len(body)
                await send({**message, "body": body[start : start + _PIECE_BYTES], "more_body": more})
            self._hold(scope, -len(body))

        return received, sent

    def _hold(self, scope: Scope, size: int) -> None:
        """Counts bytes that wait in memory, until the end of the request at most."""
        if size > 0 and self._held + size > HELD_BYTES_MAX:
            found = f"too much waits to be read; found: {HELD_BYTES_MAX >> 20} MiB; expected: less"
            raise HTTPException(503, found, _AGAIN)
        self._held += size
        scope[_HELD] += size

    def _failed(self, error: Exception, function: str | None) -> Response:
        status = next((code for kind, code in _STATUS if isinstance(error, kind)), 500)
        if isinstance(error, _CALLER_ERRORS):
            log.debug("request answered with %d", status, exc_info=error)
            return _error(status, str(error))
        error_id = uuid.uuid4().hex[:8]
        what = f"function {function!r}" if function else "the request"
        log.error("error %s: %s failed, answered with %d", error_id, what, status, exc_info=error)
        if self._token is None and not isinstance(error, AnswerNotWritable):
            text = f"{what} failed with {type(error).__name__}"
        else:
            text = str(error) if isinstance(error, TridentError) else _first_line(error)
        return _error(status, f"{text}; the log of the process that answered has the whole as error {error_id}")

    # --- who may ask --------------------------------------------------------------------------

    def _refused(self, request: Request) -> Response | None:
        if sum(len(name) + len(value) for name, value in request.scope["headers"]) >= HEADER_BYTES_MAX:
            return _error(431, HEADERS_TOO_LARGE)
        given = request.headers.get("Host", "")
        host = _host(given)
        if host is None:
            return _error(
                400,
                f"the header Host cannot be read; found: {given[:100]!r}; expected: a name or an address, "
                "and perhaps a port",
            )
        if self._token is None:
            refusal = _refused_without_token(request, host)
            request.scope[LET_IN] = refusal is None
            return refusal
        if _OPEN.fullmatch(request.scope["path"]):
            return None
        scheme, _, presented = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() == "bearer" and hmac.compare_digest(presented.strip().encode(), self._token):
            request.scope[LET_IN] = True
            return None
        text = "the request has no token, or another one; expected: Authorization: Bearer <http_token>"
        return _error(401, text, {"WWW-Authenticate": "Bearer"})

    # --- the routes ---------------------------------------------------------------------------

    async def _health(self, request: Request) -> Response:
        front = self._front
        return _json({"topology": front.name, "role": front.role}, 200 if front.is_leader else 503)

    async def _functions(self, request: Request) -> Response:
        return _json(
            {
                name: {
                    kind: {field.name: field.dataType.simpleString() for field in schema.fields}
                    for kind, schema in (("arguments", plan.arguments), ("result", plan.result))
                }
                for name, plan in self._front.plans.items()
            }
        )

    async def _get(self, request: Request) -> Response:
        try:
            # In the argument, bytes that are not UTF-8 have been replaced.
            unquote_to_bytes(request.scope["raw_path"]).decode()
        except UnicodeDecodeError as problem:
            raise WrongArguments("the path cannot be read", found=str(problem), expected="text in UTF-8") from None
        return await self._execute(request, lambda: request.path_params["argument"])

    async def _post(self, request: Request) -> Response:
        body = await request.body()
        kind = request.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        is_json = kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))
        return await self._execute(request, lambda: _given(body, is_json))

    async def _execute(self, request: Request, read: Callable[[], Any]) -> Response:
        timeout_secs, function = _timeout_secs(request), request.path_params["function"]
        plan = find_plan(self._front.plans, function)
        if self._running >= _AT_ONCE:
            found = f"{_AT_ONCE} that run; expected: fewer. Ask again, after the seconds that Retry-After says"
            raise HTTPException(503, f"too many requests; found: {found}", _AGAIN)
        self._running += 1
        try:
            answered = self._pool.submit(self._answered, function, plan.result, read, timeout_secs)
            return Response(await asyncio.wrap_future(answered), media_type=_JSON)
        finally:
            self._running -= 1

    def _answered(self, function: str, result: StructType, read: Callable[[], Any], timeout_secs: float) -> bytes:
        """The answer as JSON. In a thread, which may wait."""
        given = read()
        named = given if isinstance(given, dict) else {}
        args = given if isinstance(given, list) else [] if isinstance(given, dict) else [given]
        try:
            answer = self._front.answer(function, args, named, timeout_secs)
        except Exception as problem:
            if isinstance(problem, TridentError) or not _is_of_values(problem):
                raise
            raise _not_writable(function) from problem
        about = {"function": function, "request_id": answer.request_id, "as_of": answer.as_of}
        return _written(function, about, answer, result)


# --- what is asked ----------------------------------------------------------------------------


def _host(text: str) -> str | None:
    """The host of a Host header without its port; None for what is none."""
    match = _HOST.fullmatch(text)
    return None if match is None else match[1] or match[2] or ""


def _refused_without_token(request: Request, host: str) -> Response | None:
    """Browsers let any page ask this machine; only what they say about the page tells it from a user."""
    if not is_loopback(host):
        return _error(400, "without http_token only requests to a loopback name such as 127.0.0.1 are answered")
    origin, site = request.headers.get("Origin"), request.headers.get("Sec-Fetch-Site")
    if origin is not None and not is_loopback(_host(origin.partition("://")[2]) or ""):
        found = f"Origin: {origin[:100]}"
    elif site is not None and site not in ("same-origin", "same-site", "none"):
        found = f"Sec-Fetch-Site: {site[:100]}"
    else:
        return None
    return _error(
        403,
        f"without http_token no page of another site is answered; found: {found}; expected: a page of this "
        "machine, or no browser. Set http_token, and ask with Authorization: Bearer <http_token>",
    )


def _given(body: bytes, is_json: bool) -> Any:
    try:
        text = body.decode()
        given = read_json(text) if is_json else text
        _check_json(given)
        return given
    except RecursionError:
        found = f"JSON nested more than {_DEPTH_MAX} deep"
    except UnicodeEncodeError as problem:
        found = f"half of a surrogate pair, {problem.object[problem.start]!r}"
    except ValueError as problem:
        found = str(problem)
    raise WrongArguments(
        "the body cannot be read", found=found, expected=f"JSON at most {_DEPTH_MAX} deep, or text, in UTF-8"
    )


def _check_json(given: Any, depth: int = 0) -> None:
    """Raises UnicodeEncodeError where text is none, RecursionError where lists and objects are nested too deep."""
    if isinstance(given, str):
        given.encode()
    elif isinstance(given, (list, dict)):
        if depth == _DEPTH_MAX:
            raise RecursionError
        for item in given:
            _check_json(item, depth + 1)
        for item in given.values() if isinstance(given, dict) else ():
            _check_json(item, depth + 1)


def _timeout_secs(request: Request) -> float:
    given = request.query_params.get("timeout_secs")
    if given is None:
        return TIMEOUT_SECS
    try:
        timeout_secs = float(given)
    except ValueError:
        timeout_secs = math.nan
    if not 0 < timeout_secs <= _TIMEOUT_SECS_MAX:
        raise WrongArguments(
            "timeout_secs cannot be used",
            found=repr(given[:100]),
            expected=f"a number of seconds, more than 0 and at most {_TIMEOUT_SECS_MAX:g}",
            action="ask for less at once; query.execute in the leading process may take longer",
        )
    return timeout_secs


# --- what is answered -------------------------------------------------------------------------


def _row_as_json(function: str, row: Sequence[Any], result: StructType) -> dict[str, Any]:
    written: dict[str, Any] = {}
    for field, value in zip(result.fields, row):
        try:
            written[field.name] = as_json(value, field.dataType)
        except Exception as problem:
            raise _not_writable(function, f" in field {field.name!r} ({field.dataType.simpleString()})") from problem
    return written


def _written(function: str, about: dict[str, Any], answer: Sequence[Any], result: StructType) -> bytes:
    """``{"function": …, "as_of": …, "rows": [ … ]}``, row by row: never more of it than an answer may have."""
    written = bytearray(_as_bytes(about)[:-1] + b', "rows": [')
    for number, row in enumerate(answer):
        written += (b", " if number else b"") + _as_bytes(_row_as_json(function, row, result))
        if len(written) > _ANSWER_BYTES_MAX:
            raise AnswerTooLarge(
                f"the answer of function {function!r} is too large for HTTP",
                found=f"more than {_ANSWER_BYTES_MAX} bytes of JSON in {number + 1} of {len(answer)} rows",
                expected=f"at most {_ANSWER_BYTES_MAX} bytes",
                action="ask for less at once, aggregate in the function, or read the state with trident.read",
            )
    return bytes(written + b"]}\n")


def _is_of_values(problem: Exception) -> bool:
    """Tells whether Spark has answered, and PySpark has no Python value for what it said."""
    return any(frame.name == "fromInternal" for frame in traceback.extract_tb(problem.__traceback__))


def _not_writable(function: str, where: str = "") -> AnswerNotWritable:
    return AnswerNotWritable(
        f"the answer of function {function!r} has a value{where} that cannot be written",
        expected="timestamps and dates of the years 1 to 9999 in UTC, and no interval of months",
        action="let the function bring the value into that range, or make it text",
    )


def _json(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(_as_bytes(value) + b"\n", status, headers, media_type=_JSON)


def _as_bytes(value: Any) -> bytes:
    # A lone surrogate, which UTF-8 has no bytes for, becomes \udXXX: so JSON writes it too.
    return json.dumps(value, ensure_ascii=False, allow_nan=False).encode("utf-8", "backslashreplace")


def _error(status: int, text: str, headers: Mapping[str, str] | None = None) -> Response:
    return _json({"error": text}, status, headers)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:500]}" if lines else type(error).__name__
