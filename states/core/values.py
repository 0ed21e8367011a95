"""The values that states store: their form in rows, the rule by which a transaction counts once, built-in queries.

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

How a stored value is written down is in :mod:`trident.states.core.values`.
"""

from __future__ import annotations

import base64
import copy
import enum
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any, Final, TypeVar, Union
from zoneinfo import ZoneInfo

from trident.coordinators.errors import ConfigError, Halted, IdentityMismatch, TridentError

# The values in a map's rows, and their text form.
#
# :func:`dumps` and :func:`loads` are exact for plain Python values, an error for
# anything else, and never pickle: a writer to the store must not be able to run
# code in its readers.


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TransactionalValue:
    """A value with the transaction that wrote it last.

    Attributes:
        txid: that transaction.
        value: None: the key is absent since then.
        incarnation: of the topology that wrote it; txids of two never mix.
    """

    txid: int
    value: Any
    incarnation: str = ""


@dataclass(frozen=True, slots=True)
class OpaqueValue:
    """A value with the transaction that wrote it last and the value before that transaction.

    Attributes:
        txid: that transaction.
        current: the value since then; None: absent.
        previous: the value before; None: absent.
        incarnation: as in :class:`TransactionalValue`.
    """

    txid: int
    current: Any
    previous: Any
    incarnation: str = ""


# JSON's own types stand for themselves; an object is always {tag: content}.
_INT64 = 2**63


def dumps(value: Any) -> str:
    """The value as ASCII text; equal texts mean equal values of equal types.

    Takes None, bool, int, float, str, bytes, Decimal, datetime (naive, with a
    fixed offset or a ZoneInfo), date, timedelta, and list, tuple and dict of
    these, :class:`TransactionalValue` and :class:`OpaqueValue`. Exactly these
    types: a subclass would not come back as what it was.
    """
    try:
        return json.dumps(_encoded(value), separators=(",", ":"), allow_nan=False)
    except RecursionError:
        raise ConfigError(
            "a value is nested too deeply, or holds itself", expected="at most some hundred levels"
        ) from None


def loads(text: str) -> Any:
    """The value of which :func:`dumps` made the text."""
    try:
        if type(text) is not str:
            raise ValueError(f"a {type(text).__name__}")
        return json.loads(
            text, object_pairs_hook=_decoded, parse_constant=_refuse, parse_int=_small_int, parse_float=_finite
        )
    except (ValueError, TypeError, ArithmeticError, LookupError, RecursionError) as problem:
        raise TridentError(
            "a stored value cannot be read",
            found=f"{text!r:.200} ({problem})",
            expected="text written by this framework",
            action="something else wrote to the map: restore it, or clear it and begin again with `trident reset NAME`",
        ) from problem


def _encoded(value: Any) -> Any:
    kind = type(value)
    if value is None or kind is bool:
        return value
    encode = _ENCODERS.get(kind)
    if encode is None:
        raise ConfigError(
            "a value cannot be stored",
            found=f"{kind.__module__}.{kind.__qualname__}: {value!r:.100}",
            expected="None, bool, numbers, str, bytes, datetime, date, timedelta; list, tuple, dict of these",
        )
    return encode(value)


def _encoded_int(value: int) -> Any:
    # Decimal text of a huge int is refused by Python (a guard against its quadratic time); hexadecimal is not.
    return value if -_INT64 <= value < _INT64 else {"int": hex(value)}


def _encoded_str(value: str) -> Any:
    # JSON would join two lone surrogates to one character.
    if value.isascii() or not any("\ud800" <= char <= "\udfff" for char in value):
        return value
    return {"str": _base64(value.encode("utf-8", "surrogatepass"))}


def _encoded_datetime(value: datetime) -> Any:
    offset = value.utcoffset()
    if offset is not None and offset.microseconds:
        # Python reads such a text back as another zone.
        raise ConfigError(
            "a datetime's time zone cannot be stored", found=f"an offset of {offset}", expected="whole seconds"
        )
    zone = value.tzinfo
    if zone is None or type(zone) is timezone:
        return {"datetime": [value.isoformat(), None, value.fold]}
    key = getattr(zone, "key", None)
    if type(zone).__module__.partition(".")[0] not in ("zoneinfo", "backports") or not isinstance(key, str):
        raise ConfigError(
            "a datetime's time zone cannot be stored",
            found=f"{type(zone).__module__}.{type(zone).__qualname__}",
            expected="datetime.timezone or a named zoneinfo.ZoneInfo",
        )
    return {"datetime": [value.replace(tzinfo=None).isoformat(), key, value.fold]}


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


_ENCODERS: dict[type, Callable[[Any], Any]] = {
    int: _encoded_int,
    float: lambda value: value if math.isfinite(value) else {"float": repr(value)},
    str: _encoded_str,
    bytes: lambda value: {"bytes": _base64(value)},
    Decimal: lambda value: {"decimal": str(value)},
    datetime: _encoded_datetime,
    date: lambda value: {"date": value.isoformat()},
    timedelta: lambda value: {"timedelta": [value.days, value.seconds, value.microseconds]},
    list: lambda value: [_encoded(item) for item in value],
    tuple: lambda value: {"tuple": [_encoded(item) for item in value]},
    dict: lambda value: {"dict": [[_encoded(key), _encoded(item)] for key, item in value.items()]},
    TransactionalValue: lambda row: {"transactional": [row.txid, _encoded(row.value), row.incarnation]},
    OpaqueValue: lambda row: {"opaque": [row.txid, _encoded(row.current), _encoded(row.previous), row.incarnation]},
}


