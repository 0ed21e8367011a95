"""Adapts kazoo: TLS, servers that do not answer, its errors and its log. The ZooKeeper modules alone use it."""

from __future__ import annotations

import importlib.util
import logging
import socket
import ssl
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kazoo import exceptions as kz
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.serialization import SASL, Auth, Connect

from trident.coordinators.errors import ConfigError, CoordinationError, Deposed, OutcomeUnknown, ZooKeeperRefused
from trident.coordinators.tracebacks import causes
from trident.coordinators.znodes import Check, MultiRefused, Op

# Errors and log of kazoo where an ensemble authenticates; ``coordinators/zookeeper.py`` alone uses them.
#
# - **The log** (:class:`HarmlessLog`): at debug level kazoo logs each request as
#   it is: the password of ``auth_data``, the answer to a SASL challenge, the
#   password of the ZooKeeper session. They are taken out before any handler
#   gets the record.
# - **Why it failed** (:class:`Problems`): kazoo tells its log only, and tries
#   again for ever. A certificate or a password does not get better by that.


# A name may stand for several addresses: each has been tried by then.
_ROUNDS = 2
_HIDDEN = "***"


_RequiresSasl: Any = getattr(kz, "SessionClosedRequireSaslError", kz.ZookeeperError)  # newer versions of kazoo have it


class RequiresSasl(kz.AuthFailedError, _RequiresSasl):
    """The server wants SASL of every client: a failed authentication, of which kazoo's thread would die."""

    code = -124


kz.EXCEPTIONS[RequiresSasl.code] = RequiresSasl


def require_sasl_package() -> None:
    """Raises ConfigError when the package that kazoo needs for SASL is missing."""
    if importlib.util.find_spec("puresasl") is None:
        raise ConfigError(
            "SASL to ZooKeeper needs a package that is not installed",
            found="no module puresasl",
            expected="pure-sasl",
            action="install it: pip install pure-sasl (the extra `sasl`)",
        )


# -- the log ----------------------------------------------------------------

if TYPE_CHECKING:
    _LoggerAdapter = logging.LoggerAdapter[logging.Logger]
else:
    _LoggerAdapter = logging.LoggerAdapter  # Python 3.10 cannot subscribe it


class HarmlessLog(_LoggerAdapter):
    """The logger that kazoo is given: without credentials, and it remembers why connecting failed."""

    def __init__(self, logger: logging.Logger, problems: Problems) -> None:
        super().__init__(logger, {})
        self._problems = problems

    def log(self, level: int, msg: Any, *args: Any, **kwargs: Any) -> None:
        if level >= logging.WARNING:
            logged_error = next((one for one in args if isinstance(one, BaseException)), None) or sys.exc_info()[1]
            self._problems.add(logged_error, "Unhandled exception in connection loop" in str(msg))
        # Below debug kazoo writes the session's password in hexadecimal.
        if level >= logging.DEBUG and self.isEnabledFor(level):
            super().log(level, msg, *(harmless(one) for one in args), **kwargs)


def harmless(shown: Any) -> Any:
    """Returns what may be logged in place of an argument of kazoo's."""
    if isinstance(shown, Auth):
        return shown._replace(auth=_HIDDEN)
    if isinstance(shown, SASL):
        return f"SASL(challenge={_HIDDEN})"
    if isinstance(shown, Connect):
        return shown._replace(passwd=_HIDDEN)
    # The ACL of a digest identity has its password as an unsalted hash.
    if isinstance(shown, (tuple, list)) and "scheme='digest'" in repr(shown):
        return f"{type(shown).__name__} with a digest ACL"
    return shown


# -- why it failed ----------------------------------------------------------


