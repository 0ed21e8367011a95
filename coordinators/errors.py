"""The one tree of errors that this framework raises.

::

    TridentError
    ├── TopologyError            the topology is wrong; known before anything runs
    │   ├── FieldError           a field is unknown or given twice
    │   └── OutputTypeError      the types of a function's outputs are not known
    ├── ConfigError              a setting has no such name or an impossible value
    ├── EnvironmentProblem       this machine or session lacks something
    │   ├── JavaProblem          no JDK, or one that is too old
    │   ├── SparkSessionProblem  the Spark session lacks a setting
    │   ├── SessionEnded         the Spark session was stopped, or its JVM is gone
    │   ├── ClusterProblem       a host of the Spark cluster lacks something
    │   └── StorageProblem       a disk is full, a folder cannot be written
    │       └── StoreProblem     a store refuses this process (StoreUnreachable: it does not answer)
    ├── SourceError              a source's data is missing, unreadable or has changed
    │   ├── MessagesExpired      messages of a topic that were not read yet are gone
    │   ├── LogCut               the log of a partition ends before what was read of it
    │   ├── TopicGone            a topic was deleted, or is another one of its name
    │   └── BrokersAway          no broker answers, or a partition has no leader
    ├── BatchError               one attempt at a batch failed; it may be tried again
    │   ├── FailedException      user code failed the batch on purpose
    │   ├── UserFunctionError    user code raised
    │   ├── ValueDoesNotFit      a value of a state would not fit its type
    │   ├── BatchTimeout         processing took longer than message_timeout_secs
    │   └── BatchOutOfMemory     an executor, or a Python worker, ran out of memory
    ├── AttemptCapReached        one batch failed max_attempts times
    ├── DrpcError                a request was not answered
    │   ├── UnknownFunction      no DRPC stream has that name
    │   ├── WrongArguments       the arguments do not fit the function's fields
    │   ├── NotLeading           this process is a standby, or has stopped
    │   └── DrpcTimeout          no answer in the time that was given
    ├── CoordinationError        ZooKeeper, the fence, the identity
    │   ├── ZooKeeperUnreachable
    │   │   └── ZooKeeperRefused a certificate, an identity or a password was not accepted
    │   ├── CorruptZnode         a znode that cannot be read as what it must be
    │   ├── ValueTooLarge
    │   ├── IdentityMismatch     another topology has this name
    │   ├── Deposed              another coordinator leads now
    │   ├── StaleEpoch           a map refused a write of an older coordinator
    │   ├── StaleState           a znode version was not the one expected
    │   └── OutcomeUnknown       it is not known whether a write happened
    ├── TableError               a Delta table
    │   ├── SchemaMismatch
    │   ├── ForeignTable         the table belongs to something else
    │   ├── CommitConflict       another commit came first: certainly not committed
    │   ├── StagedFileMissing
    │   └── TransactionNotKept   its manifest is not kept, or no longer
    └── Halted                   going on could lose or double data; a person must look
        └── PositionLost         what a source keeps of its position is lost, older or damaged (also a SourceError)

An error says what was found, what was expected and what to do next, and
carries the same as attributes. "It failed" and "it is not known whether it
happened" are different types: :class:`OutcomeUnknown` is never a failure.
"""

from __future__ import annotations

from typing import Any

from trident.coordinators import tracebacks


def described(value: object) -> str:
    """A value of a user's for an error: its repr, shortened; its type alone where it has no repr."""
    try:
        text = repr(value)
    except Exception:  # a number of too many digits, a __repr__ that raises: the error to be told is another one
        return f"a value of type {type(value).__name__}"
    return text if len(text) <= 200 else f"{text[:200]}…"


