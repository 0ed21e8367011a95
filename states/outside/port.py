"""The port to a state outside of the warehouse: its state kind, its mark, the part of a transaction, the base class.

A transaction's rows are staged durably with those of the Delta tables, and decided
with them. Then they are published: the tables first, then each outside state, then
the spouts are told (docs/semantics.md 9.5). The rows are decided by then, so a publication may be
tried again for as long as the store is away: no transaction of the store's is
open meanwhile. The store itself makes a second try harmless: it keeps, in the
same atomic step as the rows, a :class:`OutsideMark`.

A new kind of store is one file: a frozen dataclass below :class:`OutsideState`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

from pyspark.sql.types import StructType

from trident.coordinators.errors import (
    ConfigError,
    ForeignMarks,
    StaleEpoch,
    StateLostTransactions,
    TopologyError,
    described,
)
from trident.states.core.binding import LAST, DecidedRows, Guarantee, GuaranteeRow, StateBinding, TablelessKind
from trident.states.core.names import check_flag
from trident.states.core.typed_values import Row

if TYPE_CHECKING:
    import pyarrow as pa

    from trident.states.core.place import Place


@dataclass(frozen=True)
class OutsideMark:
    """The last transaction that a part of an outside state has, and who wrote it: kept by the store beside the rows.

    Attributes:
        incarnation: of the topology; a reset begins the next, whose transactions count from 1 again.
        epoch: of the coordinator; a later one has a greater epoch, also over resets.
        txid: 0: of this incarnation the part has none yet.
        attempt_id: of the attempt that was decided.
    """

    incarnation: str
    epoch: int
    txid: int
    attempt_id: int

    def is_new(self, stored: OutsideMark | None, where: str) -> bool:
        """Tells whether the rows under this mark are to be written, where the store has ``stored``.

        False: the store has them, and the mark alone is to be put, which shuts older coordinators out.

        Args:
            where: the store, for the message.

        Raises:
            StaleEpoch: a later coordinator or transaction has written; nothing may be written.
        """
        if stored is None:
            return True
        other_life = stored.incarnation != self.incarnation
        if stored.epoch > self.epoch or (other_life and stored.epoch == self.epoch):
            raise StaleEpoch(f"{where} has been written by a later coordinator", found=stored.text, expected=self.text)
        if other_life or stored.txid < self.txid:
            return True
        if (stored.txid, stored.attempt_id) == (self.txid, self.attempt_id):
            return False
        raise StaleEpoch(f"{where} has another or a later transaction", found=stored.text, expected=self.text)

    def taken_over(self, incarnation: str, epoch: int, adopt: bool = False) -> OutsideMark:
        """The mark once a coordinator has taken the store over; a later coordinator's stays as it is.

        Args:
            adopt: the state's; whether the mark of another incarnation may be replaced.

        Raises:
            ForeignMarks: it may not; no mark of the store may be changed then.
        """
        if self.epoch >= epoch:
            return self
        if self.incarnation == incarnation:
            return replace(self, epoch=epoch)
        if adopt:
            return OutsideMark(incarnation, epoch, 0, 0)
        raise ForeignMarks("the store has the mark of another life of this topology", found=self.text)

    def check_fence(self, fence: OutsideMark, where: str) -> None:
        """Looks at the mark that a take-over puts for the whole state, so that parts without a mark are closed, too.

        Raises:
            StaleEpoch: a later coordinator has taken the store over; nothing may be written.
        """
        if fence.epoch > self.epoch or (fence.epoch == self.epoch and fence.incarnation != self.incarnation):
            raise StaleEpoch(f"{where} belongs to a later coordinator", found=fence.text, expected=self.text)

    @property
    def text(self) -> str:
        return f"transaction {self.txid} attempt {self.attempt_id} of coordinator {self.epoch}, life {self.incarnation}"


@dataclass(frozen=True)
class OutsideRows:
    """The rows that a topology writes to an outside state, as they are known before it runs.

    Attributes:
        topology: its name.
        schema: the fields.
        keys: the fields that name a row; empty where rows are appended.
        upserts: one row per key and transaction replaces the key's row, or deletes it.
    """

    topology: str
    schema: "StructType"
    keys: tuple[str, ...] = ()
    upserts: bool = False


@dataclass(frozen=True)
class OutsidePart:
    """A part of a decided transaction, which the store takes as a whole or not at all.

    Attributes:
        topology, state: their names, under which the store keeps the mark.
        number: from 0; the same rows are in the same part at every try.
        mark: to be kept with the rows.
        keys, upserts: as of :class:`OutsideRows`. With upserts the rows have the boolean column ``_deleted`` besides:
            where it is true the key is to be deleted.
        known: (txid, attempt id) of the state's transaction before this one; None: there is none, or it is not known.
        settings: those that the state gave when the transaction was decided, by ``decided_with``.
    """

    topology: str
    state: str
    number: int
    mark: OutsideMark
    keys: tuple[str, ...] = ()
    upserts: bool = False
    known: tuple[int, int] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    def check_known(self, stored: Iterable[OutsideMark], where: str) -> None:
        """Looks whether the store still has the transaction before this one.

        Args:
            stored: the marks of all parts of the state.
            where: the store, for the message.

        Raises:
            StateLostTransactions: it has lost transactions; nothing may be written.
        """
        if self.known is None:
            return
        ours = [mark for mark in stored if mark.txid and mark.incarnation == self.mark.incarnation]
        last = max(ours, key=lambda mark: mark.txid, default=None)
        if (
            last is None
            or last.txid < self.known[0]
            or (last.txid == self.known[0] and last.attempt_id != self.known[1])
        ):
            raise StateLostTransactions(
                f"{where} lacks transaction {self.known[0]} attempt {self.known[1]}, which it had",
                found=last.text if last else "no transaction",
            )


class OutsideState(ABC):
    """A store outside of the warehouse that takes the rows of each transaction exactly once.

    Pickled to the executors: connections are opened at the first use, in each process. The methods that reach the store
    are called one at a time for one part, from any process.

    All of them raise ``StateAway`` where the store does not answer, or its answer was lost: they are called again, for
    as long as it takes, and ``trident status`` shows since when and why. Any other error is the store's refusal: it
    stops the topology after ``max_attempts`` tries, with the decision kept.

    Attributes:
        name: the state's name.
        partitions: a transaction's files are dealt out to at most this many parts, each published by a task of its own
            and atomic by itself. It may be changed between runs.
        adopt: whether marks of another life of the topology are replaced: after ``trident reset``, or where ZooKeeper
            was wiped. Rows of that life stay; with appends the same rows may come again. Take it away after that start.
        takes_upserts: whether it can be written with ``Upsert``.
        calls_user: whether its methods call code of the user's, which must not run in the coordinator's process. A
            class that is not this framework's is taken to do so.
        exactly_once: whether the store has each row once; else one may be there again after a failure.
        forgets_marks: whether the store forgets marks that are not written for days: ``renew`` is called then.
    """

    name: str
    partitions: int = 1
    adopt: bool = False
    takes_upserts: ClassVar[bool] = False
    calls_user: ClassVar[bool] = True
    forgets_marks: ClassVar[bool] = False

    @property
    def exactly_once(self) -> bool:
        return True

    def check_rows(self, rows: OutsideRows) -> None:
        """Raises FieldError or TopologyError, when the topology is built, for rows that it cannot take; no I/O."""
        return

    def check_together(self, others: "Sequence[OutsideState]") -> None:
        """Raises TopologyError, when the topology is built, where one of its other outside states is in the way."""
        return

    def decided_with(self) -> Mapping[str, Any]:
        """Settings, as JSON, that ``publish`` needs as they are when a transaction is decided; asked once for each."""
        return {}

    def count_dead_letters(self) -> int:
        """How many dead letters it has in all; a class that is not this framework's is not asked."""
        return 0

    def kept_in(self, folder: "Place") -> "OutsideState":
        """The state as ``take_over`` and ``publish`` are called, for one whose store cannot keep its marks.

        Args:
            folder: of the warehouse, for this state of this topology alone; it may not be there yet. A reset leaves it.
        """
        return self

    @abstractmethod
    def check_store(self, rows: OutsideRows) -> None:
        """Looks whether the store can take the rows: before a first start writes anything, and at each take-over.

        Raises:
            SchemaMismatch: it cannot; the message names the field.
        """

    @abstractmethod
    def take_over(self, topology: str, incarnation: str, epoch: int) -> Mapping[int, OutsideMark]:
        """Closes the store to older coordinators: in one step each mark becomes its ``taken_over(…, self.adopt)``.

        Parts that have no mark yet must be closed, too: by a mark of txid 0 for each, or by a fence, a mark of the
        whole state, that ``publish`` compares in its atomic step by ``part.mark.check_fence(…)``.

        Returns:
            the marks of all parts of this topology and state behind that; a fence as that of part -1.

        Raises:
            ForeignMarks: a mark is of another incarnation, and ``adopt`` is False; nothing was changed.
        """

    @abstractmethod
    def publish(self, part: OutsidePart, batches: "Iterator[pa.RecordBatch]") -> None:
        """Writes the rows and the mark in one atomic and durable step.

        In that step it compares: ``part.mark.is_new(stored, …)`` with the mark that the store has of this topology,
        state and part; and before that by ``part.check_known(…)`` with the marks of all parts, for a store that has
        lost transactions while the topology runs. It may be called again for a transaction that the store has, by
        another process, too.

        Raises:
            StaleEpoch: a later coordinator has written; nothing was written.
            StateLostTransactions: the store has lost transactions; nothing was written.
            StateAway: the store does not answer, or it is not known whether it has written.
        """

    def renew(self, topology: str, incarnation: str, epoch: int) -> None:
        """Writes the marks of this coordinator again, as they are: for a store that forgets old ones (forgets_marks).

        Called between transactions of the batch group, some times a day, whether or not they have rows for the state.
        One that fails is called again later, and stops nothing.
        """
        return

    def let_go(self, topology: str) -> None:
        """Closes connections that this process keeps for its next transactions: tasks publish the next one, or the
        topology stops. Asked of the framework's own classes; waits for some seconds at most, and raises nothing.
        """
        return