def _decoded(pairs: list[tuple[str, Any]]) -> Any:
    """One {tag: content}, whose content is decoded already."""
    (tag, content), *more = pairs or [("", None)]
    if more or tag not in _DECODERS:
        raise ValueError(f"unknown form {[name for name, _ in pairs]}")
    kind, decode = _DECODERS[tag]
    if type(content) is not kind:
        raise ValueError(f"{tag} of {type(content).__name__}")
    return decode(content)


def _decoded_int(text: str) -> int:
    value = int(text, 16)
    return _same(value, hex(value) == text and not -_INT64 <= value < _INT64)


def _decoded_str(text: str) -> str:
    value = _unbase64(text).decode("utf-8", "surrogatepass")
    return _same(value, _encoded_str(value) != value)


def _decoded_float(text: str) -> float:
    value = float(text)
    return _same(value, not math.isfinite(value) and repr(value) == text)


def _decoded_datetime(content: list[Any]) -> datetime:
    text, key, fold = content
    if type(fold) is not int:
        raise ValueError("fold")
    value = datetime.fromisoformat(text).replace(fold=fold)
    if key is not None:
        value = _same(value, value.tzinfo is None).replace(tzinfo=ZoneInfo(key))
    return _same(value, _encoded_datetime(value) == {"datetime": content})


def _decoded_date(text: str) -> date:
    value = date.fromisoformat(text)
    return _same(value, value.isoformat() == text)


def _decoded_decimal(text: str) -> Decimal:
    value = Decimal(text)
    return _same(value, str(value) == text)


def _decoded_timedelta(content: list[Any]) -> timedelta:
    value = timedelta(*(_same(part, type(part) is int) for part in content))
    return _same(value, [value.days, value.seconds, value.microseconds] == content)


def _decoded_dict(content: list[Any]) -> dict[str, Any]:
    if not all(type(pair) is list and len(pair) == 2 for pair in content):
        raise ValueError("dict of pairs expected")
    value = {key: item for key, item in content}
    return _same(value, len(value) == len(content))


def _decoded_row(kind: type) -> Callable[[list[Any]], Any]:
    width = {TransactionalValue: 3, OpaqueValue: 4}[kind]

    def decode(content: list[Any]) -> Any:
        if len(content) != width or type(content[0]) is not int or content[0] < 1 or type(content[-1]) is not str:
            raise ValueError(f"not a {kind.__name__}")
        return kind(*content)

    return decode


def _unbase64(text: str) -> bytes:
    value = base64.b64decode(text, validate=True)
    return _same(value, _base64(value) == text)


def _same(value: T, holds: bool) -> T:
    """The value, if it is written in the one way in which it is written."""
    if not holds:
        raise ValueError(f"another spelling of {value!r:.50}")
    return value


def _refuse(text: str) -> Any:
    raise ValueError(f"{text} is not written this way")


def _small_int(text: str) -> int:
    if len(text) > 20:
        raise ValueError("a large int is not written this way")
    return _same(int(text), -_INT64 <= int(text) < _INT64)


def _finite(text: str) -> float:
    return _same(float(text), math.isfinite(float(text)))


_DECODERS: dict[str, tuple[Union[type[str], type[list[Any]]], Callable[[Any], Any]]] = {
    "int": (str, _decoded_int),
    "str": (str, _decoded_str),
    "float": (str, _decoded_float),
    "bytes": (str, _unbase64),
    "decimal": (str, _decoded_decimal),
    "datetime": (list, _decoded_datetime),
    "date": (str, _decoded_date),
    "timedelta": (list, _decoded_timedelta),
    "tuple": (list, tuple),
    "dict": (list, _decoded_dict),
    "transactional": (list, _decoded_row(TransactionalValue)),
    "opaque": (list, _decoded_row(OpaqueValue)),
}


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


# The built-in queries of states (docs/semantics.md 4): for ``stream.state_query``.


class _Query:
    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class MapGet(_Query):
    """The value of a key: ``state_query(counts, "word", MapGet(), "count")``.

    The inputs are the state's keys in their order, the outputs its values. A
    key that the state does not have gives nulls, and the row stays.
    """


class SnapshotGet(_Query):
    """The value of a state without keys, on each row: ``state_query(total, SnapshotGet(), "total")``."""


class TupleCollectionGet(_Query):
    """Every entry of a state, for each row: ``state_query(counts, TupleCollectionGet(), "word, count")``.

    The outputs are the state's keys, then its values. A state without entries drops the row. A map of your own
    needs ``items()`` beside ``multi_get``, as SqliteMap and RedisMap have it; a state of a StateFactory, or a
    static one, ``get_tuples()`` (Storm's ITupleCollection), and then the outputs name their types.
    """