class TridentError(Exception):
    """Root of every error raised by this framework.

    Attributes:
        found: what was there.
        expected: what should have been there.
        action: what to do next.
    """

    def __init__(
        self, message: str, *, found: object = None, expected: object = None, action: str | None = None
    ) -> None:
        self.found, self.expected, self.action = found, expected, action
        text = message
        if found is not None:
            text += f"; found: {found}"
        if expected is not None:
            text += f"; expected: {expected}"
        if action:
            text += f". {action[:1].upper()}{action[1:]}"
        super().__init__(text)
        self.message = text
        tracebacks.install()

    def _render_traceback_(self) -> list[str]:
        """IPython asks for it: the user's lines first, and none of the framework's."""
        return tracebacks.render(self)


class TopologyError(TridentError, ValueError):
    """The topology cannot be built as written."""


class FieldError(TopologyError):
    """A field does not exist, or exists already."""


class OutputTypeError(TopologyError):
    """The output types of a function are neither annotated nor given."""


class ConfigError(TridentError, ValueError):
    """A setting is unknown or its value impossible."""


class EnvironmentProblem(TridentError):
    """The machine lacks something that is needed."""


class JavaProblem(EnvironmentProblem):
    """Java is absent or too old."""


class SparkSessionProblem(EnvironmentProblem):
    """The Spark session lacks a setting, which the message names exactly."""


class SessionEnded(EnvironmentProblem):
    """The Spark session under a running topology was stopped, or its JVM is gone; nothing more can run on it."""


class ClusterProblem(EnvironmentProblem):
    """A host of the Spark cluster lacks what every task needs: Python, a library, the warehouse.

    Attributes:
        fingerprint: of a module that a task could not import, as of a BatchError; else None.
    """

    fingerprint: str | None = None


class StorageProblem(EnvironmentProblem):
    """A disk is full, or a folder can no longer be written; committed data is not affected."""


class StoreProblem(StorageProblem):
    """The store of a warehouse refuses this process: no such bucket, no permission, a wrong clock."""


class StoreUnreachable(StoreProblem):
    """The store of a warehouse does not answer, or fails, or is in safe mode; it may answer later."""


class SourceError(TridentError):
    """The data of a source is missing, unreadable, or differs from the batch's stored metadata.

    Attributes:
        fingerprint: of data that cannot be used as it is, and is the same whenever it is read: as of a BatchError. A
            spout of your own may set it. None: it may pass next time.
    """

    fingerprint: str | None = None


class MessagesExpired(SourceError):
    """Messages of a Kafka topic that belong to the stream are gone before they were read."""


class LogCut(SourceError):
    """The log of a Kafka partition ends before an offset that was read or planned, as after an unclean election."""


class TopicGone(SourceError):
    """A Kafka topic was deleted, or deleted and recreated, or has fewer partitions than before."""


class BrokersAway(SourceError):
    """No Kafka broker answers, or the leader of a partition is down: it may be back soon."""


class BatchError(TridentError):
    """An attempt at a batch failed before its decision; it is retried.

    Attributes:
        attempt: "txid:attempt_id" of the attempt, when known.
        fingerprint: what failed, where and on which row, without the attempt; two attempts with one fingerprint failed
            the same way, and another will, if the input is the same. None: it may pass next time.
    """

    attempt: str | None = None
    fingerprint: str | None = None


class FailedException(BatchError):
    """Raised by user code to fail the batch on purpose (docs/semantics.md 1)."""


class UserFunctionError(BatchError):
    """A user's function raised.

    Attributes:
        operation: the operation's name in the topology.
        location: "file:line" of the user's line that raised.
    """

    def __init__(self, message: str, *, operation: str, location: str, **facts: Any) -> None:
        super().__init__(message, **facts)
        self.operation, self.location = operation, location


class ValueDoesNotFit(BatchError):
    """A batch would give a key of a state a value that does not fit its type.

    Attributes:
        state: the state's name.
        key: the key, as text.
    """

    def __init__(self, message: str, *, state: str, key: str, **facts: Any) -> None:
        super().__init__(message, **facts)
        self.state, self.key = state, key
        self.fingerprint = f"{state} {key}"


class BatchTimeout(BatchError):
    """Processing took longer than ``message_timeout_secs``."""


