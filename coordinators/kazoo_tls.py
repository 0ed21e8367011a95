"""kazoo's connections to ZooKeeper: TLS, and servers that do not answer; ``coordinators/zookeeper.py`` alone uses it.

kazoo trusts the system's authorities beside the one that is given, passes over a
certificate without a key file, has OpenSSL ask at the terminal for a key's
password, and learns of a wrong file in its own thread. Here the files are tried
when the connection is made, only the given authorities are trusted, and the files
are read again at each connection, so that certificates may be renewed.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kazoo.handlers.threading import SequentialThreadingHandler

from trident.coordinators.errors import ConfigError
from trident.coordinators.kazoo_errors import Problems

# A loaded machine takes that long to answer; tests have sessions of one second.
_ANSWER_SECS_LEAST = 2.0
# Three would take the whole session: then there is nothing to save, and the server may be slow or far.
_SHORT_TRIES = 2


@dataclass(frozen=True)
class TlsFiles:
    """Where authorities, certificate and key are, and what is verified."""

    ca: str | None
    certfile: str | None
    keyfile: str | None
    keyfile_password: str | None
    verify_certs: bool
    check_hostname: bool

    def __repr__(self) -> str:
        return f"TlsFiles(ca={self.ca!r}, certfile={self.certfile!r})"

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> TlsFiles | None:
        """From KazooClient's options; None without ``use_ssl``."""
        if not options.get("use_ssl"):
            return None
        ca, certfile, keyfile, password = map(options.get, ("ca", "certfile", "keyfile", "keyfile_password"))
        verify = options.get("verify_certs", True)
        return cls(ca, certfile, keyfile, password, verify, verify and options.get("check_hostname", True))

    def context(self) -> ssl.SSLContext:
        """Reads the files.

        Raises:
            ConfigError: one is missing, is not what it should be, or the
                password is not the key's.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = self.check_hostname
        context.verify_mode = ssl.CERT_REQUIRED if self.verify_certs else ssl.CERT_NONE
        if self.ca:
            with _Reading("the authorities' certificates (ca)", self.ca):
                context.load_verify_locations(self.ca)
        else:
            context.load_default_certs(ssl.Purpose.SERVER_AUTH)
        if self.certfile:
            # Without a password OpenSSL would ask at the terminal, in a thread without a user.
            password = self.keyfile_password or ""
            what = "this client's certificate or its key (certfile, keyfile, keyfile_password)"
            with _Reading(what, f"{self.certfile}, {self.keyfile or self.certfile}"):
                context.load_cert_chain(self.certfile, self.keyfile, password)
        return context


class _Reading:
    """Turns what OpenSSL and the file system say of a file into a ConfigError."""

    def __init__(self, what: str, files: str) -> None:
        self._what, self._files = what, files

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, problem: BaseException | None, trace: object) -> None:
        if isinstance(problem, (OSError, ValueError)):
            said = getattr(problem, "reason", None) or getattr(problem, "strerror", None) or type(problem).__name__
            raise ConfigError(
                f"TLS to ZooKeeper: {self._what} cannot be used",
                found=f"{said} ({self._files})",
                expected="PEM files, the key belonging to the certificate, and the key's password if it has one",
            ) from problem


class Handler(SequentialThreadingHandler):
    """kazoo's threads and sockets, with TLS as :class:`TlsFiles` says, and less patience with a silent server.

    kazoo waits for the answer to a new connection as long as the ZooKeeper session may be away, and the session is
    lost with it. Some servers never answer: one that is starting leaves a connection open which comes before its
    database is there (a NullPointerException in ``NIOServerCnxn.close``), and the next try would succeed. After two
    tries without an answer the next ones have as long as kazoo gives them.
    """

    def __init__(self, tls: TlsFiles | None, problems: Problems, session_timeout_secs: float = 0.0) -> None:
        super().__init__()
        self._tls, self._problems = tls, problems
        self._answer_secs_max = max(_ANSWER_SECS_LEAST, session_timeout_secs / 3)
        self._unanswered: Any = None
        self._in_vain = 0

    def create_connection(self, *args: Any, timeout: float, **kwargs: Any) -> Any:
        self._problems.host = kwargs.get("hostname", "")
        timeout = self._patience_secs(timeout)
        try:
            if self._tls is None:
                self._unanswered = super().create_connection(*args, timeout=timeout, **kwargs)
            else:
                self._unanswered = self._connect(timeout=timeout, **kwargs)
        except TimeoutError:
            self._in_vain += 1
            raise
        return self._unanswered

    def _patience_secs(self, kazoos: float) -> float:
        return min(kazoos, self._answer_secs_max) if self._in_vain < _SHORT_TRIES else kazoos

    def _connect(self, address: tuple[Any, ...], hostname: str, timeout: float, **_: Any) -> ssl.SSLSocket:
        assert self._tls is not None
        try:
            context = self._tls.context()
        except ConfigError as problem:
            # They were in order when the process started; perhaps they are being renewed.
            raise OSError(str(problem)) from problem
        plain = socket.create_connection(address[:2], timeout)
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return context.wrap_socket(plain, server_hostname=hostname)
        except BaseException:
            plain.close()
            raise

    def select(self, rlist: Any, wlist: Any, xlist: Any, timeout: float | None = None) -> Any:
        waits_for_first = rlist == [self._unanswered]
        if waits_for_first and timeout is not None:
            timeout = self._patience_secs(timeout)
        ready = self._select(rlist, wlist, xlist, timeout)
        if waits_for_first and ready[0]:
            self._unanswered, self._in_vain = None, 0
        elif waits_for_first:
            self._in_vain += 1
        return ready

    def _select(self, rlist: Any, wlist: Any, xlist: Any, timeout: float | None) -> Any:
        # Of two answers in one TLS record OpenSSL has read both; the socket itself is not readable any more, and
        # the second one would wait for the next ping.
        held = [one for one in rlist if isinstance(one, ssl.SSLSocket) and one.pending()]
        if not held:
            return super().select(rlist, wlist, xlist, timeout)
        readable, writable, failed = super().select(rlist, wlist, xlist, 0)
        return [*held, *(one for one in readable if one not in held)], writable, failed
