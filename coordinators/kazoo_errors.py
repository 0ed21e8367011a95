"""Errors and log of kazoo where an ensemble authenticates; ``coordinators/zookeeper.py`` alone uses them.

- **The log** (:class:`HarmlessLog`): at debug level kazoo logs each request as
  it is: the password of ``auth_data``, the answer to a SASL challenge, the
  password of the ZooKeeper session. They are taken out before any handler
  gets the record.
- **Why it failed** (:class:`Problems`): kazoo tells its log only, and tries
  again for ever. A certificate or a password does not get better by that.
"""

from __future__ import annotations

import importlib.util
import logging
import ssl
import sys
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from kazoo import exceptions as kz
from kazoo.protocol.serialization import SASL, Auth, Connect

from trident.coordinators.causes import causes
from trident.coordinators.errors import ConfigError, CoordinationError, Deposed, OutcomeUnknown, ZooKeeperRefused
from trident.coordinators.znodes import Check, MultiRefused, Op

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
            told = next((one for one in args if isinstance(one, BaseException)), None) or sys.exc_info()[1]
            self._problems.add(told, "Unhandled exception in connection loop" in str(msg))
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
