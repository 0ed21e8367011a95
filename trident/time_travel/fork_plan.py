"""The pure decisions about a fork: which originals are refused, which batches are given, its own records."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from trident.coordinators import faults
from trident.coordinators.errors import SourceError, TableError, TopologyError
from trident.coordinators.records import Decision, GroupRecord, Marker, TableMark
from trident.coordinators.stored_json import Unreadable, as_record, parse_stored
from trident.maintenance.facts import identity_of
from trident.spouts.host import GivenBatches
from trident.states.core import storage
from trident.states.core.control import ControlRecord
from trident.states.core.descriptor import StateDescriptor
from trident.states.core.place import Place
from trident.states.core.storage import explained_storage_errors
from trident.states.delta.manifest import Manifest

# The record of a fork, in its own warehouse: of what it was made, at which versions, and whether it is whole.
#
# It is written before anything else of the fork, so that the same command, run again after a crash, goes on with the
# same versions, ids and incarnation; and so that a folder with other content is told from a fork that was begun.


WRITE = faults.register("fork.record", "the record of a fork: when it is begun, and when it is whole")
_SCHEMA = 1
_FILE = "fork.json"


@dataclass(frozen=True)
class ForkedState:
    """The versions of a state's tables that a fork takes.

    Attributes:
        published: of the log of a keyed state, or of the append table.
        plain: of the plain table; None: there is none, or it was not made yet.
        merged: P of the plain table: the log's rows up to it are left out. −1 of an append.
    """

    published: int
    plain: int | None
    merged: int


@dataclass(frozen=True)
class ForkedGroup:
    """One batch group of a fork.

    Attributes:
        at: N, the last transaction that the fork has of its original.
        until: M, the last transaction whose batch the fork is given.
        states: by name.
    """

    at: int
    until: int
    states: Mapping[str, ForkedState]


@dataclass(frozen=True)
class ForkRecord:
    """A fork.

    Attributes:
        warehouse, topology, source_incarnation: of the original.
        name, incarnation: of the fork.
        until_kept: whether it stops behind the last batch that it is given.
        whole: whether everything of it is there.
    """

    warehouse: str
    topology: str
    source_incarnation: str
    name: str
    incarnation: str
    until_kept: bool
    groups: Mapping[str, ForkedGroup]
    whole: bool = False

    def table_id(self, path: str) -> str:
        """Delta's id of one of its tables, the same at each try."""
        return str(uuid.uuid5(uuid.UUID(self.incarnation), path))

    def requested(self) -> tuple[object, ...]:
        """Returns what the command says: two with the same are one fork."""
        points = tuple(sorted((group, part.at) for group, part in self.groups.items()))
        return self.warehouse, self.topology, self.name, points, self.until_kept

    def put_into(self, warehouse: Place) -> int:
        """Writes the record, whole and durable; returns its size in bytes."""
        path, data = _path(warehouse, self.name), self._data()
        with faults.fault_point(WRITE):
            storage.make_folder(path.parent, warehouse)
            storage.write(path, data)
        return len(data)

    def begin_in(self, warehouse: Place) -> ForkRecord:
        """Writes the first record; returns the one that is there: another call may have begun a fork of this name."""
        path = _path(warehouse, self.name)
        with faults.fault_point(WRITE):
            storage.make_folder(path.parent, warehouse)
            try:
                storage.create(path, self._data())
            except FileExistsError:
                return load_fork(warehouse, self.name) or self
        return self

    def _data(self) -> bytes:
        return json.dumps({"schema": _SCHEMA, **asdict(self)}, indent=1, sort_keys=True).encode()


def load_fork(warehouse: Place, name: str) -> ForkRecord | None:
    """The record of a fork; None of a topology that is none.

    Raises:
        TableError: it cannot be read.
        StoreProblem: the store refuses, or does not answer.
    """
    path = _path(warehouse, name)
    try:
        with explained_storage_errors():
            return as_record(parse_stored(storage.read(path)), ForkRecord, _SCHEMA)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise TableError(f"the record of the fork {name} cannot be read: {path}: {error}") from error
    except Unreadable as error:
        raise TableError(
            f"the record of the fork {name} cannot be read: {path}: {error}",
            found=getattr(error, "found", None),
            expected=f"a JSON object of schema {_SCHEMA}",
            action="bring the file back; or delete the fork's folder, and make it again",
        ) from error


