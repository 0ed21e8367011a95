"""The manifest: everything that is needed to publish one decided batch, in one file.

It is written create-exclusive and flushed before the decision names its path,
size and digest, so a decision can always be finished from the manifest alone:
the batch is not computed again. Tables need nothing besides; a user's own
state needs its code, and a committer spout's commit needs the spout (docs/semantics.md 9.3).
"""

from __future__ import annotations

import hashlib
import json
import re
import time
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

from trident.coordinators import faults
from trident.coordinators.errors import Halted, TableError
from trident.coordinators.identities import TransactionAttempt
from trident.coordinators.ports import AttemptHistory, FailedAttempt
from trident.coordinators.records import Decision
from trident.coordinators.stored_json import MAY_BE_MISSING, Unreadable, as_record, parse_stored, shown
from trident.states.core import storage
from trident.states.core.binding import StateKind
from trident.states.core.kinds import stored_kind
from trident.states.core.names import STREAMS_FOLDER, check_inside
from trident.states.core.place import Place
from trident.states.core.storage import run_concurrently
from trident.states.core.tables import StagedFile

# The facts about a transaction that only the process which ran it knows, as its manifest has them.


_CHARS = 500


@dataclass(frozen=True)
class CommitAnnotations:
    """Written before the decision, with the manifest; times are seconds since the epoch.

    Attributes:
        epoch: of the coordinator.
        code_id: tells the code that processed it; empty: not known.
        begun_at: when the attempt began; None: not known.
        prepared_at: when all was ready to be decided.
        failures: of earlier attempts, as far as this coordinator saw them.
        skipped: the error of a transaction that a person had skipped; None: it was not.
    """

    epoch: int
    code_id: str
    begun_at: float | None
    prepared_at: float
    failures: tuple[FailedAttempt, ...] = ()
    skipped: str | None = None

    @classmethod
    def now(cls, epoch: int, code_id: str, story: AttemptHistory | None, skipped: str | None) -> CommitAnnotations:
        """Of an attempt that is ready to be decided."""
        failures = tuple(replace(one, error=_storable(one.error)) for one in story.failures) if story else ()
        begun_at = story.begun_at if story else None
        said = None if skipped is None else _storable(skipped)
        return cls(epoch, code_id, begun_at, time.time(), failures, said)


def _storable(error: str) -> str:
    """A user's error may have any text: half of a surrogate pair would make the manifest unreadable."""
    return error[:_CHARS].encode("utf-8", "replace").decode("utf-8")


WRITE = faults.register("manifest.write", "writing the manifest of an attempt")
READ = faults.register("manifest.read", "reading the manifest of a decided batch")
CLEAN = faults.register("clean.manifests", "removing manifests that are needed no more")
_SCHEMA = 1
_FILE = re.compile(r"\d+-\d+")
_NAME = re.compile(r"(\d+)-(\d+)(?:-\w+)?\.json")


@dataclass(frozen=True)
class ManifestTable:
    """One table's part of a batch.

    Attributes:
        kind: the stored name of the state's kind; ``state_kind`` is the kind itself.
        path: the folder, relative to the warehouse.
        table_id: Delta's id of the table; "" where there is none.
        schema_hash: of the table's schema when the rows were staged.
        files: the staged files, relative to the folder.
        details: what a state without a table needs besides.
    """

    state: str
    kind: str
    path: str
    table_id: str
    schema_hash: str
    files: tuple[StagedFile, ...]
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def state_kind(self) -> StateKind:
        return stored_kind(self.kind, self.state)

    @property
    def rows(self) -> int:
        return sum(file.num_records for file in self.files)

    def to_json(self) -> dict[str, Any]:
        files = [file.to_json() for file in self.files]
        return {**vars(self), "rows": self.rows, "details": dict(self.details), "files": files}

    @classmethod
    def from_json(cls, value: Any) -> ManifestTable:
        """Reads what to_json() gave."""
        try:
            files = tuple(StagedFile.from_json(file) for file in value["files"])
            known = {key: item for key, item in value.items() if key != "rows"}  # which follows from the files
            table = replace(as_record({**known, "files": []}, cls), files=files)
        except (Unreadable, TypeError, KeyError, AttributeError) as error:
            raise TableError(f"a table of a manifest cannot be read: {error}", found=shown(repr(value))) from None
        check_inside("the folder of a table", table.path)
        stored_kind(table.kind, table.state)
        return table