class Problems:
    """The problems since the last connection that was usable.

    Attributes:
        host: the name of the server that is being tried.
        final: the one with which kazoo gave up.
    """

    def __init__(self) -> None:
        self.host = ""
        self.clear()

    def clear(self) -> None:
        self.last: BaseException | None = None
        self.final: BaseException | None = None
        self._certificate: BaseException | None = None
        self._certificates: dict[str, int] = {}

    def add(self, problem: BaseException | None, unhandled: bool) -> None:
        """``unhandled``: kazoo does not know what to do about it."""
        if problem is None:
            return
        self.last = problem
        if unhandled or isinstance(problem, kz.AuthFailedError):
            self.final = problem  # kazoo's thread ends with it
        if _certificate_problem(problem):
            self._certificate = problem
            self._certificates[self.host] = self._certificates.get(self.host, 0) + 1

    def refusal(self, hosts: str, names: Collection[str]) -> ZooKeeperRefused | None:
        """The error to raise when trying again is of no use; None while it may be."""
        if self.final is not None:
            return refused(self.final, hosts)
        if self._certificate and all(self._certificates.get(name, 0) >= _ROUNDS for name in names):
            return refused(self._certificate, hosts)
        return None

    def described(self) -> str:
        """Returns what went wrong in a few words, "" for nothing."""
        if self._certificate is not None:
            return _explained(self._certificate)[0]
        if self.last is None:
            return ""
        tls = _tls_error(self.last)
        return (tls.reason or str(tls)) if tls else str(self.last) or type(self.last).__name__


def refused(problem: BaseException | None, hosts: str) -> ZooKeeperRefused:
    """The error that says what to do about a certificate or an identity that was not accepted."""
    found, expected, action = _explained(problem)
    return ZooKeeperRefused(
        f"the ZooKeeper at {hosts} and this client do not accept each other",
        found=found,
        expected=expected,
        action=action,
    )


def _explained(problem: BaseException | None) -> tuple[str, str, str]:
    tls = _tls_error(problem)
    if isinstance(tls, ssl.SSLCertVerificationError):
        if "not valid for" in tls.verify_message or "mismatch" in tls.verify_message:
            return (
                f"the server's certificate is of another host: {tls.verify_message}",
                "a certificate with the host name that is connected to",
                "name the hosts in `zookeeper` as their certificates do, or give the servers certificates with these"
                " names (subjectAltName)",
            )
        return (
            f"the server's certificate cannot be verified: {tls.verify_message}",
            "a certificate that is signed by a trusted authority",
            "set zookeeper_tls_ca_file to the certificate of the authority that signed the servers'",
        )
    if tls is not None:
        return (
            f"the server refused this client's certificate: {tls.reason or tls}",
            "a client certificate that the server trusts",
            "set zookeeper_tls_cert_file and zookeeper_tls_key_file to a certificate signed by an authority in the"
            " server's ssl.trustStore",
        )
    if isinstance(problem, RequiresSasl):
        return (
            "the server wants every client to authenticate with SASL (sessionRequireClientSASLAuth)",
            "SASL",
            "set zookeeper_sasl_mechanism, zookeeper_sasl_username and zookeeper_sasl_password",
        )
    if isinstance(problem, kz.AuthFailedError):
        return (
            "the server refused the identity: a wrong user name or password, or a scheme that it does not have",
            "a user of the server's JAAS configuration, or a scheme of its authProviders",
            "check zookeeper_sasl_username and zookeeper_sasl_password, or the scheme in zookeeper_auth",
        )
    return (
        f"{type(problem).__name__}: {problem}",
        "an answer that kazoo understands",
        "check the SASL and TLS settings; the log of the server may say more",
    )


def _certificate_problem(problem: BaseException) -> bool:
    tls = _tls_error(problem)
    if tls is None:
        return False
    return (
        isinstance(tls, ssl.SSLCertVerificationError)
        or "CERTIFICATE" in (tls.reason or "")
        or (tls.reason or "").endswith("UNKNOWN_CA")
    )


def _tls_error(problem: BaseException | None) -> ssl.SSLError | None:
    # kazoo raises its own error while it handles this one.
    return next((one for one in causes(problem) if isinstance(one, ssl.SSLError)), None)


