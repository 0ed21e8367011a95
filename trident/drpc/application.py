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

A request holds its thread as long as it runs. Fewer may run than there are
threads and no further one waits for its turn, so the routes that only tell
something are answered whatever the functions do.

Without a token every user of this machine is answered, with these limits:

- not a web page in a browser of this machine: a request must have been made to
  a loopback name, and not from a page of another site;
- an error that the caller did not make is told by the function's name, the
  error's class and an id; its text, with paths and values of rows, is in the
  log under that id. (Routes beside those of requests have limits of their own:
  the live page shows failures and dead letters in full.)
"""

from __future__ import annotations

import hmac
import json
import logging
import math
import re
import threading
import traceback
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pyspark.sql.types import StructType
from werkzeug.exceptions import HTTPException
from werkzeug.routing import Map, Rule
from werkzeug.wrappers import Request, Response

from trident.config_kinds import is_loopback
from trident.coordinators.errors import (
    DrpcError,
    DrpcTimeout,
    NotLeading,
    TridentError,
    UnknownFunction,
    WrongArguments,
)
from trident.drpc.limits import LET_IN
from trident.drpc.requests import _AT_ONCE, TIMEOUT_SECS, Answer, find_plan
from trident.drpc.values import as_json, read_json
from trident.planning.requests import DrpcPlan

log = logging.getLogger("trident.http")
# The rows of an answer, as JSON: it waits in memory until the client has read it.
_ANSWER_BYTES_MAX = 8 << 20
_DEPTH_MAX = 100
_TIMEOUT_SECS_MAX = 300.0
_RETRY_AFTER_SECS = 1
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
_TOLD = (UnknownFunction, WrongArguments, NotLeading, DrpcTimeout)
_RULES = {
    "functions": ("/drpc", "GET"),
    "post": ("/drpc/<function>", "POST"),
    "get": ("/drpc/<function>/<path:argument>", "GET"),
    "health": ("/health", "GET"),
}


@dataclass(frozen=True)
class Route:
    """A further path at the port, beside those of requests.

    Attributes:
        rule: the path, as werkzeug's ``Rule`` has it: "/state/<name>".
        answer: is called with the request and the rule's values; what it raises is answered as for requests.
        method: of HTTP.
        without_token: answered to everybody who may connect, as ``/health`` is: it must tell nothing.
        threads: so many of its answers, which it counts itself, may take long; the server has as many more threads.
    """

    rule: str
    answer: Callable[..., Response]
    method: str = "GET"
    without_token: bool = False
    threads: int = 0


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
    """The WSGI application: who may ask, the routes, and errors as answers.

    Args:
        routes: answered beside those of requests.
    """

    def __init__(self, token: str | None, front: Answers, routes: Sequence[Route] = ()) -> None:
        self._token = token.encode() if token else None
        self._front = front
        own = {name: getattr(self, f"_{name}") for name in _RULES}
        self._answers: dict[str, Callable[..., Response]] = own | {route.rule: route.answer for route in routes}
        self._open = {"health", *(route.rule for route in routes if route.without_token)}
        rules = [Rule(rule, endpoint=name, methods=[method]) for name, (rule, method) in _RULES.items()]
        rules += [Rule(route.rule, endpoint=route.rule, methods=[route.method]) for route in routes]
        self._map = Map(rules, merge_slashes=False, strict_slashes=False)  # an argument may be a URL
        self._slots = threading.Semaphore(_AT_ONCE)

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        request = Request(environ)
        response = self._respond(request)
        response.headers["Cache-Control"] = "no-store"
        return response(environ, start_response)

    def _respond(self, request: Request) -> Response:
        values: Mapping[str, Any] = {}
        try:
            try:
                endpoint, values = self._map.bind_to_environ(request.environ).match()
            except HTTPException as problem:
                return self._refused(request, "") or _http_error(problem)
            return self._refused(request, endpoint) or self._answers[endpoint](request, **values)
        except HTTPException as problem:
            return _http_error(problem)
        except Exception as error:
            return self._failed(error, values.get("function"))

    def _failed(self, error: Exception, function: str | None) -> Response:
        status = next((code for kind, code in _STATUS if isinstance(error, kind)), 500)
        if isinstance(error, _TOLD):
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

    def _refused(self, request: Request, endpoint: str) -> Response | None:
        given = request.environ.get("HTTP_HOST", "")
        host = _host(given)
        if host is None:
            return _error(
                400,
                f"the header Host cannot be read; found: {given[:100]!r}; expected: a name or an address, "
                "and perhaps a port",
            )
        if self._token is None:
            refusal = _refused_without_token(request, host)
            request.environ[LET_IN] = refusal is None
            return refusal
        if endpoint in self._open:
            return None
        scheme, _, presented = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() == "bearer" and hmac.compare_digest(presented.strip().encode(), self._token):
            request.environ[LET_IN] = True
            return None
        refusal = _error(401, "the request has no token, or another one; expected: Authorization: Bearer <http_token>")
        refusal.headers["WWW-Authenticate"] = "Bearer"
        return refusal

    # --- the routes ---------------------------------------------------------------------------

    def _health(self, request: Request) -> Response:
        front = self._front
        return _json({"topology": front.name, "role": front.role}, 200 if front.is_leader else 503)

    def _functions(self, request: Request) -> Response:
        return _json(
            {
                name: {
                    kind: {field.name: field.dataType.simpleString() for field in schema.fields}
                    for kind, schema in (("arguments", plan.arguments), ("result", plan.result))
                }
                for name, plan in self._front.plans.items()
            }
        )

    def _get(self, request: Request, function: str, argument: str) -> Response:
        try:
            # In the argument, bytes that are not UTF-8 have been replaced.
            request.environ["PATH_INFO"].encode("latin-1").decode()
        except UnicodeDecodeError as problem:
            raise WrongArguments("the path cannot be read", found=str(problem), expected="text in UTF-8") from None
        return self._execute(request, function, [argument], {})

    def _post(self, request: Request, function: str) -> Response:
        given = _body(request)
        if isinstance(given, dict):
            return self._execute(request, function, [], given)
        return self._execute(request, function, given if isinstance(given, list) else [given], {})

    def _execute(self, request: Request, function: str, args: list[Any], named: Mapping[str, Any]) -> Response:
        timeout_secs = _timeout_secs(request)
        result = find_plan(self._front.plans, function).result
        # A request that waited here would hold one of the threads that /health needs.
        if not self._slots.acquire(blocking=False):
            return _busy()
        try:
            try:
                answer = self._front.answer(function, args, named, timeout_secs)
            except Exception as problem:
                if isinstance(problem, TridentError) or not _is_of_values(problem):
                    raise
                raise _not_writable(function) from problem
            about = {"function": function, "request_id": answer.request_id, "as_of": answer.as_of}
            return _answered(function, about, answer, result)
        finally:
            self._slots.release()


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


def _body(request: Request) -> Any:
    try:
        text = request.get_data().decode()
        given = read_json(text) if request.is_json else text
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
    given = request.args.get("timeout_secs")
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


def _answered(function: str, about: dict[str, Any], answer: Sequence[Any], result: StructType) -> Response:
    """The answer row by row: never more of it in memory than an answer may have."""
    rows: list[bytes] = []
    size = 0
    for row in answer:
        rows.append((b", " if rows else b"") + _as_bytes(_row_as_json(function, row, result)))
        size += len(rows[-1])
        if size > _ANSWER_BYTES_MAX:
            raise AnswerTooLarge(
                f"the answer of function {function!r} is too large for HTTP",
                found=f"more than {_ANSWER_BYTES_MAX} bytes of JSON in {len(rows)} of {len(answer)} rows",
                expected=f"at most {_ANSWER_BYTES_MAX} bytes",
                action="ask for less at once, aggregate in the function, or read the state with trident.read",
            )
    # {"function": …, "as_of": …, "rows": [ … ]}, in the pieces that there are: joined it would be there twice.
    pieces = [_as_bytes(about)[:-1], b', "rows": [', *rows, b"]}\n"]
    return Response(pieces, 200, content_type=_JSON)


def _is_of_values(problem: Exception) -> bool:
    """Tells whether Spark has answered, and PySpark has no Python value for what it said."""
    return any(frame.name == "fromInternal" for frame in traceback.extract_tb(problem.__traceback__))


def _not_writable(function: str, where: str = "") -> AnswerNotWritable:
    return AnswerNotWritable(
        f"the answer of function {function!r} has a value{where} that cannot be written",
        expected="timestamps and dates of the years 1 to 9999 in UTC, and no interval of months",
        action="let the function bring the value into that range, or make it text",
    )


def _json(value: Any, status: int = 200) -> Response:
    return Response(_as_bytes(value) + b"\n", status, content_type=_JSON)


def _as_bytes(value: Any) -> bytes:
    # A lone surrogate, which UTF-8 has no bytes for, becomes \udXXX: so JSON writes it too.
    return json.dumps(value, ensure_ascii=False, allow_nan=False).encode("utf-8", "backslashreplace")


def _error(status: int, text: str) -> Response:
    return _json({"error": text}, status)


def _http_error(problem: HTTPException) -> Response:
    return _error(problem.code or 500, problem.description or problem.name)


def _busy() -> Response:
    refusal = _error(
        503,
        f"too many requests; found: {_AT_ONCE} that run; expected: fewer. Ask again, after the seconds that "
        "Retry-After says",
    )
    refusal.headers["Retry-After"] = str(_RETRY_AFTER_SECS)
    return refusal


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:500]}" if lines else type(error).__name__
