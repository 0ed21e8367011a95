"""The stored value of a state, by which a transaction counts once: the pure rules.

The rules (docs/semantics.md 5) decide for one key, from what is stored and the txid
that updates it, what the update builds on and what is stored afterwards:

=================  =======================  ==============================  ===========================
stored txid is     non-transactional        transactional                   opaque
=================  =======================  ==============================  ===========================
(nothing stored)   builds on None           builds on None                  builds on None
older              builds on the value      builds on the value             builds on `current`
equal              builds on the value:     nothing changes: this           builds on `previous`: what
                   counts twice             transaction is in it            an earlier try did is undone
newer              (not known)              :class:`Halted`                 :class:`Halted`
=================  =======================  ==============================  ===========================

A value of None means that the key is absent. Its row stays while a replay
could still need it: a transactional row says that this txid has been applied,
an opaque one holds `previous`. A row that would say nothing more than
"absent" is removed.

How a stored value is written down is in :mod:`trident.states.core.stored_values`.
"""

from __future__ import annotations

import copy
import enum
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final, TypeVar

from trident.coordinators.errors import ConfigError, Halted, IdentityMismatch
from trident.states.core.stored_values import OpaqueValue, TransactionalValue


class Semantics(enum.Enum):
    """How a state keeps a replay from counting twice (docs/semantics.md 5)."""

    NON_TRANSACTIONAL = "non-transactional"
    TRANSACTIONAL = "transactional"
    OPAQUE = "opaque"


class _Unchanged(enum.Enum):
    UNCHANGED = "unchanged"


UNCHANGED: Final = _Unchanged.UNCHANGED
"""Instead of a new stored value: the stored one stays as it is."""


@dataclass(frozen=True, slots=True)
class Base:
    """The value that one transaction builds on, for one key.

    Attributes:
        value: what the first update of the transaction is given; a copy of its own.
        applied: the transaction has been applied already: its updates must be skipped.
    """

    value: Any
    applied: bool = False


Stored = Any
"""A plain value, a TransactionalValue or an OpaqueValue, by the semantics; None = no row."""

_ROW = {Semantics.TRANSACTIONAL: TransactionalValue, Semantics.OPAQUE: OpaqueValue}
T = TypeVar("T")


def visible(semantics: Semantics, stored: Stored, incarnation: str = "") -> Any:
    """Returns what a reader outside any transaction sees of a stored value: the latest; None = absent.

    Raises:
        IdentityMismatch: other semantics or another incarnation stored it.
    """
    _check_row(semantics, stored, incarnation)
    if isinstance(stored, OpaqueValue):
        return fresh(stored.current)
    return fresh(stored.value if isinstance(stored, TransactionalValue) else stored)


def base_of(semantics: Semantics, stored: Stored, txid: int | None, incarnation: str = "") -> Base:
    """Returns what transaction ``txid`` builds on, by the table at the head of this file.

    Args:
        txid: None only where the semantics do not ask for it.

    Raises:
        Halted: a newer transaction is stored.
        IdentityMismatch: other semantics or another incarnation stored it.
    """
    if semantics is Semantics.NON_TRANSACTIONAL:
        return Base(visible(semantics, stored, incarnation))
    _check_txid(txid)
    _check_row(semantics, stored, incarnation)
    if stored is None:
        return Base(None)
    if stored.txid > txid:
        raise Halted(
            f"a value was stored by a newer transaction than {txid}",
            found=f"txid {stored.txid}",
            expected=f"at most {txid}",
            action="two topologies write to this map, or ZooKeeper was set back to an older state: find out which; "
            "to begin again, `trident reset NAME` and clear the map",
        )
    if isinstance(stored, TransactionalValue):
        return Base(fresh(stored.value), applied=stored.txid == txid)
    return Base(fresh(stored.previous if stored.txid == txid else stored.current))


def stored_after(semantics: Semantics, stored: Stored, txid: int | None, new: Any, incarnation: str = "") -> Stored:
    """Returns what is stored once transaction ``txid`` has made ``new`` out of its base.

    Args:
        stored: what was stored before the transaction's (latest try's) first update of this key.
        new: None removes the key.

    Returns:
        The new stored value; None: the row is to be removed; :data:`UNCHANGED`.

    Raises:
        Halted, IdentityMismatch: as :func:`base_of`.
    """
    base = base_of(semantics, stored, txid, incarnation)
    if base.applied:
        return UNCHANGED
    if new is None and base.value is None:
        # Absent before and after: a replay builds on None with or without a row.
        return UNCHANGED if stored is None else None
    if semantics is Semantics.NON_TRANSACTIONAL:
        return new
    assert txid is not None
    if semantics is Semantics.TRANSACTIONAL:
        return TransactionalValue(txid, new, incarnation)
    return OpaqueValue(txid, new, base.value, incarnation)


def undone(stored: Stored, txid: int, incarnation: str = "") -> Stored:
    """An opaque value as it was before transaction ``txid``: for a key that only a failed try of it touched.

    The replay of an opaque batch may not touch that key again, and in Trident
    it stays counted (docs/semantics.md 7.1). A writer that writes before the batch is
    decided must undo it; the framework writes afterwards, and has no need to.

    Returns:
        As :func:`stored_after`; :data:`UNCHANGED` when txid did not write it.

    Raises:
        Halted, IdentityMismatch: as :func:`base_of`.
    """
    base = base_of(Semantics.OPAQUE, stored, txid, incarnation)
    if stored is None or stored.txid != txid:
        return UNCHANGED
    return None if base.value is None else OpaqueValue(txid, base.value, base.value, incarnation)


_SCALARS = (type(None), bool, int, float, str, bytes, Decimal, datetime, date, timedelta)


def fresh(value: T) -> T:
    """The value itself where it is immutable, else a copy: an update in place must not reach `previous`."""
    return value if type(value) in _SCALARS else copy.deepcopy(value)


def _check_txid(txid: int | None) -> None:
    if type(txid) is not int or txid < 1:
        raise ConfigError(
            "a transactional or opaque value is updated in a transaction",
            found=f"txid {txid!r}",
            expected="a whole number from 1 on",
            action="call begin_commit(txid) first",
        )


def _check_row(semantics: Semantics, stored: Stored, incarnation: str) -> None:
    if stored is None:
        return
    expected = _ROW.get(semantics)
    is_row = isinstance(stored, (TransactionalValue, OpaqueValue))
    if (expected is None and is_row) or (expected is not None and not isinstance(stored, expected)):
        raise IdentityMismatch(
            "a stored value was not written with the semantics of this state",
            found=type(stored).__name__,
            expected=expected.__name__ if expected else f"a plain value ({semantics.value})",
            action="clear the map, use another name, or give the state the semantics it was written with",
        )
    if is_row and stored.incarnation != incarnation:
        raise IdentityMismatch(
            "a stored value was written by another incarnation of a topology",
            found=f"incarnation {stored.incarnation!r}",
            expected=f"incarnation {incarnation!r}",
            action="clear the map or use another name: txids of two incarnations cannot be compared",
        )
