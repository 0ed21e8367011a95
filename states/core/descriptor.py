"""The descriptor of a state: one JSON file for readers that have no topology.

``<warehouse>/_trident/states/<name>.json``, written when the state's tables are
made, before their first commit. Correctness never rests on it: the tables'
control records say what is committed; this says which tables there are and
how their rows combine.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING

from pyspark.sql.types import StructType

from trident.coordinators import faults
from trident.coordinators.errors import TableError
from trident.coordinators.identities import rollbacks_of
from trident.coordinators.stored_json import MAY_BE_MISSING, as_record, parse_stored
from trident.states.core import storage
from trident.states.core.binding import COMBINE, SEQUENCED, WHOLE_VALUES, StateKind
from trident.states.core.kinds import all_kinds, stored_kind
from trident.states.core.names import check_name, other_owner
from trident.states.core.place import AnyPath, Place
from trident.states.core.retention import Retention
from trident.states.core.storage import Signature

if TYPE_CHECKING:
    from trident.states.core.binding import StateBinding

DESCRIBE = faults.register("descriptor.write", "writing the file that tells readers of a state")
SCHEMA = 1


@dataclass(frozen=True)
class StateDescriptor:
    """A state as its readers and its compactor need it.

    Attributes:
        kind: the stored name of its kind; ``state_kind`` is the kind itself.
        group: the batch group that writes it; its states are read as of one transaction.
        incarnation: of the topology; a control record with another one is not this state's.
        keys: names of the key columns; none for an append, or one global aggregate.
        schema_json: of keys and values, of an append also its column of txids, in the JSON that Spark and Delta share.
        aggregator: the aggregator's name; None for an append.
        starts_at: the first txid whose rows are in the state.
        ends_at: the last txid that it took part in, once the topology no longer
            has it; None while it does. Such a state is kept and can be read,
            and what is newest in its group no longer waits for it.
        merging: how log rows become the value of a key: "combine", "last" or "sequenced"
            (see :class:`trident.states.core.binding.StateBinding`).
        ordered_by, sequence, deleted_retention_txids: as of the binding.
        earlier_retentions: (the last transaction with it, txids) of each other retention before: see ``retention``.
        history_by, history_end: as of the binding.
        change_feed: whether the plain table is made with Delta's change data feed.
    """

    name: str
    kind: str
    topology: str
    group: str
    incarnation: str
    keys: tuple[str, ...]
    value_fields: tuple[str, ...]
    schema_json: str
    aggregator: str | None = None
    starts_at: int = 1
    ends_at: int | None = None
    merging: str = field(default=COMBINE, metadata={MAY_BE_MISSING: True})
    ordered_by: str = field(default="", metadata={MAY_BE_MISSING: True})
    sequence: str = field(default="", metadata={MAY_BE_MISSING: True})
    deleted_retention_txids: int = field(default=0, metadata={MAY_BE_MISSING: True})
    change_feed: bool = field(default=False, metadata={MAY_BE_MISSING: True})
    history_by: str = field(default="", metadata={MAY_BE_MISSING: True})
    history_end: str = field(default="", metadata={MAY_BE_MISSING: True})
    earlier_retentions: tuple[tuple[int, int], ...] = field(default=(), metadata={MAY_BE_MISSING: True})

    def __post_init__(self) -> None:
        check_name("state", self.name)
        described = tuple(kind.name for kind in all_kinds() if kind.is_described)
        if self.kind not in described:
            raise TableError(f"state {self.name} cannot be described", found=self.kind, expected=f"one of {described}")
        if self.merging not in (COMBINE, *WHOLE_VALUES):
            raise TableError(
                f"state {self.name} cannot be described",
                found=self.merging,
                expected=f"one of {(COMBINE, *WHOLE_VALUES)}",
            )
        if (self.merging == SEQUENCED) != (self.sequence in self.value_fields):
            raise TableError(
                f"state {self.name} cannot be described",
                found=f"{self.merging} by {self.sequence!r}",
                expected="a sequence that is one of its values, and of a sequenced state only",
            )
        lasts = [last for last, _ in self.earlier_retentions]
        kept = [self.deleted_retention_txids, *(txids for _, txids in self.earlier_retentions)]
        if lasts != sorted({*lasts}) or min(kept) < 0:
            raise TableError(
                f"state {self.name} cannot be described",
                found=f"deleted keys kept for {kept} transactions, up to {lasts}",
                expected="numbers of transactions in ascending order",
            )
        object.__setattr__(self, "keys", tuple(self.keys))
        object.__setattr__(self, "value_fields", tuple(self.value_fields))

    @classmethod
    def of(
        cls, binding: "StateBinding", topology: str, group: str, incarnation: str, starts_at: int
    ) -> StateDescriptor:
        """The descriptor of what a topology writes to one state."""
        return cls(
            name=binding.name,
            kind=binding.kind,
            topology=topology,
            group=group,
            incarnation=incarnation,
            keys=tuple(binding.keys),
            value_fields=tuple(binding.value_fields),
            schema_json=binding.shown_schema.json(),
            aggregator=binding.aggregator_name,
            starts_at=starts_at,
            merging=binding.merging,
            ordered_by=binding.ordered_by,
            sequence=binding.sequence,
            deleted_retention_txids=binding.deleted_retention_txids,
            change_feed=bool(getattr(binding.state, "change_feed", False)),
            history_by=binding.history_by,
            history_end=binding.history_end,
        )

    def going_on(self, warehouse: AnyPath, first: int) -> StateDescriptor:
        """The descriptor of a start whose first transaction this is: its retention counts from there on.

        Raises:
            TableError: the descriptor that is there cannot be read.
        """
        try:
            there = load_descriptor(warehouse, self.name)
        except FileNotFoundError:
            return self
        own = ("topology", "group", "incarnation", "starts_at")
        if any(getattr(there, name) != getattr(self, name) for name in own):
            return self
        return replace(self, earlier_retentions=there.retention.changed(self.deleted_retention_txids, first).earlier)

    def identity(self) -> dict[str, object]:
        """Returns what may not change between runs, as ``StateBinding.identity`` of the state."""
        return {
            "keys": list(self.keys),
            "value_schema": self.schema.simpleString(),
            "aggregator": self.aggregator or "append",
        }

    @property
    def retention(self) -> Retention:
        """For how long deleted keys hold against older changes, as of each transaction."""
        return Retention(self.deleted_retention_txids, self.earlier_retentions)

    @property
    def state_kind(self) -> StateKind:
        return stored_kind(self.kind, self.name)

    @property
    def schema(self) -> "StructType":
        """Keys and values, as readers get them."""
        return StructType.fromJson(parse_stored(self.schema_json))

    @property
    def merge_app(self) -> str:
        """``txn_app_id`` under which the plain table holds P, the txid it is merged up to.

        With the number of rollbacks behind it, where there were any: Delta refuses a ``txn_version`` that is not above
        the last of its app, and a rollback takes P back.
        """
        rollbacks = rollbacks_of(self.incarnation)
        return f"{self.merge_app_at_first}/{rollbacks}" if rollbacks else self.merge_app_at_first

    @property
    def merge_app_at_first(self) -> str:
        """As :attr:`merge_app`, before the first rollback."""
        return f"trident/{self.topology}/{self.group}/merge"

    @property
    def published_path(self) -> str:
        """The table that takes the transactions' commits, relative to the warehouse: a keyed state's log."""
        return self.state_kind.published_path(self.name)

    @property
    def plain_path(self) -> str:
        """The table that any Delta reader reads, relative to the warehouse."""
        return self.name

    def save(self, warehouse: AnyPath) -> None:
        """Writes the file, whole or not at all, and flushes it to disk.

        Raises:
            ForeignTable: a state of this name belongs to another topology or group.
        """
        try:
            there = load_descriptor(warehouse, self.name)
        except FileNotFoundError:
            there = None
        if there is not None and (there.topology, there.group) != (self.topology, self.group):
            raise other_owner(
                Place(warehouse) / self.name, (there.topology, there.group), (self.topology, self.group), None
            )
        path = _file(warehouse, self.name)
        with faults.fault_point(DESCRIBE):
            storage.make_folder(path.parent, warehouse)
            storage.write(path, json.dumps({"schema": SCHEMA, **asdict(self)}, indent=1).encode())

    def remove(self, warehouse: AnyPath) -> None:
        """Forgets the state; its tables are the caller's matter. Nothing there: nothing done."""
        storage.delete(_file(warehouse, self.name))


