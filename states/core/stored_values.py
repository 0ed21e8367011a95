"""The values in a map's rows, and their text form.

:func:`dumps` and :func:`loads` are exact for plain Python values, an error for
anything else, and never pickle: a writer to the store must not be able to run
code in its readers.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any, TypeVar, Union
from zoneinfo import ZoneInfo

from trident.coordinators.errors import ConfigError, TridentError

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