@dataclass(frozen=True)
class Manifest:
    """One batch as it will be published.

    Attributes:
        attempt: the attempt that was processed.
        parent: the attempt of txid − 1 that it builds on.
        tables: in the order in which they are published.
        spouts: tx_id → {"spout", "kind", "metadata", "commit_data"}.
        told: what only the process knew that wrote it; None: written by a version that did not keep it.
    """

    topology: str
    group: str
    incarnation: str
    attempt: TransactionAttempt
    parent: TransactionAttempt | None
    tables: tuple[ManifestTable, ...]
    spouts: Mapping[str, Mapping[str, Any]]
    told: CommitAnnotations | None = field(default=None, metadata={MAY_BE_MISSING: True})

    def encode(self) -> bytes:
        value = {"schema": _SCHEMA, **vars(self), "tables": [table.to_json() for table in self.tables]}
        value["spouts"] = {tx_id: dict(spout) for tx_id, spout in self.spouts.items()}
        if self.told is None:
            del value["told"]
        else:
            value["told"] = asdict(self.told)
        return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()

    @classmethod
    def decode(cls, data: bytes) -> Manifest:
        """Reads what encode() gave; the digest has been checked before."""
        try:
            value = parse_stored(data)
            tables = tuple(ManifestTable.from_json(table) for table in value["tables"])
            return replace(as_record({**value, "tables": []}, cls, _SCHEMA), tables=tables)
        except (Unreadable, TableError, KeyError, TypeError, AttributeError) as error:
            raise TableError(
                f"the manifest cannot be read: {error!r}", found=shown(data), expected=f"a manifest of schema {_SCHEMA}"
            ) from error


def outlives_process(manifest: Manifest) -> bool:
    """Tells whether the batch has a state that outlives the process. A memory map contradicts nothing."""
    return any(not table.state_kind.in_process for table in manifest.tables)


@dataclass(frozen=True)
class Retention:
    """How long the manifests of published transactions are kept: as long as both bounds allow.

    Attributes:
        txids: of so many transactions back from the last one that has advanced; 0: none is kept.
        secs: since they were written; None: no bound.
    """

    txids: int = 0
    secs: float | None = None


NONE_KEPT = Retention()
ALL_KEPT = Retention(2**62)  # by a command that does not know the topology's settings


def attempt_of(name: str) -> TransactionAttempt | None:
    """The attempt of a manifest, by the name of its file; None for any other file, drafts among them."""
    found = _NAME.fullmatch(name)
    return TransactionAttempt(int(found[1]), int(found[2])) if found else None