def load_descriptor(warehouse: AnyPath, name: str) -> StateDescriptor:
    """The state of that name.

    Raises:
        FileNotFoundError: there is no such state in this warehouse.
        TableError: the file cannot be read as a descriptor.
    """
    return _read(_file(warehouse, check_name("state", name)))


def descriptor_signature(warehouse: AnyPath, name: str) -> Signature | None:
    """Tells a state's descriptor from one that was written since; None when there is none."""
    found = storage.stat(_file(warehouse, check_name("state", name)))
    return None if found is None else found.signature


def descriptors_of_group(warehouse: AnyPath, topology: str, group: str) -> list[StateDescriptor]:
    """The states that one batch group writes or has written, by name: one transaction commits to them as one.

    Raises:
        TableError: a file cannot be read as a descriptor. It is not passed
            over: a group read without one of its tables might be half published.
    """
    return [state for state in _all(warehouse) if (state.topology, state.group) == (topology, group)]


def list_descriptors(warehouse: AnyPath, topology: str) -> list[StateDescriptor]:
    """The states of all batch groups of a topology, by name.

    Raises:
        TableError: a file cannot be read as a descriptor.
    """
    return [state for state in _all(warehouse) if state.topology == topology]


def described_states(warehouse: AnyPath) -> list[str]:
    """The names of the states that have a descriptor."""
    names = storage.list_names(_folder(warehouse))
    return sorted(name.removesuffix(".json") for name in names if name.endswith(".json") and name[0] != ".")


def _all(warehouse: AnyPath) -> list[StateDescriptor]:
    return [_read(_file(warehouse, name)) for name in described_states(warehouse)]


def _folder(warehouse: AnyPath) -> Place:
    return Place(warehouse) / "_trident" / "states"


def _file(warehouse: AnyPath, name: str) -> Place:
    return _folder(warehouse) / f"{name}.json"


def _read(path: Place) -> StateDescriptor:
    try:
        found = as_record(parse_stored(storage.read(path)), StateDescriptor, SCHEMA)
        found.schema  # noqa: B018 (to know now that it can be read)
        return found
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, TableError) as error:
        raise TableError(
            f"the state descriptor {path} cannot be read: {error}",
            found=getattr(error, "found", None),
            expected=f"a JSON object of schema {SCHEMA} that describes a state",
            action="bring the file back from a back-up of the warehouse; or move it away and start the topology that "
            "has the state: it writes the file again",
        ) from error
