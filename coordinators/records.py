"""The records that the coordinator keeps in ZooKeeper, and their one strict codec (docs/semantics.md 2).

Every value is a JSON object with ``"schema": 1``. Decoding refuses whatever
it does not know exactly: an unknown key, a missing key, another type, another
schema, a negative txid, a key given twice. Such a znode is a
:class:`~trident.coordinators.errors.CorruptZnode` that names its path; it is never
read as "absent" (docs/semantics.md 7.11).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from msgspec import Meta

from trident.coordinators.errors import ConfigError, CorruptZnode
from trident.coordinators.identities import TransactionAttempt
from trident.coordinators.stored_json import MAY_BE_MISSING, Record, Unreadable, as_record, parse_stored, plain

SCHEMA = 1
# The framework's own znodes beside those of a topology's batch groups and streams.
RESERVED_NAMES = frozenset({"identity", "incarnation", "live"})
_MAY_BE_MISSING = {MAY_BE_MISSING: True}

Txid = Annotated[int, Meta(ge=1)]
# 0 is pinned for a stream that goes on where another program has got to.
PinTxid = Annotated[int, Meta(ge=0)]
AttemptId = Annotated[int, Meta(ge=0)]
Count = Annotated[int, Meta(ge=0)]
Name = Annotated[str, Meta(min_length=1)]


@dataclass(frozen=True)
class Marker:
    """A transaction that has advanced, by the attempt that was decided."""

    txid: Txid
    attempt_id: AttemptId
    digest: str

    @property
    def attempt(self) -> TransactionAttempt:
        return TransactionAttempt(self.txid, self.attempt_id)


@dataclass(frozen=True)
class TableMark:
    """A table's version as our last commit left it, with that commit's control record.

    ``txid`` is 0 in a table that was created and not yet committed to.
    """

    version: Count
    txid: Count
    attempt_id: AttemptId
    digest: str


@dataclass(frozen=True)
class UsedAttempts:
    """Attempts that had begun before a rollback took their transactions back: their ids are not used again.

    Attributes:
        upto: of transactions up to this one.
        attempt_id: ids up to this one.
    """

    upto: Txid
    attempt_id: AttemptId


_OUTSIDE = "outside:"


def outside_id(state: str) -> str:
    """The name under which a group's record has the last transaction of a state outside of the warehouse."""
    return f"{_OUTSIDE}{state}"


def outside_name(name: str) -> str:
    """The state's name in what ``outside_id`` gave."""
    return name.removeprefix(_OUTSIDE)


def is_outside_id(name: str) -> bool:
    """Tells marks of outside states from those of tables, among a group's marks."""
    return name.startswith(_OUTSIDE)


@dataclass(frozen=True)
class GroupRecord:
    """The znode ``coordinator`` of a batch group (docs/semantics.md 9).

    Attributes:
        incarnation: the topology's random id, made at its first start.
        current_txid: the transaction that commits next.
        attempts: txid -> the greatest attempt id ever begun.
        parents: txid -> the attempt id of txid − 1 on which that attempt
            builds; None where no transaction came before.
        last: the transaction before the current one.
        last_published: the last transaction that has a control record; a
            batch without any effect advances without one.
        tables: table id -> what our last commit left there; and the last transaction of states outside of the
            warehouse, under ``outside_id``.
        pins: tx_id -> txid -> a digest of the pin; see :mod:`trident.coordinators.positions`.
        partitions: tx_id -> a digest of the metadata of its opaque partitions.
        used: the attempt ids of transactions that a rollback took back; None before the first rollback.

    ``pins`` and ``partitions`` are not part of what a record is compared by. They are
    None in a record of a version that did not write them.
    """

    incarnation: Name
    current_txid: Txid
    attempts: Mapping[Txid, AttemptId] = field(default_factory=dict)
    parents: Mapping[Txid, AttemptId | None] = field(default_factory=dict)
    last: Marker | None = None
    last_published: Marker | None = None
    tables: Mapping[Name, TableMark] = field(default_factory=dict)
    pins: Mapping[Name, Mapping[PinTxid, str]] | None = field(default=None, compare=False, metadata=_MAY_BE_MISSING)
    partitions: Mapping[Name, str] | None = field(default=None, compare=False, metadata=_MAY_BE_MISSING)
    used: UsedAttempts | None = field(default=None, metadata=_MAY_BE_MISSING)

    def first_attempt(self, txid: int) -> int:
        """The least attempt id that a transaction may have: 0, or one more than a rollback took back."""
        return self.used.attempt_id + 1 if self.used and txid <= self.used.upto else 0

    def greatest_attempt(self, txid: int) -> int:
        """The greatest attempt id that was ever begun for a transaction; −1: none."""
        return self.attempts.get(txid, self.first_attempt(txid) - 1)

    def problem(self) -> str | None:
        """Returns what contradicts itself in this record, or None."""
        if (self.last.txid if self.last else 0) != self.current_txid - 1:
            return f"`last` must be transaction {self.current_txid - 1}, the one before `current_txid`"
        if self.last_published and self.last and self.last_published.txid > self.last.txid:
            return "`last_published` must not be later than `last`"
        if self.last_published and not self.last:
            return "`last_published` needs a `last`"
        if self.attempts.keys() != self.parents.keys():
            return "`attempts` and `parents` must have the same txids"
        if any(txid < self.current_txid for txid in self.attempts):
            return "`attempts` must not have txids before `current_txid`"
        return None


