"""Requests to DRPC streams over HTTP, while the batches run.

==========================================  ====================================================
``POST /drpc/<function>``                   the arguments as a JSON list or object, with
                                            Content-Type application/json; else the text of the
                                            body is the only argument
``GET /drpc/<function>/<argument>``         the rest of the path is the only argument, as in Storm
``GET /drpc``                               the functions, with their arguments and results
``GET /health``                             200 in the process that leads, else 503
==========================================  ====================================================

``?timeout_secs=5`` gives a request another time than 30 seconds. An answer is
``{"function", "request_id", "as_of": {group: txid}, "rows": [{field: value}]}``
(values: :mod:`trident.drpc_values`), a refusal ``{"error": text}`` with status
400 (the arguments), 401 (the token), 404 (no such function), 500 (a user's
function raised), 503 (this process does not lead, or states change faster than
they can be read) or 504 (not answered in time).

Without a token only requests that were made to a loopback name are answered:
a web page cannot make a browser ask on its behalf under a name of its own.
"""

from __future__ import annotations

import errno
import hmac
import json
import logging
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol
from urllib.parse import urlsplit

from waitress import wasyncore
from waitress.server import create_server
from werkzeug.exceptions import HTTPException
from werkzeug.routing import Map, Rule
from werkzeug.wrappers import Request, Response

from coordinators.errors import (
    ConfigError,
    DrpcError,
    DrpcTimeout,
    NotLeading,
    TridentError,
    UnknownFunction,
    WrongArguments,
)
from trident.config_kinds import is_loopback, listen_address
from trident.drpc import TIMEOUT_SECS, Answer, check_timeout
from trident.drpc_plan import DrpcPlan
from trident.drpc_values import as_json

log = logging.getLogger("trident.http")
_THREADS = 8
_BODY_BYTES_MAX = 1 << 20
_STOP_SECS = 2.0
_STATUS: tuple[tuple[type[Exception], int], ...] = (
    (UnknownFunction, 404), (WrongArguments, 400), (ConfigError, 400), (NotLeading, 503), (DrpcTimeout, 504),
    (DrpcError, 503),
)  # fmt: skip
_ROUTES = Map(
    [
        Rule("/drpc", endpoint="functions", methods=["GET"]),
        Rule("/drpc/<function>", endpoint="post", methods=["POST"]),
        Rule("/drpc/<function>/<path:argument>", endpoint="get", methods=["GET"]),
        Rule("/health", endpoint="health", methods=["GET"]),
    ],
    merge_slashes=False,  # an argument may be a URL
    strict_slashes=False,
)


class Answers(Protocol):
    """Whom the server asks: see :class:`trident.drpc_front.DrpcFront`."""

    name: str
    plans: dict[str, DrpcPlan]

    @property
    def is_leader(self) -> bool: ...

    @property
    def role(self) -> str: ...

    def answer(
        self, function: str, args: Sequence[Any], named: Mapping[str, Any], timeout_secs: float
    ) -> Answer: ...


class HttpServer:
    """Listens from its making on; answers in threads of its own.

    Args:
        address: as the setting ``http``.
        token: as the setting ``http_token``.
        front: who answers.

    Raises:
        ConfigError: the address cannot be listened at.
        AddressInUse: another process listens there.
    """

    def __init__(self, address: str, token: str | None, front: Answers) -> None:
        self._listener = _listen(address)
        host, port = self._listener.getsockname()[:2]
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._map: dict[int, Any] = {}
        self._server = create_server(
            _Application(token, front), map=self._map, sockets=[self._listener], threads=_THREADS, ident=None,
            max_request_body_size=_BODY_BYTES_MAX, clear_untrusted_proxy_headers=True,
        )  # fmt: skip
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="trident-http", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Sends what is answered, then closes; requests that still run are not waited for."""
        self._server.task_dispatcher.shutdown(timeout=_STOP_SECS)
        self._stopped.set()
        self._server.pull_trigger()
        self._thread.join(_STOP_SECS)

    def _serve(self) -> None:
        try:
            while not self._stopped.is_set():
                wasyncore.loop(timeout=1.0, map=self._map, count=1)
            for _ in range(10):  # what has been answered is on its way
                wasyncore.loop(timeout=0.01, map=self._map, count=1)
        finally:
            wasyncore.close_all(self._map, ignore_all=True)


class AddressInUse(TridentError):
    """Another process listens at the address: this machine's leader, perhaps."""