class BatchOutOfMemory(BatchError):
    """An executor, or a Python worker, ran out of memory; the next attempt is smaller if its source allows it."""


class AttemptCapReached(TridentError):
    """One batch failed ``max_attempts`` times, or three times in the same way; the topology has stopped.

    Attributes:
        txid: the transaction that cannot be processed.
    """

    def __init__(self, message: str, *, txid: int, **facts: Any) -> None:
        super().__init__(message, **facts)
        self.txid = txid


class DrpcError(TridentError):
    """A request to a DRPC stream was not answered; no batch is affected."""


class UnknownFunction(DrpcError):
    """No DRPC stream of the topology has that name."""


class WrongArguments(DrpcError, ValueError):
    """The arguments of a request do not fit the fields of its function."""


class NotLeading(DrpcError):
    """Only the topology's leader answers requests, and this process is not the leader."""


class DrpcTimeout(DrpcError, TimeoutError):
    """A request was not answered in time; its Spark jobs were cancelled."""


class CoordinationError(TridentError):
    """A failure of ZooKeeper, the fence or the topology's identity."""


class ZooKeeperUnreachable(CoordinationError):
    """No ZooKeeper server answered within the connect timeout."""


class ZooKeeperRefused(ZooKeeperUnreachable):
    """A ZooKeeper server answered, but it and this client do not accept each other; waiting does not help."""


class CorruptZnode(CoordinationError):
    """A znode's content is not in the expected format.

    Attributes:
        path: the znode.
    """

    def __init__(self, path: str, *, found: object, expected: object, action: str | None = None) -> None:
        super().__init__(
            f"znode {path} cannot be read",
            found=found,
            expected=expected,
            action=action or "restore the znode from a back-up, or begin again with `trident reset NAME`",
        )
        self.path = path


class ValueTooLarge(CoordinationError):
    """A value for ZooKeeper is over the limit of 512 KiB."""


class IdentityMismatch(CoordinationError):
    """Another topology has this name (the difference is in the message)."""


class Deposed(CoordinationError):
    """Another coordinator leads now; this one must stop writing."""


class StaleEpoch(CoordinationError):
    """A fenced map refused the write of an older coordinator; the writer must stop."""


class StateAway(CoordinationError):
    """A store outside of the warehouse does not answer; decided rows are published again, without limit."""


class StateLostTransactions(CoordinationError):
    """A store outside of the warehouse lacks transactions that it had: it was restored, or failed over."""


class ForeignMarks(CoordinationError):
    """A store outside of the warehouse has marks of another incarnation, and the state does not set ``adopt=True``."""


class StaleState(CoordinationError):
    """A znode's version was not the one expected: another writer wrote it."""


class OutcomeUnknown(CoordinationError):
    """The connection was lost during a write: it may or may not have happened."""


class TableError(TridentError):
    """A failure of a Delta table."""


class SchemaMismatch(TableError):
    """A table's schema does not fit the data."""


class ForeignTable(TableError):
    """A table belongs to another topology, or was not made by one."""


class CommitConflict(TableError):
    """Another commit took the table version; this one certainly did not happen."""


class StagedFileMissing(TableError):
    """A staged file is missing, or has another size."""


class TransactionNotKept(TableError):
    """The manifest of a transaction was never kept, or is no longer kept.

    Attributes:
        txid: the transaction that was asked for.
        oldest, newest: the transactions between which manifests are kept; None when none is.
    """

    def __init__(
        self, message: str, *, txid: int, oldest: int | None = None, newest: int | None = None, **facts: Any
    ) -> None:
        super().__init__(message, **facts)
        self.txid, self.oldest, self.newest = txid, oldest, newest


class OutboxDamaged(TableError):
    """The record of an outbox, in the warehouse, is damaged."""


class Halted(TridentError):
    """The coordinator has stopped because continuing could lose or double data."""


class PositionLost(Halted, SourceError):
    """A source's own record of its progress is lost, damaged, or older than its transactions."""