@dataclass(frozen=True)
class UnfinishedRollback:
    """The znode that a rollback writes first and deletes last: all that it has decided.

    Attributes:
        group: whose transactions it takes back.
        txid: the last one that stays, as the user named it.
        last: the last one that stays of those that have changed anything.
        incarnation: the one that it begins.
        used: the attempts that are not used again.
        tables: a table's path, relative to the warehouse, → the table version whose rows it gets again.
    """

    group: Name
    txid: Txid
    last: Marker
    incarnation: Name
    used: UsedAttempts
    tables: Mapping[Name, Count] = field(default_factory=dict)


@dataclass(frozen=True)
class Decision:
    """The znode ``decided``: the commit point of a group (docs/semantics.md 9.4).

    ``manifest`` is a path relative to the warehouse; ``size`` in bytes.
    """

    txid: Txid
    attempt_id: AttemptId
    manifest: Name
    size: Count
    sha256: Name

    @property
    def attempt(self) -> TransactionAttempt:
        return TransactionAttempt(self.txid, self.attempt_id)

    def problem(self) -> str | None:
        """Returns what contradicts itself in this record, or None."""
        if self.manifest.startswith("/") or ".." in self.manifest.split("/"):
            return "`manifest` must be a path inside the warehouse"
        return None


@dataclass(frozen=True)
class LeaderRecord:
    """The znode ``leader``, whose znode version is the fence (docs/semantics.md 10)."""

    epoch: Annotated[int, Meta(ge=1)]
    nonce: Name


@dataclass(frozen=True)
class Incarnation:
    """The znode ``incarnation``."""

    incarnation: Name


@dataclass(frozen=True)
class StateIdentity:
    """The facts of a state that may not change between runs."""

    keys: tuple[str, ...]
    value_schema: str
    aggregator: str


@dataclass(frozen=True)
class Identity:
    """The znode ``identity``: what makes a topology the same one (docs/semantics.md 10)."""

    streams: Mapping[Name, Name]
    states: Mapping[Name, StateIdentity]
    groups: Mapping[Name, tuple[Name, ...]]


@dataclass(frozen=True)
class Holder:
    """The ephemeral znode ``live``: which process leads, or believes so.

    Attributes:
        boot_id: see :func:`trident.coordinators.processes.boot_id`.
        token: random; tells two coordinators of one process apart.
    """

    host: str
    boot_id: str
    pid: Annotated[int, Meta(ge=1)]
    started: str
    token: Name


def encode(record: Any) -> bytes:
    """The record as stored.

    Raises:
        ValueError: the record contradicts itself or has a value of a wrong
            type: a defect of the caller, which must not reach ZooKeeper.
    """
    fields = plain(record)
    for known in dataclasses.fields(record):
        if known.metadata.get(MAY_BE_MISSING) and fields[known.name] is None:
            del fields[known.name]
    text = json.dumps({"schema": SCHEMA, **fields}, sort_keys=True, separators=(",", ":"), allow_nan=False)
    data = text.encode()
    try:
        decode("(to be written)", data, type(record))
    except CorruptZnode as problem:
        raise ValueError(f"{type(record).__name__} cannot be stored: {problem.expected}") from problem
    return data


def decode(path: str, data: bytes, kind: type[Record]) -> Record:
    what = kind.__name__
    _refuse_a_streams(path, data, what)
    try:
        return as_record(parse_stored(data), kind, SCHEMA)
    except Unreadable as problem:
        raise CorruptZnode(path, found=_shown(data), expected=f"a {what} of schema {SCHEMA} ({problem})") from problem


def _refuse_a_streams(path: str, data: bytes, what: str) -> None:
    """Earlier versions let streams have the names of these znodes, and made an empty one first."""
    parts = path.split("/")
    if data == b"" and parts[-1] in RESERVED_NAMES:
        raise CorruptZnode(
            path,
            found=_shown(data),
            expected=f"a {what}",
            action=f"an earlier version of this framework has made it for a stream named {parts[-1]!r}: give the "
            f"stream another name, then `trident reset {parts[-2]}` clears the znode",
        )


def encode_value(value: Any, owner: str) -> bytes:
    """Spout metadata, or another JSON value of a user, as stored.

    Args:
        value: what ``json`` can write, without NaN and infinities.
        owner: whose value it is, for the message ("spout lines").
    """
    try:
        text = json.dumps({"schema": SCHEMA, "value": value}, separators=(",", ":"), allow_nan=False)
        return text.encode()
    except (TypeError, ValueError, RecursionError) as problem:
        raise ConfigError(
            f"a value of {owner} cannot be stored",
            found=f"{type(value).__name__} ({problem})",
            expected="JSON: dicts with text keys, lists, texts, finite numbers, booleans, None",
        ) from problem


def decode_value(path: str, data: bytes) -> Any:
    """Returns what :func:`encode_value` stored at ``path``."""
    expected = f'{{"schema":{SCHEMA},"value":…}}'
    try:
        fields = parse_stored(data, halves=True)
    except Unreadable as problem:
        raise CorruptZnode(path, found=_shown(data), expected=f"{expected} ({problem})") from problem
    good = isinstance(fields, dict) and fields.keys() == {"schema", "value"}
    if not good or type(fields["schema"]) is not int or fields["schema"] != SCHEMA:
        raise CorruptZnode(path, found=_shown(data), expected=expected)
    return fields["value"]


def decode_txid(path: str, name: str) -> int:
    """The txid that a znode's name stands for."""
    if not (name.isascii() and name.isdecimal() and name[0] != "0"):
        raise CorruptZnode(f"{path}/{name}", found=repr(name), expected="a name that is a txid from 1")
    return int(name)


def _shown(data: bytes) -> str:
    return repr(data) if len(data) <= 120 else f"{data[:120]!r}… ({len(data)} bytes)"
