"""Which transactions the Delta tables of a batch group say that they have: by their control records, from their logs.

A transaction that is decided is published to every table of its group. So a table tells of a transaction without a
manifest whether it changed nothing or lost its manifest, and of two manifests which was decided.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from trident.coordinators.errors import TableError, TransactionNotKept
from trident.states.core.control import ControlRecord
from trident.states.core.descriptor import StateDescriptor, descriptors_of_group
from trident.states.core.group_context import GroupContext
from trident.states.history.versions import published_as_of
from trident.states.keyed.compaction import SnapshotUnavailable


@dataclass(frozen=True)
class Publication:
    """The last of some transactions that was published.

    Attributes:
        control: the control record of it; None: none was published, or it is not known.
        known: False where the tables cannot tell.
        silent: tables that would have to know it and do not, each with why.
    """

    control: ControlRecord | None
    known: bool
    silent: tuple[str, ...] = ()


class Publications:
    """The word of the tables of one batch group; their descriptors are read once.

    Args:
        of: with the incarnation of the topology, as its tables have it now.
    """

    def __init__(self, of: GroupContext) -> None:
        self._of = of

    def last_of(self, first: int, last: int) -> Publication:
        """The last of the transactions ``first`` to ``last`` that a table has; not known of a group without tables.

        Raises:
            TableError: a descriptor cannot be read.
        """
        known, silent = False, list[str]()
        for state in self._states:
            if state.starts_at > last:
                continue
            try:
                path = self._of.warehouse / state.published_path
                control = published_as_of(path, self._of.topology, self._of.group, self._of.incarnation, last).control
            except (SnapshotUnavailable, TableError) as error:
                silent.append(str(error))
                continue
            if control.attempt_id >= 0 and first <= control.txid:
                return Publication(control, True)
            takes_part = state.ends_at is None or state.ends_at >= last
            known = known or (takes_part and control.starts_at <= first)
        return Publication(None, known, tuple(silent))

    def check_changed_nothing(self, first: int, last: int, kept: tuple[int, int]) -> None:
        """Checks that transactions without a manifest changed nothing.

        Args:
            kept: the oldest and the newest transaction whose manifest is kept.

        Raises:
            TransactionNotKept: a table has one of them: its manifest is lost. Or no table can tell.
        """
        found = self.last_of(first, last)
        where = f"{self._of.topology}/{self._of.group}"
        if found.control is not None:
            raise TransactionNotKept(
                f"the manifest of transaction {found.control.txid} of {where} is lost: the transaction changed tables",
                txid=found.control.txid,
                oldest=kept[0],
                newest=kept[1],
                found=f"manifests of transactions before it and behind it, of {kept[0]} to {kept[1]}",
                expected=f"the manifest of attempt {found.control.attempt_id}",
                action="bring it back from a back-up of the warehouse; or take transactions on one side of it only",
            )
        if not found.known and found.silent:
            raise TransactionNotKept(
                f"nothing tells whether transaction {last} of {where} changed nothing, or its manifest is lost",
                txid=last,
                oldest=kept[0],
                newest=kept[1],
                found="; ".join(found.silent),
                expected="a table whose log goes back to it",
                action="take later transactions; delta.logRetentionDuration of a table sets how long its log is kept",
            )

    @cached_property
    def _states(self) -> list[StateDescriptor]:
        return descriptors_of_group(self._of.warehouse, self._of.topology, self._of.group)
