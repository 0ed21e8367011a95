"""The user's choices in `trident repair`, its offers, and its steps: values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trident.coordinators.records import Decision, GroupRecord, TableMark
from trident.maintenance.facts import LedgerDamage


@dataclass(frozen=True)
class Choices:
    """The user's explicit choices."""

    undo_foreign: frozenset[str] = frozenset()
    accept_foreign: frozenset[str] = frozenset()
    accept_unverified: frozenset[str] = frozenset()
    adopt_tables: bool = False
    accept_loss: bool = False
    abandon_decision: bool = False
    accept_outside: frozenset[str] = frozenset()
    clamp: frozenset[str] = frozenset()

    @property
    def states(self) -> frozenset[str]:
        """All states that are named."""
        return self.undo_foreign | self.accept_foreign | self.accept_unverified | self.clamp

    def takes(self, offer: Offer) -> bool:
        """Tells whether every option that an offer needs was given, with the state that it names."""
        words = iter(offer.options)
        for option in words:
            given = getattr(self, option.removeprefix("--").replace("-", "_"))
            if not (given if isinstance(given, bool) else next(words) in given):
                return False
        return True

    def finding(self, kind: str, group: str, text: str, *offers: Offer | Refused) -> Finding:
        """A finding with what is offered, or why nothing is; chosen is the first offer that the choices name."""
        made = tuple(offer for offer in offers if isinstance(offer, Offer))
        refusal = " ".join(offer.text for offer in offers if isinstance(offer, Refused))
        return Finding(kind, group, text, made, refusal, next(filter(self.takes, made), None))


@dataclass(frozen=True)
class Restore:
    """RESTORE a table to one of its own versions; ZooKeeper knows of it by the next look.

    ``seen`` is the version that this was decided on: at another one it is not done.
    """

    group: str
    path: str
    table_id: str
    version: int
    seen: int


@dataclass(frozen=True)
class SetMarks:
    """Change what ZooKeeper says of tables."""

    group: str
    marks: Mapping[str, TableMark] = field(default_factory=dict)
    forget: tuple[str, ...] = ()


@dataclass(frozen=True)
class WriteRecord:
    """Write a group's whole state in ZooKeeper, from the tables."""

    group: str
    tx_ids: tuple[str, ...]
    incarnation: str
    identity: Mapping[str, Any]
    record: GroupRecord
    decision: Decision | None
    pins: Mapping[str, Mapping[int, Any]]
    opaque: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class AbandonDecision:
    """Give up a decision of which nothing is published."""

    group: str
    decision: Decision


@dataclass(frozen=True)
class PutPositions:
    """Write the pins, or the partitions' metadata, of some streams again, with their digests."""

    group: str
    pins: Mapping[str, Mapping[int, Any]]
    opaque: Mapping[str, Mapping[str, Any]]
    opaque_txid: int


@dataclass(frozen=True)
class WriteLedger:
    """Write a FileSpout's ledger of files again, as it was."""

    group: str
    damage: LedgerDamage


@dataclass(frozen=True)
class NewOutbox:
    """Begin the record of an outbox anew."""

    group: str
    state: str


@dataclass(frozen=True)
class ClampValues:
    """MERGE a keyed state's log, with the greatest or least value of the type in the place of sums that do not fit."""

    group: str
    state: str
    upto: int


Step = ClampValues | Restore | SetMarks | WriteRecord | AbandonDecision | PutPositions | WriteLedger | NewOutbox


@dataclass(frozen=True)
class Offer:
    """Something that can be done.

    Attributes:
        options: of `trident repair`, beside --apply.
        text: what it does, what is lost, and what may be counted twice.
        steps: how.
    """

    options: tuple[str, ...]
    text: str
    steps: tuple[Step, ...] = ()


@dataclass(frozen=True)
class Finding:
    """One contradiction.

    Attributes:
        kind: its name: see docs/operations.md.
        text: what was found, what was expected, which side is older.
        offers: what could be done.
        refusal: why nothing, or nothing else, is offered.
        chosen: the offer that the choices name.
    """

    kind: str
    group: str
    text: str
    offers: tuple[Offer, ...] = ()
    refusal: str = ""
    chosen: Offer | None = None


@dataclass(frozen=True)
class Refused:
    """Why something is not offered."""

    text: str