def forks_in(warehouse: Place) -> list[str]:
    """The names of the forks in a warehouse, begun or whole."""
    own = warehouse / "_trident"
    return [name for name in sorted(storage.list_names(own)) if storage.exists(own / name / _FILE)]


def _path(warehouse: Place, name: str) -> Place:
    return warehouse / "_trident" / name / _FILE


# Of a fork's tables: less than that of any leader.
EPOCH = 0
# Spark's own checkpoint has one query, which is told what is committed.
_OTHERS_CHECKPOINT = "StructuredStreamSpout"


@dataclass(frozen=True)
class Past:
    """A batch group of the original from N on.

    Attributes:
        decision, manifest: of transaction N.
        later: txid → manifest, of the transactions behind N of which one is kept.
    """

    group: str
    decision: Decision
    manifest: Manifest
    later: Mapping[int, Manifest]

    @property
    def at(self) -> int:
        return self.decision.txid

    @property
    def until(self) -> int:
        return max(self.later, default=self.at)

    @property
    def all(self) -> list[Manifest]:
        """The manifests, the newest first."""
        return [*(self.later[txid] for txid in sorted(self.later, reverse=True)), self.manifest]

    @property
    def empty(self) -> list[int]:
        """The transactions behind N that changed nothing."""
        return [txid for txid in range(self.at + 1, self.until + 1) if txid not in self.later]

    @property
    def spouts(self) -> dict[str, Mapping[str, Any]]:
        """tx_id → the newest word on the stream; of a skipped transaction a manifest says less."""
        found: dict[str, Mapping[str, Any]] = {}
        for manifest in self.all:
            for tx_id, spout in manifest.spouts.items():
                if tx_id not in found or not found[tx_id].get("kind"):
                    found[tx_id] = spout
        return found

    @property
    def opaque(self) -> list[str]:
        """The streams that cut their own batches."""
        return sorted(tx_id for tx_id, spout in self.spouts.items() if "opaque" in spout)


def check_attempts(past: Past) -> None:
    """Each kept manifest is of the attempt on which the next one builds: that which was decided.

    Raises:
        TableError: one is of another attempt: its batch may be another one.
    """
    manifests = {past.at: past.manifest, **past.later}
    for txid, manifest in past.later.items():
        before = manifests.get(txid - 1)
        if before is not None and manifest.parent != before.attempt:
            raise TableError(
                f"the kept manifest of transaction {txid - 1} of {manifest.topology}/{past.group} is not that of the "
                "attempt that was decided",
                found=f"attempt {before.attempt.attempt_id}",
                expected=f"attempt {manifest.parent.attempt_id if manifest.parent else 'none'}, on which transaction "
                f"{txid} builds",
                action="bring the manifests back from a back-up of the warehouse; or name a later transaction",
            )


def check_published(past: Past, controls: Mapping[str, ControlRecord]) -> None:
    """Transaction N is in every table that has a part in it, by the attempt that the manifest is of.

    The newest transaction may be published in some tables and not in others yet.

    Args:
        controls: of each state's published table, as of N.

    Raises:
        TableError: it is not.
    """
    lacking = [
        part.state
        for part in past.manifest.tables
        if part.state in controls and not controls[part.state].is_of(past.decision)
    ]
    if lacking:
        raise TableError(
            f"transaction {past.at} of {past.manifest.topology}/{past.group} is not in all of its tables",
            found=f"table of {', '.join(lacking)} without it",
            expected=f"attempt {past.decision.attempt_id} of it in each",
            action="if the topology runs it is just being published: run the command again. Else start the topology, "
            "which finishes it",
        )


def check_sources(past: Past) -> None:
    """Refuses streams that a fork would take something from, or whose batches cannot be given again.

    Raises:
        SourceError: there are some; with their names.
    """
    problems = []
    for tx_id, spout in sorted(past.spouts.items()):
        name, kind = spout.get("spout") or "its spout", spout.get("kind") or ""
        acknowledges = any(manifest.spouts.get(tx_id, {}).get("commit_data") is not None for manifest in past.all)
        if name == _OTHERS_CHECKPOINT:
            problems.append(f"{tx_id}: {name} tells Spark's checkpoint, which has one query, what is committed")
        elif acknowledges or (kind == "opaque" and "opaque" not in spout):
            problems.append(f"{tx_id}: {name} acknowledges what it has read: a fork would take it from the original")
        elif kind not in ("transactional", "opaque"):
            problems.append(f"{tx_id}: {name} is {kind or 'of no known kind'}: its batches cannot be given again")
    if problems:
        raise SourceError(
            f"{past.manifest.topology}/{past.group} cannot be forked",
            found="; ".join(problems),
            expected="streams that can be read again: files, Delta tables, Kafka and the like",
            action="nothing was changed. Try the code on a copy of the source's data, with a topology of another name",
        )