class ManifestStore:
    """The manifests of one batch group, under ``<w>/_trident/<topology>/<group>/manifests/<incarnation>``.

    By incarnation: a coordinator of the one before a `trident reset`, which was stopped meanwhile and goes on, cleans
    up after itself and never after its successor, whose transactions have the same numbers. Versions of this framework
    before had all of them in the folder above; those are read, and cleaned up when they are of this one.

    Args:
        incarnation: its manifests are written and cleaned up; None to look only.
        retention: how long those that were decided are kept.
    """

    def __init__(
        self,
        warehouse: Place,
        topology: str,
        group: str,
        incarnation: str | None = None,
        retention: Retention = NONE_KEPT,
    ) -> None:
        self.retention = retention
        # Manifests of later transactions stay, however old: they are not in the table of transactions yet. None: there
        # is no such table.
        self.recorded_upto: int | None = None
        self._warehouse, self._topology, self._group = Place(warehouse), topology, group
        self._old_folder = self._warehouse / "_trident" / topology / group / "manifests"
        self._incarnation = incarnation
        # This process wrote it last into a store: it is not read again from there, the first time that it is wanted.
        self._written: tuple[Decision, bytes] | None = None

    @property
    def _folder(self) -> Place:
        assert self._incarnation is not None, "opened to look only"
        return self._old_folder / self._incarnation

    def write(self, manifest: Manifest) -> Decision:
        """Makes the manifest durable and returns the decision that would name it.

        The name carries the attempt; attempt ids are never used again, so the
        name is new. Should a try of this very attempt have died half-way, its
        torn file keeps the name, and this one takes another.
        """
        data = manifest.encode()
        with faults.fault_point(WRITE):
            storage.make_folder(self._folder, self._warehouse)
            attempt = manifest.attempt
            path = self._folder / f"{attempt.txid}-{attempt.attempt_id}.json"
            try:
                storage.create(path, data)
            except FileExistsError:
                path = self._folder / f"{attempt.txid}-{attempt.attempt_id}-{uuid.uuid4().hex[:8]}.json"
                storage.create(path, data)
            storage.flush_names(self._old_folder)  # the folder of this incarnation may be new
        relative = path.relative_to(self._warehouse)
        digest = hashlib.sha256(data).hexdigest()
        decision = Decision(attempt.txid, attempt.attempt_id, relative, len(data), digest)
        if not self._warehouse.is_local:
            self._written = decision, data
        return decision

    def read(self, decision: Decision) -> Manifest:
        """Reads the manifest that a decision names."""
        path = self._warehouse / decision.manifest
        if path.parent not in (self._old_folder, self._folder):
            # A writer to ZooKeeper must not choose which of the warehouse's files is taken for a manifest.
            raise Halted(
                f"transaction {decision.txid} is decided with a manifest that is not among those of its batch group",
                found=decision.manifest,
                expected=f"a file in {self._folder}",
                action="restore the znode `decided` from a back-up: this framework did not write it",
            )
        try:
            with faults.fault_point(READ):
                written, self._written = self._written, None
                data = written[1] if written is not None and written[0] == decision else storage.read(path)
        except FileNotFoundError as error:
            raise Halted(
                f"transaction {decision.txid} is decided but its manifest {path} is gone",
                found="no such file",
                expected=f"{decision.size} bytes",
                action="bring the file back from a back-up of the warehouse, then start again; "
                f"`trident repair {self._topology}` shows what else can be done and changes nothing",
            ) from error
        except (OSError, Unreadable) as error:  # a disk that does not answer now may answer later: tried again
            raise TableError(f"the manifest {path} cannot be read: {error}") from error
        digest = hashlib.sha256(data).hexdigest()
        if len(data) != decision.size or digest != decision.sha256:
            raise Halted(
                f"the manifest {path} is not the one that was decided",
                found=f"{len(data)} bytes, sha256 {digest[:16]}…",
                expected=f"{decision.size} bytes, sha256 {decision.sha256[:16]}…",
                action="bring the file back from a back-up of the warehouse, then start again; "
                f"`trident repair {self._topology}` shows what else can be done and changes nothing",
            )
        manifest = Manifest.decode(data)
        whose, ours = (manifest.topology, manifest.group), (self._topology, self._group)
        if whose != ours or manifest.attempt != decision.attempt:
            raise Halted(
                f"the manifest {path} is of another batch",
                found=f"{'/'.join(whose)} {manifest.attempt}",
                expected=f"{'/'.join(ours)} {decision.attempt}",
                action="bring the file back from a back-up of the warehouse, then start again",
            )
        return manifest

    def found(self) -> list[tuple[Decision, Manifest]]:
        """Every whole manifest that is there, of any incarnation, with the decision that would name it; by attempt.

        A torn file, of a process that died while it wrote, was never decided and is left out.
        """
        calls = [partial(self._found_or_none, path) for path in _files_in(self._old_folder)]
        # From a disk that is read at once, a thread more takes longer than the file.
        all_of_them = run_concurrently(calls) if not self._warehouse.is_local else [call() for call in calls]
        found = (one for one in all_of_them if one is not None)
        return sorted(found, key=lambda pair: (pair[0].txid, pair[0].attempt_id))

    def newest_first(self) -> Iterator[tuple[Decision, Manifest]]:
        """As :meth:`found`, the latest attempt first; a manifest is read when the caller comes to it."""
        dated = [(attempt_of(path.name), path) for path in _files_in(self._old_folder)]
        for _, path in sorted(((attempt, path) for attempt, path in dated if attempt), reverse=True):
            found = self._found_or_none(path)
            if found is not None:
                yield found

    def newest_of(self, incarnations: Iterable[str]) -> Manifest | None:
        """The latest attempt's of the first of the incarnations that has one which can be read."""
        for incarnation in incarnations:
            folder = self._old_folder / incarnation
            dated = [(attempt_of(name), folder / name) for name in storage.list_names(folder)]
            for _, path in sorted(((attempt, path) for attempt, path in dated if attempt), reverse=True):
                found = self._found_or_none(path)
                if found is not None:
                    return found[1]
        return None

    def _found_or_none(self, path: Place) -> tuple[Decision, Manifest] | None:
        try:
            return self.read_found(path)
        except (TableError, Unreadable, FileNotFoundError):
            return None

    def read_found(self, path: Place) -> tuple[Decision, Manifest]:
        """Reads a manifest, and says which decision would name it.

        Raises:
            TableError, Unreadable: it cannot be read; FileNotFoundError: it is gone.
        """
        data = storage.read(path)
        manifest = Manifest.decode(data)
        relative, digest = path.relative_to(self._warehouse), hashlib.sha256(data).hexdigest()
        return Decision(manifest.attempt.txid, manifest.attempt.attempt_id, relative, len(data), digest), manifest

    def names(self) -> dict[str, Place]:
        """The files of this incarnation's manifests, by name; no file is read."""
        return {name: self._folder / name for name in storage.list_names(self._folder) if attempt_of(name)}

    def clean(
        self,
        published_txid: int,
        keep: TransactionAttempt | None,
        due: bool = True,
        empty: Collection[int] = (),
    ) -> list[Place]:
        """Removes manifests up to published_txid but those kept; returns what is gone.

        Args:
            published_txid: the last advanced transaction.
            due: False: not this time.
            keep: the attempt of ``last_published``, whose manifest stays: it
                has the positions from which a lost ZooKeeper is rebuilt.
            empty: transactions that have advanced without a manifest: one that is there was never decided.
        """
        removed = []
        with faults.fault_point(CLEAN):
            for folder in (self._folder, self._old_folder) if due else ():
                names = storage.list_names(folder)
                history = self._history(folder, names, published_txid, empty)
                for name in names:
                    txid = name.lstrip(".").split("-", 1)[0]  # a draft, of a killed process, begins with a dot
                    if name in history:
                        continue
                    if keep is not None and re.fullmatch(rf"{keep.txid}-{keep.attempt_id}(-\w+)?\.json", name):
                        continue
                    path = folder / name
                    if txid.isdigit() and int(txid) <= published_txid and self._may_remove(path):
                        removed.append(path)
            storage.delete_files(removed)
        return removed

    def _history(
        self, folder: Place, names: Iterable[str], published_txid: int, empty: Collection[int]
    ) -> Collection[str]:
        """The manifests that are kept: of each transaction the latest attempt's, which is the one that was decided.

        A decided attempt is the last of its transaction. Only one that advanced without a manifest came behind others
        that may have one.
        """
        if not self.retention.txids:
            return ()
        latest = dict[int, TransactionAttempt]()
        recorded = published_txid if self.recorded_upto is None else self.recorded_upto
        since = min(published_txid - self.retention.txids, recorded)
        dated = {name: attempt for name in names if (attempt := attempt_of(name)) is not None}
        for attempt in dated.values():
            if since < attempt.txid <= published_txid and attempt.txid not in empty:
                latest[attempt.txid] = max(attempt, latest.get(attempt.txid, attempt))
        kept = sorted(name for name, attempt in dated.items() if latest.get(attempt.txid) == attempt)
        if self.retention.secs is None:
            return set(kept)
        # By txid they are by age: only the oldest are looked at.
        by_age = sorted(kept, key=lambda name: dated[name])
        young = (dated[name].txid > recorded or self._is_young(folder / name) for name in by_age)
        first = next((at for at, is_young in enumerate(young) if is_young), len(by_age))
        return set(by_age[first:])

    def _is_young(self, path: Place) -> bool:
        found = storage.stat_file(path)
        return found is not None and time.time() - found.mtime_ns / 1e9 <= (self.retention.secs or 0.0)

    def _may_remove(self, path: Place) -> bool:
        """Of those in the old place only what is of this incarnation, or torn: no later one writes there."""
        if path.parent == self._folder:
            return True
        try:
            return Manifest.decode(storage.read(path)).incarnation == self._incarnation
        except FileNotFoundError:
            return False
        except (TableError, Unreadable):
            return True


def groups_with_manifests(warehouse: Place, topology: str) -> list[str]:
    """The batch groups of which there are manifests."""
    own = warehouse / "_trident" / topology
    found = [group for group in storage.list_names(own) if storage.is_folder(own / group / "manifests")]
    # A batch group named "streams", or the folder of streams with one named "manifests"?
    return sorted(name for name in found if name != STREAMS_FOLDER or _has_manifests(own / name / "manifests"))


def _has_manifests(folder: Place) -> bool:
    return any(_FILE.match(path.name) for path in _files_in(folder))


def _files_in(folder: Place) -> Iterator[Place]:
    """The files of every incarnation: an entry that is no manifest is the folder of one."""
    for name in storage.list_names(folder):
        if name.endswith(".json"):
            yield folder / name
        else:
            yield from (folder / name / each for each in storage.list_names(folder / name) if each.endswith(".json"))
