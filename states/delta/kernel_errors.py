"""Classifies Java exceptions of Delta's Kernel for a commit: certain failure, conflict, or unknown.

The difference decides what the caller may do next: a conflict certainly did not
happen, an unknown outcome must be read from the table (docs/semantics.md 9.5).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException

from trident.coordinators import faults
from trident.coordinators.errors import CommitConflict, TableError
from trident.coordinators.threads import TRIES, tries
from trident.states.delta.delta_log import DeltaLog
from trident.states.delta.delta_log import TableMissing as TableMissing
from trident.states.delta.log_commit import EntryMayBeLost

log = logging.getLogger(__name__)

Result = TypeVar("Result")

COMMIT = faults.register("delta.commit", "one commit to a Delta table, with the flush of its log entry")

_EXCEPTIONS = "io.delta.kernel.exceptions."
_COMMIT_FAILED = "io.delta.kernel.commit.CommitFailedException"
_CONFLICTS = frozenset(
    _EXCEPTIONS + name
    for name in (
        "ConcurrentWriteException",
        "ProtocolChangedException",
        "MetadataChangedException",
        "TableAlreadyExistsException",
    )
)


class TxnAlreadyApplied(TableError):
    """The table holds this ``txn_app_id`` with the same or a higher ``txn_version``.

    Certainly not committed *now*; only the control record can tell whether the
    commit that is there is the one that was meant.
    """


class CommitOutcomeUnknown(TableError):
    """The commit failed in a way that leaves open whether it happened.

    Never a failure: load the table again and compare its control record.
    """


class CheckpointExists(TableError):
    """Another writer has written this checkpoint."""


def until_committed(table: object, commit: Callable[[], Result]) -> Result:
    """Calls ``commit``, which reads a table and commits to it, again after each conflict or lost answer.

    Another commit came first, or our own happened and its answer was lost: reading the table again tells which.

    Raises:
        CommitConflict: so it was each time.
    """
    met: TableError | None = None
    for _ in tries():
        try:
            return commit()
        except (CommitConflict, CommitOutcomeUnknown) as error:
            met = error
            log.info("a commit to %s met %s; reading the table again", table, error)
    raise CommitConflict(
        f"no commit to the table {table} came about",
        found=f"{TRIES} conflicts in a row, the last: {met}",
        action="try again, or start the topology again, when no other process writes to the table",
    ) from met


def java_causes(java: Any) -> list[Any]:
    """A Java exception and what caused it, the outermost first; none of None."""
    found: list[Any] = []
    while java is not None and len(found) < 20:
        found.append(java)
        java = java.getCause()
    return found


def guard(path: str, call: Callable[[], Any]) -> Any:
    """Run Java calls that commit nothing; a failure of theirs certainly changed nothing."""
    try:
        return call()
    except Py4JJavaError as error:
        java = error.java_exception
        name, text = java.getClass().getName(), str(java.getMessage())
        if name == _EXCEPTIONS + "TableNotFoundException":
            raise TableMissing(f"there is no Delta table at {path}", found=text) from error
        if name == _EXCEPTIONS + "ConcurrentTransactionException":
            raise TxnAlreadyApplied(f"table {path} has this transaction already", found=text) from error
        if name == _EXCEPTIONS + "CheckpointAlreadyExistsException":
            raise CheckpointExists(f"table {path} has this checkpoint", found=text) from error
        if name in _CONFLICTS:
            raise CommitConflict(f"table {path} was changed by another commit", found=text) from error
        raise TableError(f"Delta refused table {path}", found=f"{name}: {text}") from error
    except PySparkException as error:
        # PySpark turns a few Java exceptions of others, too, into its own.
        raise TableError(f"Delta refused table {path}", found=error) from error
    except (Py4JError, OSError) as error:
        raise TableError(f"the JVM did not answer about table {path}", found=error) from error


def guard_commit(path: str, version: int, call: Callable[[], Any], publish: Callable[[], Any] | None) -> Any:
    """Run ``Transaction.commit`` and, on a local disk, ``publish``, which makes its draft the log entry.

    Args:
        call: Kernel's part.
        publish: see :func:`log_commit.publish_draft`; None where Kernel's log store commits: then ``call`` does it.

    Returns:
        The result of ``call``, and what ``publish`` did.

    Raises:
        TableError: it certainly did not happen.
        CommitConflict: another commit has the version; this one did not happen.
        CommitOutcomeUnknown: anything else that went wrong.
    """
    unknown = f"it is not known whether the commit of version {version} to table {path} happened"
    action = "read the table again and compare its control record"
    try:
        with faults.fault_point(COMMIT):
            if publish is None:
                return _committed(path, version, call, unknown, action), None
            made = _drafted(path, version, call)
            try:
                return made, publish()
            except EntryMayBeLost as error:
                raise CommitOutcomeUnknown(
                    f"version {version} of table {path} was written, but may be gone, or not outlive a power cut",
                    found=error,
                    action="check the disk, then read the table again",
                ) from error
    except faults.InjectedFault as error:
        raise CommitOutcomeUnknown(unknown, found=error, action=action) from error


def _drafted(path: str, version: int, call: Callable[[], Any]) -> Any:
    """Nothing is committed before ``publish``: an error of Kernel's is no open question."""
    try:
        return guard(path, call)
    except TableError as error:
        if isinstance(error, CommitConflict) or DeltaLog(path).signature(version) is None:
            raise
        # The writer that has the version has swept our draft away, while it was written.
        raise CommitConflict(
            f"another commit took version {version} of table {path}", found=error.found, action="read the table again"
        ) from error


def _committed(path: str, version: int, call: Callable[[], Any], unknown: str, action: str) -> Any:
    try:
        return call()
    except Py4JJavaError as error:
        causes = [(java, java.getClass().getName()) for java in java_causes(error.java_exception)]
        found = "; ".join(f"{name}: {java.getMessage()}" for java, name in causes)
        for java, name in causes:
            # Kernel reports an exhausted retry for a conflict and for an I/O
            # error alike; only its cause says which one it was.
            if name in _CONFLICTS or (name == _COMMIT_FAILED and java.isConflict()):
                raise CommitConflict(
                    f"another commit took version {version} of table {path}", found=found, action="read the table again"
                ) from error
        raise CommitOutcomeUnknown(unknown, found=found, action=action) from error
    except (Py4JError, PySparkException, OSError) as error:
        # The JVM went away, or an exception came from where none was expected.
        raise CommitOutcomeUnknown(unknown, found=repr(error), action=action) from error
