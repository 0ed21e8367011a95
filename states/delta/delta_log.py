"""The one reader of a Delta table's log: what a commit did, and what all of them come to at a version.

A version is made by a checkpoint, of any kind, and the entries after it (:class:`Segment`, as in Delta's Kernel). Both
are read as :class:`TableCommit`, the oldest first, and each reader folds these to what it needs: :class:`LogSnapshot`
here, sums, marks and raw actions elsewhere. Pure Python; no JVM, nothing is written. An entry never changes, and its
file's signature tells it from one of a table that was made anew.

delta-rs (``deltalake``) reads the same logs. It gives no domain metadata, and thus none of our control records, nor
single commits, and would be 130 MB more to install.

Delta's protocol: https://github.com/delta-io/delta/blob/master/PROTOCOL.md
"""

from __future__ import annotations

import io
import json
import re
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import chain
from typing import Any, Generic, NamedTuple, Protocol, TypeVar
from urllib.parse import unquote

from trident.coordinators.errors import TableError
from trident.coordinators.stored_json import shown
from trident.states.core import storage
from trident.states.core.storage import AnyPath, Signature, run_concurrently
from trident.states.delta.kernel_files import LiveFile, live_file

ENTRY = re.compile(r"(\d{20})\.json")
# Whole, in parts, or with a unique name (a V2 checkpoint, Parquet or JSON).
CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.\d{10}\.(\d{10})|\.[0-9a-f-]{36})?\.(?:parquet|json)")
# Entries that are held at once while many of a store are read, and rows of a checkpoint: of a table of many files all
# of them as Python values would be half a gigabyte.
_READ_AT_ONCE, _ROWS_AT_ONCE = 64, 4096
# Features of a table that leave its data files plain Parquet, or that show in its live files or its properties.
_READABLE = frozenset({"columnMapping", "deletionVectors", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"})

RETENTION_PROPERTY = "delta.setTransactionRetentionDuration"
_DESCRIBING, _LISTED = ("metaData", "protocol"), ("add", "remove", "cdc", "domainMetadata")
_ADDED = ("path", "size", "partitionValues", "modificationTime", "stats", "deletionVector")
_KINDS = (*_DESCRIBING, "txn", "domainMetadata", "sidecar", "add")
_COLUMNS = (*_KINDS[:-1], *(f"add.{name}" for name in _ADDED))

Action = tuple[str, Mapping[str, Any]]


class TableMissing(TableError):
    """There is no Delta table at the path."""


@contextmanager
def by_protocol(what: str) -> Iterator[None]:
    """Makes a TableError of what goes wrong with actions that are not as Delta's protocol says."""
    try:
        yield
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise TableError(f"{what} is not as Delta's protocol says", found=repr(error)) from error


@dataclass(frozen=True)
class TableCommit:
    """One log entry, or a part of a checkpoint.

    Attributes:
        actions: as they are written: (kind, body).
        info: what the writer says of itself.
        domains: domain -> its configuration as it is stored (None: the domain was removed).
        txns: ``txn_app_id`` -> ``txn_version`` that the commit set.
        added: the files added.
        removes: paths of the files removed, not URL-encoded. One that is among ``added``, too, is there afterwards.
        changes: paths of the files of its change data feed, not URL-encoded.
        metadata, protocol: those that hold from this commit on, None when it set none.
        data_change: whether a file action says that rows changed.
        harm: what it changed in the metadata that may not stay; "": nothing. Known of commits from
            ``history.commits_since``.
    """

    version: int
    actions: Sequence[Action] = field(repr=False)
    info: Mapping[str, Any]
    domains: Mapping[str, str | None]
    txns: Mapping[str, int]
    added: tuple[LiveFile, ...]
    removes: tuple[str, ...]
    changes: tuple[str, ...]
    metadata: Mapping[str, Any] | None
    protocol: Mapping[str, Any] | None
    data_change: bool
    harm: str = "changed the schema or the table properties"

    @classmethod
    def of(cls, version: int, actions: Sequence[Action]) -> TableCommit:
        """Reads actions; raises whatever comes of actions that are not as the protocol says."""
        of_kind: dict[str, list[Mapping[str, Any]]] = {}
        for kind, body in actions:
            of_kind.setdefault(kind, []).append(body)
        added, removed, changed, domains = (of_kind.get(kind, []) for kind in _LISTED)
        metadata, protocol, info = (of_kind.get(kind, [None])[-1] for kind in (*_DESCRIBING, "commitInfo"))
        return cls(
            version,
            actions,
            dict(info or {}),
            {one["domain"]: None if one.get("removed") else _text(one["configuration"]) for one in domains},
            {one["appId"]: int(one["version"]) for one in of_kind.get("txn", [])},
            tuple(map(live_file, added)),
            tuple(unquote(one["path"]) for one in removed),
            tuple(unquote(one["path"]) for one in changed),
            metadata and {**metadata, "configuration": dict(metadata.get("configuration") or ())},
            protocol,
            # The protocol has no default: an action that does not say is taken as a change.
            bool(changed) or any(one.get("dataChange", True) for one in (*added, *removed)),
        )

    @property
    def operation(self) -> str:
        """As the writer named it ("WRITE", "OPTIMIZE", ...), "" when it did not."""
        return str(self.info.get("operation") or "")

    @property
    def engine_info(self) -> str:
        """The writer; Kernel puts "Kernel-<its version>/" before what we give it."""
        return str(self.info.get("engineInfo") or "")

    @property
    def adds(self) -> tuple[str, ...]:
        """Paths of the files added, not URL-encoded."""
        return tuple(file.path for file in self.added)

    @cached_property
    def control(self) -> Mapping[str, object]:
        """Domain -> its JSON as Python values; as text where another writer has stored something else."""
        return {domain: None if text is None else _parsed(text) for domain, text in self.domains.items()}

    def noted(self, key: str) -> Mapping[str, Any]:
        """The JSON object under a key of the user metadata; an empty one when there is none."""
        said = _parsed(self.info.get("userMetadata") or "null")
        found = said.get(key) if isinstance(said, dict) else None
        return found if isinstance(found, dict) else {}


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _parsed(text: Any) -> object:
    try:
        return json.loads(text)
    except (TypeError, ValueError, RecursionError):
        return text


def json_lines(file: str) -> list[Any]:
    return [json.loads(line) for line in storage.read(file).decode("utf-8").split("\n") if line.strip()]


def has_log(path: AnyPath) -> bool:
    """Tells whether a folder is a Delta table."""
    return storage.is_folder(storage.join(path, "_delta_log"))


def check_keeps_ids(path: str, properties: Mapping[str, str]) -> None:
    """Raises TableError of a table that loses transaction ids after a while."""
    if RETENTION_PROPERTY in properties:
        raise TableError(
            f"table {path} forgets transaction ids",
            found=f"{RETENTION_PROPERTY} = {properties[RETENTION_PROPERTY]}",
            expected="the property not set",
            action=f"ALTER TABLE ... UNSET TBLPROPERTIES ('{RETENTION_PROPERTY}')",
        )


def unchanged(tables: Sequence[Watched]) -> set[str]:
    """The paths of those tables whose newest log entry is still the one that was seen.

    Each costs two requests; at a store all of these are under way at once.
    """

    def entry(table: Watched) -> bool:
        return table.entry is not None and DeltaLog(table.path).signature(table.version) == table.entry

    def is_newest(table: Watched) -> bool:
        return DeltaLog(table.path).signature(table.version + 1) is None

    if all(storage.local_path(table.path) is not None for table in tables):
        return {table.path for table in tables if entry(table) and is_newest(table)}
    found = run_concurrently([partial(look, table) for table in tables for look in (entry, is_newest)])
    return {table.path for table, same, newest in zip(tables, found[::2], found[1::2]) if same and newest}


def follow(commits: Iterable[TableCommit], files: Mapping[str, LiveFile] | None = None) -> dict[str, LiveFile]:
    """The live files of a table after some commits, by path, in the order in which they came.

    Args:
        files: those before the commits; none: of a table without files, or of no interest.
    """
    found = dict(files or {})
    for commit in commits:
        for path in commit.removes:
            found.pop(path, None)
        found.update({file.path: file for file in commit.added})
    return found


def stored_adds(commits: Iterable[TableCommit]) -> dict[str, Mapping[str, Any]]:
    """As :func:`follow`, the ``add`` actions word for word: statistics are not made anew."""
    found: dict[str, Mapping[str, Any]] = {}
    for commit in commits:
        for path in commit.removes:
            found.pop(path, None)
        found.update({unquote(body["path"]): body for kind, body in commit.actions if kind == "add"})
    return found


class Described(NamedTuple):
    """How a log describes a table as of a version.

    Attributes:
        metadata: the metadata in force.
        since: a version from which on it has been.
        protocol: the protocol, where it was met on the way to the metadata.
    """

    metadata: Mapping[str, Any]
    since: int
    protocol: Mapping[str, Any] | None


class Watched(NamedTuple):
    """A table as it was last seen.

    Attributes:
        entry: the signature of the version's log entry; None: not known.
    """

    path: str
    version: int
    entry: Signature | None


class DeltaLog:
    """The log of one Delta table. Remembers nothing: each call reads what is there.

    Args:
        path: the table's folder.

    Raises:
        TableError: on all calls: the log is in a file system that only Spark reads, or what is wrong with it.
    """

    def __init__(self, path: AnyPath) -> None:
        self.path = str(path)

    @property
    def folder(self) -> str:
        root = storage.reached_path(self.path)
        if root is None:
            raise TableError(
                f"the framework cannot read the log of table {self.path}",
                expected="a path, a file: URI, or a URL that is s3a: or hdfs:",
            )
        return storage.join(root, "_delta_log")

    # --- entries -------------------------------------------------------------------------------------

    def entry(self, version: int) -> str:
        """The file of a log entry, which may not be there."""
        return storage.join(self.folder, f"{version:020d}.json")

    def signature(self, version: int) -> Signature | None:
        """Tells a log entry from one of the same version in a table that was made anew; None when there is none."""
        found = storage.stat_file(self.entry(version))
        return None if found is None else found.signature

    def listed(self) -> tuple[list[int], dict[int, list[str]]]:
        """The versions that have a log entry, in their order; and by version the names of checkpoints' files."""
        try:
            names = sorted(storage.list_names(self.folder))
        except OSError as error:
            raise TableError(f"the log of table {self.path} cannot be listed", found=error) from error
        checkpoints: dict[int, list[str]] = {}
        for name in filter(CHECKPOINT.fullmatch, names):
            checkpoints.setdefault(int(name[:20]), []).append(name)
        return [int(name[:20]) for name in names if ENTRY.fullmatch(name)], checkpoints

    def versions(self) -> list[int]:
        """The versions that have a log entry, in their order; none when there is no log."""
        return self.listed()[0]

    def contiguous_versions(self, upto: int | None = None) -> list[int]:
        """The longest tail of the versions without a hole: entries below a hole belong to no readable version.

        Args:
            upto: a version, of which the tail up to it is wanted.
        """
        found = [version for version in self.versions() if upto is None or version <= upto]
        start = max(len(found) - 1, 0)
        while start > 0 and found[start - 1] == found[start] - 1:
            start -= 1
        return found[start:]

    def newest(self) -> int:
        """The newest version that has a log entry."""
        versions = self.versions()
        if not versions:
            raise TableError(f"there is no Delta log at {self.path}")
        return versions[-1]

    def actions(self, version: int) -> list[Action]:
        """The actions of the commit that made a version, at least one."""
        try:
            lines = json_lines(self.entry(version))
        except FileNotFoundError:
            raise TableError(
                f"the log of table {self.path} has no entry for version {version}",
                expected=f"{version:020d}.json",
                action="if it was cleaned up, raise delta.logRetentionDuration",
            ) from None
        except (OSError, ValueError, RecursionError) as error:
            raise TableError(
                f"log entry {version} of table {self.path} cannot be read: {error}",
                found=getattr(error, "found", None),
                expected="a file of JSON objects, one a line, by Delta's protocol",
                action="bring the table back from a back-up",
            ) from error
        if not lines:
            raise TableError(
                f"log entry {version} of table {self.path} is empty",
                found="no action",
                expected="the actions of a commit",
                action="bring the file back from a back-up: the rows that it names would be missing without a word",
            )
        wrong = next((line for line in lines if not isinstance(line, dict)), None)
        if wrong is not None:
            raise TableError(
                f"log entry {version} of table {self.path} is not as Delta's protocol says",
                found=shown(json.dumps(wrong)),
            )
        return [action for line in lines for action in line.items() if action[1] is not None]

    def commit(self, version: int) -> TableCommit:
        """The commit that made a version."""
        actions = self.actions(version)
        with by_protocol(f"log entry {version} of table {self.path}"):
            return TableCommit.of(version, actions)

    def commits(self, first: int, last: int) -> Iterator[TableCommit]:
        """The commits that made some versions, the oldest first; at a store some are read side by side."""
        at_once = 1 if storage.local_path(self.path) is not None else _READ_AT_ONCE
        for begin in range(first, last + 1, at_once):
            some = range(begin, min(begin + at_once, last + 1))
            yield from run_concurrently([partial(self.commit, version) for version in some])

    def commits_backwards(self, version: int | None = None, lowest: int = 0) -> Iterator[TableCommit]:
        """The commits from a version, or the newest, down to another, or to where entries were cleaned up."""
        for each in range(self.newest() if version is None else version, lowest - 1, -1):
            try:
                yield self.commit(each)
            except TableError:
                if self.signature(each) is not None:
                    raise
                return

    def since(self, known: Watched | TableAt) -> list[tuple[TableCommit, Signature]] | None:
        """The commits after a known version, with the signatures of their entries; None: that is another table's."""
        if known.entry is None or self.signature(known.version) != known.entry:
            return None
        found: list[tuple[TableCommit, Signature]] = []
        while (signature := self.signature(known.version + 1 + len(found))) is not None:
            found.append((self.commit(known.version + 1 + len(found)), signature))
        return found

    # --- versions ------------------------------------------------------------------------------------

    def segment(self, version: int | None = None) -> Segment:
        """The part of the log that makes a version, by default the newest.

        Raises:
            TableMissing: there is no log.
        """
        versions, checkpoints = self.listed()
        if not versions:
            raise TableMissing(f"there is no Delta table at {self.path}")
        wanted = versions[-1] if version is None else version
        for at in sorted(checkpoints, reverse=True):
            if at <= wanted and (files := self.whole_checkpoint(checkpoints[at])):
                return Segment(self, wanted, at, files)
        return Segment(self, wanted, -1, ())

    def whole_checkpoint(self, names: Sequence[str]) -> list[str]:
        """The files of one checkpoint of a version, none where none is whole; Delta too passes over empty files."""
        parts: dict[str, list[str]] = {}
        for name in names:
            there = storage.stat(storage.join(self.folder, name))
            if there is not None and there.is_file and there.size:
                parts.setdefault(CHECKPOINT.sub(r"\2", name), []).append(name)
        single = parts.pop("", [])[:1]
        return single or next((files for count, files in parts.items() if len(files) == int(count)), [])

    def at(self, version: int | None = None) -> LogSnapshot:
        """The table as of a version, by default the newest.

        Raises:
            TableMissing: there is no table.
            TableError: what is left of the log does not reach back to it.
        """
        segment = self.segment(version)
        return LogSnapshot.of(segment.table, segment.replay())

    def kept(self, version: int) -> LogSnapshot | None:
        """As :meth:`at`; None where it was cleaned up: entries may be there without the checkpoint before them."""
        segment = self.segment(version)
        if segment.begin < 0 and self.signature(0) is None:
            return None
        return LogSnapshot.of(segment.table, segment.replay())

    def described(self, version: int) -> Described | None:
        """The metadata in force at a version: only what is needed of the log is read, and no file of the table.

        Returns:
            None when what is left of the log does not say.
        """
        segment, protocol, reached = self.segment(version), None, version + 1
        for commit in self.commits_backwards(version, segment.begin + 1):
            reached, protocol = commit.version, protocol or commit.protocol
            if commit.metadata is not None:
                return Described(commit.metadata, commit.version, protocol)
        metadata = None
        for part in segment.checkpoint(_DESCRIBING) if reached == segment.begin + 1 else ():
            metadata, protocol = metadata or part.metadata, protocol or part.protocol
        return Described(metadata, segment.begin, protocol) if metadata else None

    def last_checkpoint(self) -> dict[str, Any] | None:
        """The pointer to the last checkpoint: its version, its size in actions. None when there is none.

        Raises:
            ValueError, OSError: it cannot be read.
        """
        try:
            found = json.loads(storage.read(storage.join(self.folder, "_last_checkpoint")))
        except FileNotFoundError:
            return None
        if not isinstance(found, dict):
            raise ValueError(f"not an object: {found!r}")
        return found


@dataclass(frozen=True)
class Segment:
    """The part of a log that makes a table version.

    Attributes:
        begin: the version of its checkpoint, -1 without one.
        files: of the checkpoint.
    """

    log: DeltaLog
    version: int
    begin: int
    files: Sequence[str]

    @property
    def table(self) -> Watched:
        return Watched(self.log.path, self.version, self.log.signature(self.version))

    def replay(self) -> Iterator[TableCommit]:
        """The checkpoint, in parts and without removed files, and the entries after it."""
        return chain(self.checkpoint(), self.entries())

    def entries(self) -> Iterator[TableCommit]:
        return self.log.commits(self.begin + 1, self.version)

    def checkpoint(self, kinds: Sequence[str] = _KINDS) -> Iterator[TableCommit]:
        """The checkpoint in parts, of which few are held at once."""
        for name in self.files:
            yield from self._of_file(name, kinds)

    def _of_file(self, name: str, kinds: Sequence[str]) -> Iterator[TableCommit]:
        import pyarrow as pa  # late: few logs need it, and it takes a third of a second

        what = f"checkpoint {name} of table {self.log.path}"
        try:
            for actions in _in_checkpoint(storage.join(self.log.folder, name), kinds):
                with by_protocol(what):
                    part = TableCommit.of(self.begin, actions)
                yield part
                for kind, body in actions:
                    if kind == "sidecar":
                        yield from self._of_file(f"_sidecars/{body['path']}", kinds)
        except (OSError, pa.ArrowException, KeyError, ValueError, RecursionError) as error:
            raise TableError(f"{what} cannot be read", found=error) from error


def _in_checkpoint(file: str, kinds: Sequence[str]) -> Iterator[list[Action]]:
    if file.endswith(".json"):
        yield [action for line in json_lines(file) for action in line.items() if action[0] in kinds]
        return
    import pyarrow.parquet as pq  # late: as above

    columns = [name for name in _COLUMNS if name.partition(".")[0] in kinds]
    for batch in pq.ParquetFile(io.BytesIO(storage.read(file))).iter_batches(_ROWS_AT_ONCE, columns=columns):
        yield [
            (kind, _as_written(body))
            for kind in batch.schema.names
            for body in batch.column(kind).drop_null().to_pylist()
        ]


def _as_written(body: Mapping[str, Any]) -> dict[str, Any]:
    """The body of an action as an entry would have it: without nulls, and no map as a list of pairs."""
    there = {name: value for name, value in body.items() if value is not None}
    return there if "partitionValues" not in there else {**there, "partitionValues": dict(there["partitionValues"])}


@dataclass
class Facts:
    """The facts of a table in its commits, but for its files."""

    metadata: Mapping[str, Any]
    protocol: Mapping[str, Any]
    domains: dict[str, str]
    txns: dict[str, int]

    @classmethod
    def of(cls, known: TableAt | None) -> Facts:
        if known is None:
            return cls({}, {}, {}, {})
        return cls(known.metadata, known.protocol, dict(known.domains), dict(known.txns))

    def seen(self, commits: Iterable[TableCommit]) -> Iterator[TableCommit]:
        """The same commits, of which this takes its own part on the way."""
        for commit in commits:
            self.metadata, self.protocol = commit.metadata or self.metadata, commit.protocol or self.protocol
            self.txns.update(commit.txns)
            for domain, text in commit.domains.items():
                self.domains.pop(domain, None)
                if text is not None:
                    self.domains[domain] = text
            yield commit

    def at(self, table: Watched) -> dict[str, Any]:
        """The fields of :class:`TableAt`."""
        if not self.metadata or not self.protocol or table.entry is None:
            what = f"the log of table {table.path} does not say what the table is"
            raise TableError(what, found=f"version {table.version}")
        return {**table._asdict(), **vars(self)}


@dataclass(frozen=True)
class TableAt:
    """A table version as its log says it, but for its files.

    Attributes:
        entry: the signature of the version's log entry.
    """

    path: str
    version: int
    entry: Signature
    metadata: Mapping[str, Any]
    protocol: Mapping[str, Any]
    domains: Mapping[str, str]
    txns: Mapping[str, int]

    @property
    def schema_json(self) -> str:
        found: str = self.metadata["schemaString"]
        return found

    def control(self, domain: str) -> str | None:
        return self.domains.get(domain)

    def txn_version(self, app: str) -> int | None:
        return self.txns.get(app)


@dataclass(frozen=True)
class LogSnapshot(TableAt):
    """A table version with its files.

    Attributes:
        files: path → file, in the order in which they came.
    """

    files: Mapping[str, LiveFile]

    @classmethod
    def of(cls, table: Watched, commits: Iterable[TableCommit], before: LogSnapshot | None = None) -> LogSnapshot:
        """The table after some commits, all of them where nothing is known of it before."""
        facts = Facts.of(before)
        files = follow(facts.seen(commits), None if before is None else before.files)
        return cls(**facts.at(table), files=files)

    @property
    def why_not_rows(self) -> str | None:
        """Tells why the rows are not those of the live Parquet files, by their names; None where they are."""
        features = set(self.protocol.get("readerFeatures") or ()) - _READABLE
        if features or self.protocol.get("minReaderVersion", 1) > 3:
            return f"table features that a reader must know: {', '.join(sorted(features)) or self.protocol}"
        if self.metadata["configuration"].get("delta.columnMapping.mode", "none") != "none":
            return "columns that have other names in the files (column mapping)"
        if self.metadata.get("partitionColumns"):
            return "columns that are not in the files (the table is partitioned)"
        return "files of which only some rows count (deletion vectors)" if self.has_vectors else None

    @property
    def has_vectors(self) -> bool:
        """Tells whether there are files of which only some rows count."""
        return any(file.has_vector for file in self.files.values())


# Delta tables by their logs alone, remembered as they were read last; and the port that they share with Kernel's.
#
# Of a table that was read before only the entries since then are read. Where its files may be very many and only sums
# are of interest, :class:`SizedTables` keeps no file in memory.


_TABLES_MAX = 256


class TableAsOf(Protocol):
    """A Delta table as of one table version, as those who only read it need it. See ``kernel.TableSnapshot``."""

    @property
    def path(self) -> str: ...

    @property
    def version(self) -> int: ...

    @property
    def schema_json(self) -> str: ...

    def control(self, domain: str) -> str | None: ...

    def txn_version(self, app: str) -> int | None: ...


Snapshot = TypeVar("Snapshot", bound=TableAsOf)
_Known = TypeVar("_Known", bound=TableAt)


class _Remembered(ABC, Generic[_Known]):
    """The newest version that was seen of each table. May be used by several threads."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._lock = threading.Lock()

    def load(self, path: str) -> _Known:
        """The newest version of a table.

        Raises:
            TableMissing: there is no table.
            TableError: its log cannot be read.
        """
        log = DeltaLog(path)
        with self._lock:
            found = self._known.pop(path, None)
            newer = None if found is None else log.since(found)
            if found is not None and newer:
                commits = [commit for commit, _ in newer]
                found = self._after(found, Watched(path, commits[-1].version, newer[-1][1]), commits)
            if found is None or newer is None:
                found = self._read(log.segment())
            self._known[path] = found
            if len(self._known) > _TABLES_MAX:
                self._known.popitem(last=False)
            return found

    @abstractmethod
    def _read(self, segment: Segment) -> _Known: ...

    @abstractmethod
    def _after(self, known: _Known, table: Watched, commits: Sequence[TableCommit]) -> _Known | None:
        """The table after some commits; None where it must be read anew."""


class LogTables(_Remembered[LogSnapshot]):
    """Reads tables with their files."""

    def live_files(self, snapshot: LogSnapshot) -> list[LiveFile]:
        """The data files of a table version, all of whose rows count.

        Raises:
            TableError: its rows are not those of its files.
        """
        if snapshot.why_not_rows is not None:
            raise TableError(f"table {snapshot.path} has {snapshot.why_not_rows}")
        return list(snapshot.files.values())

    def _read(self, segment: Segment) -> LogSnapshot:
        return LogSnapshot.of(segment.table, segment.replay())

    def _after(self, known: LogSnapshot, table: Watched, commits: Sequence[TableCommit]) -> LogSnapshot:
        return LogSnapshot.of(table, commits, known)


@dataclass(frozen=True)
class TableTotals(TableAt):
    """A table version without its files.

    Attributes:
        files, bytes: of the live files.
        counted: rows of the files whose statistics say how many count.
        uncounted: the number of the others.
    """

    files: int = 0
    bytes: int = 0
    counted: int = 0
    uncounted: int = 0

    @property
    def rows(self) -> int | None:
        """None where the log does not say."""
        return None if self.uncounted else self.counted


def totals_of(snapshot: LogSnapshot) -> TableTotals:
    """The sums of a table whose files are known."""
    table = Watched(snapshot.path, snapshot.version, snapshot.entry)
    return _sum_totals(Facts.of(snapshot), table, snapshot.files.values())


class SizedTables(_Remembered[TableTotals]):
    """Reads how large tables are."""

    def _read(self, segment: Segment) -> TableTotals:
        facts, last = Facts.of(None), dict[str, LiveFile | None]()

        def live() -> Iterator[LiveFile]:
            entries = list(segment.entries())  # few; they have the last word on a file
            for commit in entries:
                last.update(dict.fromkeys(commit.removes) | {file.path: file for file in commit.added})
            for part in facts.seen(segment.checkpoint()):
                yield from (file for file in part.added if file.path not in last)
            list(facts.seen(entries))
            yield from filter(None, last.values())

        return _sum_totals(facts, segment.table, live())

    def _after(self, known: TableTotals, table: Watched, commits: Sequence[TableCommit]) -> TableTotals | None:
        adds = (body for commit in commits for kind, body in commit.actions if kind == "add")
        # One that adds no rows may be of a file that is there already: with other statistics, for example.
        if any(commit.removes for commit in commits) or not all(body.get("dataChange", True) for body in adds):
            return None
        facts = Facts.of(known)
        return _sum_totals(facts, table, (file for commit in facts.seen(commits) for file in commit.added), known)


def _sum_totals(
    facts: Facts, table: Watched, files: Iterable[LiveFile], known: TableTotals | None = None
) -> TableTotals:
    count, size, counted, uncounted = (
        (0, 0, 0, 0) if known is None else (known.files, known.bytes, known.counted, known.uncounted)
    )
    for file in files:
        rows = None if file.has_vector else file.num_records
        count, size = count + 1, size + file.size
        counted, uncounted = counted + (rows or 0), uncounted + (rows is None)
    return TableTotals(**facts.at(table), files=count, bytes=size, counted=counted, uncounted=uncounted)