def is_frameworks(state: Any) -> bool:
    """Tells whether it is this framework's, and calls no code of the user's: the coordinator's process may run it."""
    return type(state).__module__.startswith("trident.") and not state.calls_user


# The state kind of all states outside of the warehouse.


class OutsideKind(TablelessKind):
    """States whose rows are published to a store of the user's, with a mark that the store keeps."""

    name = "outside"
    example = "PostgresState(url, table)"
    appends = True
    keeps_marks = True
    why_no_new_values = "rows that are published outside of the warehouse"
    guarantee_rows = (
        GuaranteeRow(
            "REPEATING",
            "HttpState",
            Guarantee.AT_LEAST_ONCE,
            better="HttpState(…, honours_keys=True), where its server takes requests of one Idempotency-Key once",
        ),
        GuaranteeRow("OUTSIDE", "KafkaState, PostgresState, HttpState(…, honours_keys=True), an OutsideState"),
    )

    def holds(self, state: object) -> bool:
        return isinstance(state, OutsideState)

    def guarantee_row(self, state: Any) -> GuaranteeRow:
        return self.guarantee_rows[1 if state.exactly_once else 0]

    def takes_upserts(self, state: Any) -> bool:
        return bool(state.takes_upserts)

    def check_rows(self, state: Any, schema: "StructType", keys: Sequence[str]) -> None:
        if type(state.partitions) is not int or state.partitions < 1:
            raise ConfigError(f"partitions of state {state.name} is impossible", found=described(state.partitions))
        check_flag(state.adopt, f"adopt of state {state.name}")
        state.check_rows(OutsideRows("", schema, tuple(keys), bool(keys)))

    def check_together(self, state: Any, others: Sequence[Any]) -> None:
        state.check_together(others)

    def check_has_keys(self, state: Any, what: str) -> None:
        raise TopologyError(
            f"{what} needs a state with one value per key",
            found=repr(state),
            expected="DeltaMapState(name), or opaque(name, map) over a map of that store",
            action="use partition_persist to write rows, or new_values_stream() of another state and Upsert",
        )

    def publish(self, binding: StateBinding, rows: DecidedRows) -> None:
        rows.user_code.publish_outside(binding, rows)

    def staging_details(self, binding: StateBinding) -> dict[str, Any]:
        """Fixed with the decision: were it not, a part that is published could stand for other rows after a restart."""
        return {"partitions": binding.state.partitions, "settings": dict(binding.state.decided_with())}

    def rows_now(self, binding: StateBinding, incarnation: str) -> list[Row]:
        raise TopologyError(
            f"state {binding.name} cannot be shown: its rows are outside of the warehouse",
            found=repr(binding.state),
            action="ask the store itself",
        )


def rows_of(topology: str, binding: StateBinding) -> OutsideRows:
    """The rows that a topology writes to the state."""
    return OutsideRows(topology, binding.schema, binding.keys, binding.merging == LAST)


OUTSIDE = OutsideKind()
