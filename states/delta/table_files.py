"""The live files of a Delta table that we made: read as they are, and followed from log entry to log entry.

Spark takes hundreds of milliseconds for a new table version, since it puts the version's files together in a job of its
own and chooses among them in another. Where the files are few and known, that is most of the price of a read.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import reduce

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from trident.coordinators.errors import TableError
from trident.states.core.control import DOMAIN, ControlRecord, decode_control
from trident.states.core.storage import Signature
from trident.states.delta.data_files import require_whole
from trident.states.delta.delta_log import DeltaLog, Watched, follow
from trident.states.delta.kernel_files import LiveFile

# Of more paths at once Spark lists the files in a job (spark.sql.sources.parallelPartitionDiscovery.threshold).
PATHS_PER_SCAN = 32
# To list a file takes the Kernel a third of a millisecond, to read a small one several: of more, Delta chooses.
FEW_FILES = 256
# Spark reads a path with one of these as a pattern; and told not to, it reads each file once for every path.
_PATTERN = frozenset("{}[]*?\\")


class NotFollowed(TableError):
    """The table's log cannot be followed here; the Kernel and Spark can read the table all the same."""


class TableFiles:
    """A table as of its newest version when :meth:`refresh` was last called.

    Args:
        app: the ``txn_app_id`` whose version is followed.

    Attributes:
        merged: the ``txn_version`` of ``app``, None when there is none.
        files: path -> file, in the order in which they came. Its owner lets go of those that it has read.

    Raises:
        TableMissing: there is no table.
        NotFollowed: its rows are not those of its files.
        TableError: it cannot be read.
    """

    def __init__(self, path: str, app: str | None = None) -> None:
        self._log, self._app = DeltaLog(path), app
        found = self._log.at()
        if found.why_not_rows is not None:
            raise NotFollowed(f"table {path} has {found.why_not_rows}")
        self.path, self.version, self.schema_json = path, found.version, found.schema_json
        self._signature: Signature | None = found.entry
        self.control: ControlRecord = decode_control(path, found.control(DOMAIN))
        self.merged = None if app is None else found.txn_version(app)
        self.files = dict(found.files)

    def refresh(self) -> bool:
        """Goes on to the table's newest version.

        Returns:
            False when this is another table than before, or its log went back: make a new object.

        Raises: as the constructor.
        """
        newer = self._log.since(Watched(self.path, self.version, self._signature))
        for commit, signature in newer or ():
            if any(file.has_vector for file in commit.added):
                raise NotFollowed(f"table {self.path} has files of which only some rows count")
            self.files = follow([commit], self.files)
            if DOMAIN in commit.domains:
                self.control = decode_control(self.path, commit.domains[DOMAIN])
            if self._app is not None:
                self.merged = commit.txns.get(self._app, self.merged)
            if commit.metadata is not None:
                self.schema_json = commit.metadata["schemaString"]
            self.version, self._signature = commit.version, signature
        return newer is not None


def scan(spark: "SparkSession", root: str, schema_json: str, files: Sequence[LiveFile]) -> "DataFrame":
    """The rows of some files of a table of ours.

    Args:
        schema_json: of the table; null in a column that a file does not have.
        files: of the table; few.

    Raises:
        NotFollowed: Spark cannot be told such a path.
        TableError: a file is not there, or has another length than the log says.
    """
    schema = StructType.fromJson(json.loads(schema_json))
    if not files:
        return spark.createDataFrame([], schema)
    full = [f"{root}/{file.path}" for file in files]
    if any(_PATTERN & set(path) for path in full):
        raise NotFollowed(f"Spark takes a path of table {root} for a pattern")
    require_whole(f"table {root}", root, files)
    scans = [
        spark.read.schema(schema).parquet(*full[start : start + PATHS_PER_SCAN])
        for start in range(0, len(full), PATHS_PER_SCAN)
    ]
    return reduce(lambda a, b: a.union(b), scans)