def raise_refusal(ops: Sequence[Op], results: Sequence[Any]) -> None:
    # Every operation of a refused multi has an error; the one at fault is the
    # only one that does not merely say that the others were undone.
    undone = (kz.RolledBackError, kz.RuntimeInconsistency)
    for op, result in zip(ops, results):
        if isinstance(result, Exception) and not isinstance(result, undone):
            if isinstance(op, Check) and op.fence:
                raise Deposed(
                    "another coordinator leads now",
                    found=f"{type(result).__name__} at {op.path}",
                    expected=f"znode version {op.znode_version}",
                    action="stop writing; this process is no longer the leader",
                )
            if isinstance(result, (kz.NoAuthError, kz.InvalidACLError)):
                raise not_allowed(op.path, result)
            raise MultiRefused(op, type(result).__name__)
    failed = [result for result in results if isinstance(result, Exception)]
    if failed:
        raise OutcomeUnknown(f"ZooKeeper gave no reason for refusing {ops[0].path}", found=repr(failed[0]))


def not_allowed(path: str, problem: Exception, hosts: str = "ZooKeeper") -> CoordinationError:
    if isinstance(problem, kz.AuthFailedError):
        return refused(problem, hosts)
    if isinstance(problem, kz.InvalidACLError):
        return CoordinationError(
            f"ZooKeeper does not know who this client is, so {path} cannot be kept for its creator",
            found="InvalidACLError",
            expected="a connection that is authenticated (zookeeper_acl=creator)",
            action="set zookeeper_auth or SASL; for a TLS certificate the server needs ssl.clientAuth=need; or set"
            " zookeeper_acl=open",
        )
    return CoordinationError(
        f"ZooKeeper does not allow this client to use {path}",
        found=type(problem).__name__,
        expected="the identity that created it, or one that its ACL names",
        action="check zookeeper_auth, or the SASL user and password, or the TLS certificate; `getAcl` in zkCli.sh shows"
        " whom the znode belongs to",
    )


# kazoo's connections to ZooKeeper: TLS, and servers that do not answer; ``coordinators/zookeeper.py`` alone uses it.
#
# kazoo trusts the system's authorities beside the one that is given, passes over a
# certificate without a key file, has OpenSSL ask at the terminal for a key's
# password, and learns of a wrong file in its own thread. Here the files are tried
# when the connection is made, only the given authorities are trusted, and the files
# are read again at each connection, so that certificates may be renewed.


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
        self._failed_connects = 0

    def create_connection(self, *args: Any, timeout: float, **kwargs: Any) -> Any:
        self._problems.host = kwargs.get("hostname", "")
        timeout = self._patience_secs(timeout)
        try:
            if self._tls is None:
                self._unanswered = super().create_connection(*args, timeout=timeout, **kwargs)
            else:
                self._unanswered = self._connect(timeout=timeout, **kwargs)
        except TimeoutError:
            self._failed_connects += 1
            raise
        return self._unanswered

    def _patience_secs(self, kazoos: float) -> float:
        return min(kazoos, self._answer_secs_max) if self._failed_connects < _SHORT_TRIES else kazoos

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
            self._unanswered, self._failed_connects = None, 0
        elif waits_for_first:
            self._failed_connects += 1
        return ready

    def _select(self, rlist: Any, wlist: Any, xlist: Any, timeout: float | None) -> Any:
        # Of two answers in one TLS record OpenSSL has read both; the socket itself is not readable any more, and
        # the second one would wait for the next ping.
        held = [one for one in rlist if isinstance(one, ssl.SSLSocket) and one.pending()]
        if not held:
            return super().select(rlist, wlist, xlist, timeout)
        readable, writable, failed = super().select(rlist, wlist, xlist, 0)
        return [*held, *(one for one in readable if one not in held)], writable, failed
