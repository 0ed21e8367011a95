"""The exit codes of the command line, by errors and by the conditions of topologies.

0 stopped or done, 1 the attempt cap was reached, 2 bad input, 3 HALT (a person
must look), 4 ZooKeeper, or the store of a warehouse, unreachable, or ZooKeeper
refuses a certificate or a password.
``diff`` ends with 1 where two topologies differ, with 6 where no transaction could be compared; ``handover`` with 1
where a rehearsal gives other rows or fails, with 6 where not everything could be compared.
``status`` and ``zookeeper status`` end with 5 when what they tell of does not
run, ``status`` also with 1 or 3 when that is how it ended. Beside these 70 for
an error of the framework itself, or a JVM that has died, 130 for an interrupted
command, and 143 for a topology that SIGTERM has ended while it started.
"""

from __future__ import annotations

from trident.coordinators.errors import (
    AttemptCapReached,
    BatchError,
    ConfigError,
    CoordinationError,
    EnvironmentProblem,
    ForeignTable,
    Halted,
    IdentityMismatch,
    SchemaMismatch,
    SessionEnded,
    SourceError,
    StorageProblem,
    StoreProblem,
    StoreUnreachable,
    TopologyError,
    TransactionNotKept,
    TridentError,
    ZooKeeperUnreachable,
)

EXIT_ATTEMPT_CAP, EXIT_BAD_INPUT, EXIT_HALT, EXIT_UNREACHABLE, EXIT_NOT_RUNNING = 1, 2, 3, 4, 5
EXIT_INTERNAL, EXIT_INTERRUPTED = 70, 130
EXIT_DIFFERENT, EXIT_NOT_COMPARED = 1, 6
# The exit codes of `status`; of several topologies the first of these that is one's.
EXIT_OF_CONDITION = {
    "halted": EXIT_HALT,
    "failed": EXIT_ATTEMPT_CAP,
    "gone": EXIT_NOT_RUNNING,
    "stopped": EXIT_NOT_RUNNING,
}

_BAD_INPUT = (
    TopologyError,
    ConfigError,
    EnvironmentProblem,
    SourceError,
    IdentityMismatch,
    SchemaMismatch,
    ForeignTable,
    TransactionNotKept,
)


def exit_code(error: BaseException) -> int:
    """The exit code for an error that ended a command."""
    if isinstance(error, StoreProblem):
        return EXIT_UNREACHABLE if isinstance(error, StoreUnreachable) else EXIT_BAD_INPUT
    # A recovery that met a full disk too often is given up like a batch.
    if isinstance(error, (AttemptCapReached, BatchError, StorageProblem)):
        return EXIT_ATTEMPT_CAP
    if isinstance(error, SessionEnded):
        return EXIT_INTERNAL  # a service is started again
    if isinstance(error, Halted):
        return EXIT_HALT
    # The bare classes are refusals: "it is running", "there is no such topology".
    if isinstance(error, _BAD_INPUT) or type(error) in (TridentError, CoordinationError):
        return EXIT_BAD_INPUT
    if isinstance(error, ZooKeeperUnreachable):
        return EXIT_UNREACHABLE
    if isinstance(error, TridentError):
        return EXIT_HALT  # coordination or a table is not as it must be
    return EXIT_INTERRUPTED if isinstance(error, KeyboardInterrupt) else EXIT_INTERNAL