def _listen(address: str) -> socket.socket:
    host, port = listen_address(address)
    try:
        family, kind, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(place)
            # Two may bind with that option; only one may listen.
            listener.listen(1024)
        except BaseException:
            listener.close()
            raise
    except (OSError, OverflowError) as problem:
        if getattr(problem, "errno", None) == errno.EADDRINUSE:
            raise AddressInUse(f"http={address}: another process listens there") from problem
        raise ConfigError(
            f"http={address} cannot be listened at", found=str(problem), expected="an address of this machine"
        ) from problem
    return listener


class _Application:
    """The WSGI application."""

    def __init__(self, token: str | None, front: Answers) -> None:
        self._token = token.encode() if token else None
        self._front = front

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        request = Request(environ)
        response = self._respond(request)
        response.headers["Cache-Control"] = "no-store"
        return response(environ, start_response)

    def _respond(self, request: Request) -> Response:
        try:
            endpoint, values = _ROUTES.bind_to_environ(request.environ).match()
            refused = self._refused(request, endpoint)
            return refused or getattr(self, f"_{endpoint}")(request, **values)
        except HTTPException as problem:
            return self._refused(request, "") or _error(problem.code or 500, problem.description or problem.name)
        except Exception as error:
            status = next((code for kind, code in _STATUS if isinstance(error, kind)), 500)
            log.debug("request answered with %d", status, exc_info=True)
            return _error(status, str(error) if isinstance(error, TridentError) else _first_line(error))

    def _refused(self, request: Request, endpoint: str) -> Response | None:
        if self._token is None:
            if is_loopback(urlsplit(f"//{request.environ.get('HTTP_HOST', '')}").hostname or ""):
                return None
            return _error(400, "without http_token only requests to a loopback name such as 127.0.0.1 are answered")
        if endpoint == "health":
            return None
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), self._token):
            return None
        refusal = _error(401, "the request has no token, or another one; expected: Authorization: Bearer <http_token>")
        refusal.headers["WWW-Authenticate"] = "Bearer"
        return refusal

    def _health(self, request: Request) -> Response:
        front = self._front
        return _json({"topology": front.name, "role": front.role}, 200 if front.is_leader else 503)

    def _functions(self, request: Request) -> Response:
        return _json({
            name: {
                kind: {field.name: field.dataType.simpleString() for field in schema.fields}
                for kind, schema in (("arguments", plan.arguments), ("result", plan.result))
            }
            for name, plan in self._front.plans.items()
        })  # fmt: skip

    def _get(self, request: Request, function: str, argument: str) -> Response:
        return self._execute(request, function, [argument], {})

    def _post(self, request: Request, function: str) -> Response:
        body = request.get_data()
        try:
            text = body.decode()
            given = json.loads(text) if request.is_json else text
        except ValueError as problem:
            raise WrongArguments(
                "the body cannot be read", found=str(problem), expected="JSON, or text in UTF-8"
            ) from None
        if isinstance(given, dict):
            return self._execute(request, function, [], given)
        return self._execute(request, function, given if isinstance(given, list) else [given], {})

    def _execute(self, request: Request, function: str, args: list[Any], named: Mapping[str, Any]) -> Response:
        timeout_secs = request.args.get("timeout_secs", TIMEOUT_SECS, type=float)
        check_timeout(timeout_secs)
        answer = self._front.answer(function, args, named, timeout_secs)
        rows = [as_json(row, self._front.plans[function].result) for row in answer]
        return _json(
            {"function": function, "request_id": answer.request_id, "as_of": answer.as_of, "rows": rows}
        )  # fmt: skip


def _json(value: Any, status: int = 200) -> Response:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n"
    return Response(text, status, content_type="application/json; charset=utf-8")


def _error(status: int, text: str) -> Response:
    return _json({"error": text}, status)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:500]}" if lines else type(error).__name__