def check_states(past: Past) -> None:
    """Refuses states outside of Delta: they have no past that a fork could begin with.

    Raises:
        TopologyError: there are some; with their names.
    """
    found = {
        f"{table.state} (of kind {table.kind})"
        for manifest in past.all
        for table in manifest.tables
        if not table.state_kind.has_table
    }
    if found:
        raise TopologyError(
            f"{past.manifest.topology}/{past.group} has states that are not in Delta tables",
            found=", ".join(sorted(found)),
            expected="DeltaMapState and DeltaAppend alone: their tables have versions, and a fork has its own",
            action="nothing was changed: the fork would write to the same store as its original",
        )


def given_batches(past: Past, incarnation: str, until_kept: bool, may_acknowledge: bool = False) -> GivenBatches:
    """The batches of the original behind N, as the fork's streams are given them."""
    batches = {
        txid: {tx_id: spout.get("metadata") for tx_id, spout in manifest.spouts.items() if "opaque" not in spout}
        for txid, manifest in past.later.items()
    }
    return GivenBatches(incarnation, past.at, past.until, until_kept, batches, may_acknowledge)


def forked_manifest(past: Past, fork: ForkRecord, table_ids: Mapping[str, str]) -> tuple[Decision, bytes]:
    """Transaction N as the fork's own: from this a lost ZooKeeper of the fork is rebuilt.

    Args:
        table_ids: path of a table → its id in the fork; other tables are left out.
    """
    tables = [replace(part, table_id=table_ids[part.path]) for part in past.manifest.tables if part.path in table_ids]
    manifest = replace(past.manifest, topology=fork.name, incarnation=fork.incarnation, tables=tuple(tables))
    data, attempt = manifest.encode(), past.manifest.attempt
    path = f"_trident/{fork.name}/{past.group}/manifests/{fork.incarnation}/{attempt.txid}-{attempt.attempt_id}.json"
    return Decision(attempt.txid, attempt.attempt_id, path, len(data), hashlib.sha256(data).hexdigest()), data


def forked_control(
    control: ControlRecord, fork: ForkRecord, was: Decision, now: Decision, floor: int | None = None
) -> ControlRecord:
    """A table's control record as the fork's own.

    Args:
        control: as of N.
        was, now: the decision of transaction N, the original's and the fork's.
        floor: of a log: the rows up to it are not there.
    """
    digest = now.sha256 if control.is_of(was) else control.digest
    return replace(
        control,
        topology=fork.name,
        incarnation=fork.incarnation,
        digest=digest,
        epoch=EPOCH,
        floor=control.floor if floor is None else floor,
    )


def forked_state(state: StateDescriptor, fork: ForkRecord) -> StateDescriptor:
    """A state's descriptor as the fork's own."""
    return replace(state, topology=fork.name, incarnation=fork.incarnation, ends_at=None)


def first_record(fork: ForkRecord, decision: Decision, marks: Mapping[str, TableMark]) -> GroupRecord:
    """A group's record with which the fork's first transaction is N + 1."""
    last = Marker(decision.txid, decision.attempt_id, decision.sha256)
    return GroupRecord(fork.incarnation, decision.txid + 1, {}, {}, last, last, marks)


def identity(pasts: Iterable[Past], states: Iterable[StateDescriptor]) -> dict[str, Any]:
    """The fork's identity, as its original's manifests and descriptors say."""
    made = identity_of({past.group: past.spouts for past in pasts}, {state.name: state.identity() for state in states})
    unknown = sorted(tx_id for tx_id, spout in made["streams"].items() if not spout)
    if unknown:
        raise TableError(
            f"no kept manifest says which spout stream {unknown[0]!r} has",
            found="transactions that were skipped",
            expected="one of the kept transactions that was processed",
            action="name an earlier transaction",
        )
    return made
