"""The live files of a Delta table that we made: read as they are, and followed from log entry to log entry.

To look at a new table version takes the Kernel tens of milliseconds and Spark
hundreds, since it puts the version's files together in a job of its own and
chooses among them in another. Where the files are few and known, that is
most of the price of a read. A transaction that looks values up would pay it
every time, to learn of one more log entry which says in a few hundred bytes
what was added: so lookups (``trident.states.keyed.lookups``) read each new entry
themselves, once.

Delta's protocol: https://github.com/delta-io/delta/blob/master/PROTOCOL.md
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import StructType

from trident.coordinators.errors import TableError
from trident.states.core.control import DOMAIN, ControlRecord, decode_control
from trident.states.delta import history
from trident.states.delta.delta_log import DeltaLog, TableCommit, Watched, follow
from trident.states.delta.kernel import KernelEngine
from trident.states.delta.kernel_files import LiveFile
from trident.states.delta.log_tables import LogTables
from trident.states.delta.whole_files import require_whole

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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
        engine: Delta's Kernel, or the tables' logs alone.
        app: the ``txn_app_id`` whose version is followed.
        above: leave out files that came with a control record's txid of at
            most this; of a long log few are then looked at.

    Attributes:
        merged: the ``txn_version`` of ``app``, None when there is none.
        files: path -> file, in the order in which they came.

    Raises:
        TableMissing: there is no table.
        NotFollowed: it has files of which only some rows count, or is not on a local disk.
        TableError: it cannot be read.
    """

    def __init__(
        self, engine: KernelEngine | LogTables, path: str, app: str | None = None, above: int | None = None
    ) -> None:
        snapshot: Any = engine.load(path)
        self.path, self.version, self.schema_json = path, snapshot.version, snapshot.schema_json
        self.control: ControlRecord = decode_control(path, snapshot.control(DOMAIN))
        self._app = app
        self.merged = None if app is None else snapshot.txn_version(app)
        self.files: dict[str, LiveFile] = {}
        self._log = DeltaLog(path)
        self._signature = self._log.signature(self.version)
        if self._signature is None:  # a hole, or another file system
            raise NotFollowed(f"the log of table {path} has no entry for version {self.version}")
        since = None if above is None else history.find_version_by_control(path, DOMAIN, above)
        if since is None:
            self.files = {file.path: file for file in engine.live_files(snapshot)}
        else:
            self.files = follow(map(self._whole, self._log.commits(since + 1, self.version)))

    def refresh(self) -> bool:
        """Goes on to the table's newest version.

        Returns:
            False when this is another table than before, or its log went back: make a new object.

        Raises: as the constructor.
        """
        newer = self._log.since(Watched(self.path, self.version, self._signature))
        for commit, signature in newer or ():
            self.files = follow([self._whole(commit)], self.files)
            if DOMAIN in commit.domains:
                self.control = decode_control(self.path, commit.domains[DOMAIN])
            if self._app is not None:
                self.merged = commit.txns.get(self._app, self.merged)
            if commit.metadata is not None:
                self.schema_json = commit.metadata["schemaString"]
            self.version, self._signature = commit.version, signature
        return newer is not None

    def _whole(self, commit: TableCommit) -> TableCommit:
        if any(file.has_vector for file in commit.added):
            raise NotFollowed(f"table {self.path} has files of which only some rows count")
        return commit


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
