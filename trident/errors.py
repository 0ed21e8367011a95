"""The errors of this framework, under the name that users import them by.

The tree is drawn and defined in ``coordinators/errors.py``: the coordinator
raises them too, and it may not import ``trident``.
"""

from __future__ import annotations

from coordinators.errors import (
    AttemptCapReached,
    BatchError,
    BatchTimeout,
    CommitConflict,
    ConfigError,
    CoordinationError,
    CorruptZnode,
    Deposed,
    EnvironmentProblem,
    FailedException,
    FieldError,
    ForeignTable,
    Halted,
    IdentityMismatch,
    JavaProblem,
    OutcomeUnknown,
    OutputTypeError,
    SchemaMismatch,
    SourceError,
    SparkSessionProblem,
    StagedFileMissing,
    StaleState,
    TableError,
    TopologyError,
    TridentError,
    UserFunctionError,
    ValueTooLarge,
    ZooKeeperUnreachable,
)

__all__ = [
    "AttemptCapReached",
    "BatchError",
    "BatchTimeout",
    "CommitConflict",
    "ConfigError",
    "CoordinationError",
    "CorruptZnode",
    "Deposed",
    "EnvironmentProblem",
    "FailedException",
    "FieldError",
    "ForeignTable",
    "Halted",
    "IdentityMismatch",
    "JavaProblem",
    "OutcomeUnknown",
    "OutputTypeError",
    "SchemaMismatch",
    "SourceError",
    "SparkSessionProblem",
    "StagedFileMissing",
    "StaleState",
    "TableError",
    "TopologyError",
    "TridentError",
    "UserFunctionError",
    "ValueTooLarge",
    "ZooKeeperUnreachable",
]
