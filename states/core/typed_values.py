"""The rule by which Python values become typed columns, and back: a value is exactly of its type, or refused.

It holds at every depth, and for whatever code gave the value: functions, aggregators, combiners, states, spouts.
Arrow alone is lenient: it makes text of bytes, letters of a text that should be a list, dates and times of numbers,
cuts fractions and nanoseconds off, and drops fields that it does not know.

==================  ====================================================================================
type                values (None: null, everywhere but in a map's keys and where the type says so)
==================  ====================================================================================
boolean             bool
byte … long         int, within the type's range; no bool, no float, no Decimal
float, double       float; int that the type holds exactly. A float is rounded to the nearest ``float``, which
                    may not make infinity of a number, nor 0 of another one
decimal(p,s)        Decimal and int that need no rounding
string              str that is UTF-8
binary              bytes, bytearray, memoryview
date                date, no datetime
timestamp           datetime with a time zone, of whole microseconds
timestamp_ntz       datetime without one
array<t>            list, tuple, range; a one-dimensional array of NumPy, pandas, Arrow or ``array``
map<k,v>            dict; a list of pairs with distinct keys
struct<…>           dict with no other names (one that is lacking is null); a tuple of all values in order; a
                    named tuple or Row with these names
==================  ====================================================================================

A scalar of NumPy or Arrow counts as the Python value that it stands for. Imported by every worker: imports are light.
"""

from __future__ import annotations

import array
import datetime
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from functools import lru_cache
from itertools import chain
from operator import attrgetter, itemgetter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

# Python values of Arrow arrays, so that equal ones are equal to Python too.
#
# Python compares two datetimes of one time zone by what a clock on the wall
# shows, so of the hour that comes twice at the end of summer time each moment
# would equal another one. Arrow's timestamps come in the session's zone; here
# they are read as UTC, in which every instant has a name of its own.


Row = tuple[Any, ...]  # Python values in the order of some fields
_NAN = float("nan")


def python_values(array: Any) -> list[Any]:
    """None for null, datetimes in UTC for instants, dicts for structs and maps."""
    values = in_utc(array)
    if not _is_nested(values.type):
        return values.to_pylist()  # with an argument it is twenty times slower
    # Strict: of a map with a key that comes twice one value would be lost without a word.
    return values.to_pylist(maps_as_pydicts="strict")


def in_utc(array: Any) -> Any:
    """The array with its instants in UTC, also those within others; itself where they are."""
    kind = _kind_in_utc(array.type)
    return array if kind is None else array.cast(kind)


def frozen(value: Any) -> Any:
    """The value as a key: two are equal to Python, and hash alike, exactly where Spark says that the values are equal.

    NaN is one key, wherever in a struct or array it is; 0.0 and -0.0 are one
    (to Python too). Every path that asks in Python whether two rows have the
    same key must ask this.

    Args:
        value: as :func:`python_values` gives it, of a type that Spark can group
            by; or a tuple of such, a whole key.
    """
    if isinstance(value, dict):
        return tuple((name, frozen(item)) for name, item in value.items())
    if isinstance(value, (list, tuple)):
        return tuple(frozen(item) for item in value)
    # NaN is not equal to itself, but Python takes one object for equal to itself within tuples and as a dict's key.
    return _NAN if value != value else value


def less(a: Any, b: Any) -> bool:
    """Tells whether a comes before b to Spark: NaN above every number, a null part of a value below all others.

    Args:
        a, b: numbers, texts, times, booleans, and structs and arrays of such.
    """
    if a is None or b is None:
        return a is None and b is not None
    if isinstance(a, dict):
        a, b = tuple(a.values()), tuple(b.values())
    if isinstance(a, (tuple, list)):
        for one, other in zip(a, b):
            if less(one, other):
                return True
            if less(other, one):
                return False
        return len(a) < len(b)
    if isinstance(a, float) and a != a:
        return False
    if isinstance(b, float) and b != b:
        return True
    return bool(a < b)


def two_values(aggregator: str) -> Callable[[Any, Any], Any]:
    """A built-in aggregate of two Python values, of which null gives the other one.

    A sum is exact: whether it fits its type is seen when it becomes a column again.

    Args:
        aggregator: the name under which states keep it.
    """
    return _TWO[aggregator]


def _added(a: Any, b: Any) -> Any:
    if a is None or b is None:
        return b if a is None else a
    return _EXACT.add(a, b) if isinstance(a, Decimal) and isinstance(b, Decimal) else a + b


def _least(a: Any, b: Any) -> Any:
    if a is None or b is None:
        return b if a is None else a
    return b if less(b, a) else a


def _greatest(a: Any, b: Any) -> Any:
    if a is None or b is None:
        return b if a is None else a
    return b if less(a, b) else a


# Wider than two decimals of Spark's; Python's own context rounds to 28 digits.
_EXACT = Context(prec=80)
_TWO: dict[str, Callable[[Any, Any], Any]] = {"count": _added, "sum": _added, "min": _least, "max": _greatest}


@lru_cache(maxsize=1024)
def _kind_in_utc(kind: "pa.DataType") -> "pa.DataType | None":
    """The type with its instants in UTC; None when it is so already."""
    found = _converted(kind)
    return None if found == kind else found


@lru_cache(maxsize=1024)
def _is_nested(kind: "pa.DataType") -> bool:
    return pa.types.is_nested(kind)


def _converted(kind: "pa.DataType") -> "pa.DataType":
    if pa.types.is_timestamp(kind):
        return pa.timestamp(kind.unit, "UTC") if kind.tz else kind
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_converted(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(
            kind.key_field.with_type(_converted(kind.key_type)), kind.item_field.with_type(_converted(kind.item_type))
        )
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_converted(kind.value_type)))
    if pa.types.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(_converted(kind.value_type)))
    return kind


# By PySpark's terms, on which spouts give rows, a datetime without a time zone is this process's local time where the
# type is ``timestamp``. By those of pandas NaN, NaT and NA are nulls, and integers beside a null are whole floats.
PYSPARK, PANDAS = "PySpark", "pandas"

_NONE = type(None)
_CUT = 120
_ARROW = (pa.ArrowException, TypeError, ValueError, OverflowError)


class WrongValue(Exception):
    """A value is not of its declared type.

    Attributes:
        position: its place among the values.
        path: the field that it is in, such as ``address.lines[2]``; "" where the message names it.
        value: its repr alone; "" where there is no one value.
        details: "found" and "expected", for the report.
    """

    def __init__(
        self, message: str, found: str, expected: str, position: int = 0, path: str = "", value: str = ""
    ) -> None:
        super().__init__(message)
        self.position, self.path, self.value = position, path, value
        self.details = {"found": found, "expected": expected}


def in_one_line(wrong: WrongValue) -> str:
    """The error with what was found and expected."""
    return f"{wrong}; found {wrong.details['found']}, expected {wrong.details['expected']}"


def cut_repr(value: Any) -> str:
    """repr, cut short; also of a value whose class's repr raises."""
    if isinstance(value, (str, bytes)) and len(value) > _CUT:
        return repr(value[:_CUT]) + "…"
    try:
        text = repr(value)
    except Exception as error:  # user code
        return f"<{type(value).__name__}, whose repr raised {type(error).__name__}>"
    return text if len(text) <= _CUT else text[:_CUT] + "…"


def to_arrow(
    values: Sequence[Any], kind: pa.DataType, name: str, nullable: bool = True, terms: str = ""
) -> tuple[pa.Array, bool]:
    """The values as an array, and whether reading it back would give the same Python values.

    Args:
        values: Python values, None for null.
        name: of the output, for the path.
        terms: PYSPARK, PANDAS or "".

    Raises:
        WrongValue: one is not of the type.
    """
    rule = _rule(kind, nullable, terms)
    kinds = set(map(type, values))
    if kinds <= rule.plain and (rule.more is None or rule.more(values, kinds)):
        try:
            made = pa.array(values, type=kind, from_pandas=terms == PANDAS)
            return made, rule.exact is not None and kinds <= {_NONE, rule.exact}
        except _ARROW:
            pass  # one of them does not fit: the slow way finds which
    found, position = [], 0
    try:
        for position, value in enumerate(values):  # noqa: B007
            found.append(rule.checked(value))
    except _Refused as refused:
        raise _wrong(name, refused, position) from None
    try:
        return pa.array(found, type=kind), False
    except _ARROW as error:
        raise WrongValue(
            f"the values of output {name!r} are not of its type", str(error).splitlines()[0], type_text(kind), 0, name
        ) from None


def _wrong(name: str, refused: _Refused, position: int) -> WrongValue:
    path = name + "".join(reversed(refused.path))
    at = f", at {path}," if refused.path else ""
    return WrongValue(
        f"a value of output {name!r}{at} is not of its type",
        refused.found,
        refused.expected,
        position,
        path,
        refused.value,
    )


def type_text(kind: pa.DataType) -> str:
    """The type as users write it."""
    is_ = pa.types
    if is_.is_timestamp(kind):
        return "a datetime with a time zone (timestamp)" if kind.tz else "a datetime without time zone (timestamp_ntz)"
    return _ddl(kind)


def _ddl(kind: pa.DataType) -> str:
    is_ = pa.types
    if is_.is_timestamp(kind):
        return "timestamp" if kind.tz else "timestamp_ntz"
    if is_.is_struct(kind):
        return f"struct<{', '.join(f'{field.name}: {_ddl(field.type)}' for field in kind)}>"
    if is_.is_map(kind):
        return f"map<{_ddl(kind.key_type)}, {_ddl(kind.item_type)}>"
    if is_.is_list(kind) or is_.is_large_list(kind):
        return f"array<{_ddl(kind.value_type)}>"
    if is_.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    names = {
        "int64": "bigint",
        "int32": "int",
        "int16": "smallint",
        "int8": "tinyint",
        "date32[day]": "date",
        "bool": "boolean",
    }
    return names.get(str(kind), str(kind))


def local_time(naive: datetime.datetime) -> datetime.datetime:
    """With this process's offset; Python gives none on the first and the last day that it knows."""
    try:
        return naive.astimezone()
    except (ValueError, OverflowError):
        inside = naive + datetime.timedelta(days=2 if naive.year == 1 else -2)
        return naive.replace(tzinfo=datetime.timezone(inside.astimezone().utcoffset() or datetime.timedelta(0)))


# --- rules: made once for a type ---------------------------------------------------------


class _Refused(Exception):
    """A value is refused; those who hold it put their part before the path."""

    def __init__(self, found: str, expected: str, value: str = "") -> None:
        super().__init__()
        self.found, self.expected, self.value = found, expected, value or found
        self.path: list[str] = []  # the innermost part first


@dataclass(frozen=True)
class _Rule:
    """How values of one type are looked at.

    Attributes:
        plain: the classes of which Arrow changes no value; it may still refuse one.
        more: of values and their classes, all of them plain: whether that is so, where the class alone does not say it.
        checked: one value, as Arrow takes it without changing it; raises _Refused.
        exact: the class whose values come back from Arrow as they were; None: there is none.
    """

    plain: frozenset[type]
    more: Callable[[Sequence[Any], set[type]], bool] | None
    checked: Callable[[Any], Any]
    exact: type | None = None

    def are_plain(self, values: Iterable[Any]) -> bool:
        """Tells whether Arrow may be given the values as they are: quick; where it says no, ``checked`` decides."""
        if self.more is None:
            return self.plain.issuperset(map(type, values))
        values = list(values)
        kinds = set(map(type, values))
        return kinds <= self.plain and self.more(values, kinds)


@lru_cache(maxsize=1024)
def _rule(kind: pa.DataType, nullable: bool, terms: str) -> _Rule:
    is_ = pa.types
    if is_.is_struct(kind):
        rule = _of_struct(kind, terms)
    elif is_.is_map(kind):
        rule = _of_map(kind, terms)
    elif is_.is_list(kind) or is_.is_large_list(kind):
        rule = _of_list(kind, terms)
    else:
        rule = _of_leaf(kind, terms)

    # A null is looked at here: the rules above see none in ``checked``.
    def checked(value: Any) -> Any:
        found = python_value(value)
        if terms == PANDAS and _is_missing(found):
            found = None
        if found is None:
            if nullable:
                return None
            raise _Refused("None", f"no null: {type_text(kind)}")
        try:
            return rule.checked(found)
        except _Refused as refused:
            if found is not value and not refused.path:
                raise _refuse(value, kind) from None
            raise

    return _Rule(rule.plain if nullable else rule.plain - {_NONE}, rule.more, checked, rule.exact)


def _refuse(value: Any, kind: pa.DataType, expected: str = "") -> _Refused:
    text = cut_repr(value)
    return _Refused(f"{text} ({type(value).__name__})", expected or type_text(kind), text)


def python_value(value: Any) -> Any:
    """The Python value that a scalar of NumPy or Arrow stands for; any other value as it is."""
    if isinstance(value, pa.Scalar):
        return value.as_py()
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(value, numpy.generic):
        return value
    if isinstance(value, numpy.datetime64):
        # NumPy would make a number of nanoseconds.
        whole = value if numpy.datetime_data(value)[0] == "D" else value.astype("M8[us]")
        return whole.item() if whole == value else value
    return value if isinstance(value, numpy.timedelta64) else value.item()


def _of_leaf(kind: pa.DataType, terms: str) -> _Rule:
    is_ = pa.types
    if is_.is_string(kind) or is_.is_large_string(kind):
        return _by_class(kind, (str,), _is_utf8, str)
    if is_.is_integer(kind):
        bits = kind.bit_width
        least, most = (-(1 << bits - 1), (1 << bits - 1) - 1) if is_.is_signed_integer(kind) else (0, (1 << bits) - 1)
        return _by_class(kind, (int,), lambda value: least <= value <= most, int)
    if is_.is_floating(kind):
        return _of_float(kind)
    if is_.is_boolean(kind):
        return _by_class(kind, (bool,), None, bool)
    if is_.is_binary(kind) or is_.is_large_binary(kind):
        return _by_class(kind, (bytes, bytearray, memoryview), None, bytes)
    if is_.is_decimal(kind):
        return _by_class(kind, (Decimal, int), lambda value: _arrow_takes(value, kind))
    if is_.is_date(kind):
        return _by_class(kind, (datetime.date,), lambda value: not isinstance(value, datetime.datetime))
    if is_.is_timestamp(kind):
        return _of_timestamp(kind, terms)
    if is_.is_duration(kind):
        return _by_class(kind, (datetime.timedelta,), lambda value: not getattr(value, "nanoseconds", 0))
    if is_.is_time(kind):
        return _by_class(kind, (datetime.time,), lambda value: value.tzinfo is None)
    if is_.is_null(kind):
        return _by_class(kind, (), None)

    def checked(value: Any) -> Any:
        if _arrow_takes(value, kind):
            return value
        raise _refuse(value, kind)

    return _Rule(frozenset(), None, checked)  # no type of Spark's that a function's results may have


def _is_missing(value: Any) -> bool:
    pandas = sys.modules.get("pandas")
    return (
        value is None
        or (isinstance(value, (float, Decimal)) and value != value)
        or (pandas is not None and (value is pandas.NA or value is pandas.NaT))
    )


def _by_class(
    kind: pa.DataType, classes: tuple[type, ...], fits: Callable[[Any], bool] | None, exact: type | None = None
) -> _Rule:

    def checked(value: Any) -> Any:
        # A bool is an int to Python.
        if isinstance(value, classes) and (exact is bool or not isinstance(value, bool)):
            if fits is None or fits(value):
                return value
        raise _refuse(value, kind)

    return _Rule(frozenset({_NONE, *classes}), None, checked, exact)


def _is_utf8(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _arrow_takes(value: Any, kind: pa.DataType) -> bool:
    try:
        pa.scalar(value, kind)
    except _ARROW:
        return False
    return True


def _of_float(kind: pa.DataType) -> _Rule:
    code = {16: "e", 32: "f", 64: "d"}[kind.bit_width]
    packed = struct.Struct("<" + code)  # not the machine's own way, which makes infinity of numbers that are too great

    def checked(value: Any) -> float:
        if isinstance(value, (float, int)) and not isinstance(value, bool):
            try:
                (made,) = packed.unpack(packed.pack(float(value)))
            except OverflowError:  # a number beyond the greatest
                raise _refuse(value, kind) from None
            if made == value if isinstance(value, int) else (made != 0 or value == 0):
                return float(made)
        raise _refuse(value, kind)

    if code == "d":
        return _Rule(frozenset({_NONE, float, int}), None, checked, float)

    def are_in_range(values: Sequence[Any], kinds: set[type]) -> bool:
        given = pa.array(values, pa.float64())
        return _odd(given) == _odd(given.cast(kind, safe=False))

    return _Rule(frozenset({_NONE, float}), are_in_range, checked)


def _odd(numbers: pa.Array) -> tuple[Any, Any]:
    """How many of the numbers are infinite, and how many are 0."""
    import pyarrow.compute as pc  # time: not every worker needs it

    return pc.sum(pc.is_inf(numbers)).as_py(), pc.sum(pc.equal(numbers, pa.scalar(0.0, numbers.type))).as_py()


def _of_timestamp(kind: pa.DataType, terms: str) -> _Rule:
    aware = kind.tz is not None
    zones = {datetime.timezone} if aware else {_NONE}

    def say_zones(values: Sequence[Any], kinds: set[type]) -> bool:
        found = {type(zone) for zone in set(map(attrgetter("tzinfo"), filter(None, values)))}
        return found <= zones or (aware and _NONE not in found and all(one.__module__ == "zoneinfo" for one in found))

    def checked(value: Any) -> Any:
        if isinstance(value, datetime.datetime) and value == value and not getattr(value, "nanosecond", 0):
            naive = value.utcoffset() is None
            if naive is not aware:
                return value
            if naive and terms == PYSPARK:
                return local_time(value)
        raise _refuse(value, kind)

    return _Rule(frozenset({_NONE, datetime.datetime}), say_zones, checked)


def _no_nulls(values: Sequence[Any], kinds: set[type]) -> Sequence[Any]:
    return [value for value in values if value is not None] if _NONE in kinds else values


def _of_list(kind: pa.DataType, terms: str) -> _Rule:
    item = _rule(kind.value_type, kind.value_field.nullable, terms)

    def have_plain_items(values: Sequence[Any], kinds: set[type]) -> bool:
        return item.are_plain(chain.from_iterable(_no_nulls(values, kinds)))

    def checked(value: Any) -> Any:
        items = _items(value, kind.value_type, terms)
        if items is None:
            raise _refuse(value, kind, f"a list: {type_text(kind)}")
        if items is value:  # an array of NumPy's of exactly this type
            return value
        return [_within(item, one, "[{}]", place) for place, one in enumerate(items)]

    return _Rule(frozenset({_NONE, list, tuple}), have_plain_items, checked)


def _items(value: Any, kind: pa.DataType, terms: str) -> Any:
    """The items of what counts as a list; the value itself where Arrow takes all as they are; None: it is no list."""
    if isinstance(value, (list, tuple, range)):
        return list(value)
    if isinstance(value, array.array):
        return value.tolist()
    if isinstance(value, (pa.Array, pa.ChunkedArray)):
        return python_values(value)
    numpy, pandas = sys.modules.get("numpy"), sys.modules.get("pandas")
    if pandas is not None and isinstance(value, (pandas.Series, pandas.api.extensions.ExtensionArray)):
        return list(value)
    if numpy is None or not isinstance(value, numpy.ndarray) or value.ndim == 0:
        return None
    if "numpy.ma" in sys.modules and isinstance(value, numpy.ma.MaskedArray):
        return value.tolist()  # what is masked is None; below the mask there may be anything
    if terms == PANDAS and value.dtype.kind == "f" and pa.types.is_integer(kind):
        return [int(one) if one.is_integer() else one for one in value.tolist()]
    if value.ndim == 1 and value.dtype.kind in "iufb" and pa.from_numpy_dtype(value.dtype) == kind:
        return value if terms != PANDAS or value.dtype.kind != "f" else value.tolist()
    return list(value)


def _within(rule: _Rule, value: Any, part: str, *names: Any) -> Any:
    try:
        return rule.checked(value)
    except _Refused as refused:
        refused.path.append(part.format(*names))
        raise


def _of_map(kind: pa.DataType, terms: str) -> _Rule:
    key, item = _rule(kind.key_type, False, terms), _rule(kind.item_type, kind.item_field.nullable, terms)
    # Two keys that differ may be one as a float of 32 bits; NaN is another key each time to a dict.
    may_meet = pa.types.is_floating(kind.key_type) or pa.types.is_nested(kind.key_type)

    def have_plain_items(values: Sequence[Any], kinds: set[type]) -> bool:
        if may_meet:
            return False
        given = _no_nulls(values, kinds)
        items = chain.from_iterable(map(dict.values, given))
        return key.are_plain(chain.from_iterable(given)) and item.are_plain(items)

    def checked(value: Any) -> Any:
        pairs = list(value.items()) if isinstance(value, dict) else value
        if not isinstance(pairs, (list, tuple)) or not all(isinstance(one, tuple) and len(one) == 2 for one in pairs):
            raise _refuse(value, kind, f"a dict: {type_text(kind)}")
        made = [
            (_within(key, name, ".keys()[{}]", place), _within(item, one, "[{}]", cut_repr(name)))
            for place, (name, one) in enumerate(pairs)
        ]
        if len({frozen(name) for name, _ in made}) != len(made):
            raise _refuse(value, kind, "a key once")
        return made

    return _Rule(frozenset({_NONE, dict}), have_plain_items, checked)


def _of_struct(kind: pa.DataType, terms: str) -> _Rule:
    fields = {field.name: _rule(field.type, field.nullable, terms) for field in kind}
    names, count = tuple(fields), kind.num_fields

    def have_plain_fields(values: Sequence[Any], kinds: set[type]) -> bool:
        given, classes = _no_nulls(values, kinds), kinds - {_NONE}
        if len(classes) > 1 or not {count}.issuperset(map(len, given)):
            return False
        places: Sequence[Any] = range(count) if classes == {tuple} else names
        try:
            # Of as many fields as the type has none is lacking, so there is no other one.
            return all(rule.are_plain(map(itemgetter(place), given)) for place, rule in zip(places, fields.values()))
        except KeyError:
            return False

    def checked(value: Any) -> Any:
        given = _named(value, names)
        if given is None:
            raise _refuse(value, kind, f"a dict, or a tuple of {count}, for {', '.join(names)}")
        other = next((name for name in given if name not in fields), None)
        if other is not None:
            raise _Refused(f"a field {other!r}", f"no other fields than {', '.join(names)}")
        return {name: _within(rule, given.get(name), ".{}", name) for name, rule in fields.items()}

    return _Rule(frozenset({_NONE, dict, tuple}), have_plain_fields, checked)


def _named(value: Any, names: Sequence[str]) -> dict[Any, Any] | None:
    """The fields of what counts as a struct; None: it is none."""
    if isinstance(value, dict):
        return value
    if not isinstance(value, tuple):
        return None
    own = getattr(value, "__fields__", None) or getattr(value, "_fields", None)  # of a Row, of a named tuple
    if own is not None:
        return dict(zip(own, value))
    return dict(zip(names, value)) if len(value) == len(names) else None


# Columns of given types out of what users' code gives: columns of Arrow, NumPy or pandas, and rows.
#
# The rule for their values is in ``typed_values``. Imported by workers: imports are light.


def typed(column: Any, kind: pa.DataType, name: str) -> pa.Array:
    """A column as an array of a type, where no value changes by that.

    A column of objects, and one whose type has parts, is held to the rule for the values of functions over rows
    (``states.core.typed_values``); numbers of another width are taken where each is the same number.

    Raises:
        WrongValue: its type is another one, or a value does not fit.
    """
    found = getattr(column, "type", None) or getattr(column, "dtype", None)
    try:
        if not isinstance(column, (pa.Array, pa.ChunkedArray)):
            if str(getattr(column, "dtype", "")) == "object":
                return _of_objects(column, kind, name)
            column = pa.array(column, from_pandas=True)
        array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        if array.type == kind:
            return array
        found = array.type
        if pa.types.is_nested(kind) and pa.types.is_nested(array.type):
            return to_arrow(python_values(array), kind, name)[0]
        if _may_become(array.type, kind):
            made = pc.cast(array, kind, safe=True)
            if not pa.types.is_floating(kind) or _as_finite(array, made):
                return made
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise WrongValue(
            f"output {name!r} does not fit its type: {str(error).splitlines()[0]}",
            str(found),
            type_text(kind),
            path=name,
        ) from None
    raise WrongValue(f"output {name!r} is not of its type", str(found), type_text(kind), path=name)


def _of_objects(column: Any, kind: pa.DataType, name: str) -> pa.Array:
    try:
        return to_arrow(list(column), kind, name, terms=PANDAS)[0]
    except WrongValue as error:
        found = f"{error.details['found']}, in a column of dtype object"
        raise WrongValue(str(error), found, error.details["expected"], error.position, error.path) from None


def _as_finite(given: pa.Array, made: pa.Array) -> bool:
    """Tells whether no number has become infinite, nor 0: to the double's 1e300 a float has infinity."""
    numbers = given.cast(pa.float64())
    of_given, of_made = pc.equal(numbers, 0.0), pc.equal(made.cast(pa.float64()), 0.0)
    return bool(pc.is_inf(numbers).equals(pc.is_inf(made)) and of_given.equals(of_made))


def _may_become(found: pa.DataType, kind: pa.DataType) -> bool:
    """Tells whether a cast between the types means the same values: Arrow would also make text of numbers."""
    is_ = pa.types
    if is_.is_null(found):
        return True
    if _is_text(kind):
        return _is_text(found)
    if _is_binary(kind):
        return _is_binary(found)
    if is_.is_integer(kind) or is_.is_floating(kind):
        return is_.is_integer(found) or is_.is_floating(found)
    if is_.is_decimal(kind):
        return is_.is_integer(found) or is_.is_decimal(found)
    if is_.is_timestamp(kind):
        return is_.is_timestamp(found) and (found.tz is None) == (kind.tz is None)
    return is_.is_date(kind) and is_.is_date(found)


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def _is_binary(kind: pa.DataType) -> bool:
    is_ = pa.types
    return (
        is_.is_binary(kind) or is_.is_large_binary(kind) or is_.is_fixed_size_binary(kind) or is_.is_binary_view(kind)
    )


# --- rows and tables of a source ---------------------------------------------------------


def batches_of(given: Iterable[Any], schema: pa.Schema, size: int) -> Iterator[pa.RecordBatch]:
    """The rows that a spout's code gives, in pieces: tuples in the schema's order, named Rows, tables, record batches.

    Args:
        size: rows in a batch that is made of tuples.

    Raises:
        WrongValue: something is no row, or a value is not of its field's type.
    """
    rows: list[tuple[Any, ...]] = []
    for one in [given] if isinstance(given, (pa.Table, pa.RecordBatch)) else given:
        if isinstance(one, (pa.Table, pa.RecordBatch)):
            table = pa.Table.from_batches([one]) if isinstance(one, pa.RecordBatch) else one
            yield from fitted(table, schema).to_batches()
            continue
        rows.append(_row(one, schema.names))
        if len(rows) >= size:
            yield from table_of(rows, schema).to_batches()
            rows = []
    if rows:
        yield from table_of(rows, schema).to_batches()


def _row(given: Any, names: Sequence[str]) -> tuple[Any, ...]:
    if not isinstance(given, (tuple, list)) or len(given) != len(names):
        raise WrongValue("a row cannot be used", cut_repr(given), f"a tuple of {len(names)}: {', '.join(names)}")
    own = getattr(given, "__fields__", None)
    if own is None:
        return tuple(given)
    if sorted(own) != sorted(names):
        raise WrongValue("a Row has other fields", ", ".join(own), ", ".join(names))
    return tuple(given[own.index(name)] for name in names)


def table_of(rows: Sequence[Sequence[Any]], schema: pa.Schema) -> pa.Table:
    """Rows with a value for each field as a table; a datetime without a zone is this process's local time.

    Raises:
        WrongValue: a value is not of its field's type.
    """
    # Not zip(*rows): an iterator for each of many rows is work for the garbage collector.
    columns = [
        to_arrow([row[place] for row in rows], field.type, field.name, field.nullable, PYSPARK)[0]
        for place, field in enumerate(schema)
    ]
    return pa.table(columns, schema=schema)


def fitted(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """A table with the fields of a schema, in any order, as one of exactly this schema.

    Raises:
        WrongValue: it has others, or a value is not of its field's type.
    """
    if sorted(table.column_names) != sorted(schema.names):
        found = ", ".join(table.column_names) or "no field"
        raise WrongValue("the fields are not those of the schema", found, ", ".join(schema.names))
    columns = [typed(table.column(field.name), field.type, field.name) for field in schema]
    for field, column in zip(schema, columns):
        if column.null_count and not field.nullable:
            raise WrongValue(f"the field {field.name!r} holds nulls", "a null", "none, by the schema", 0, field.name)
    return pa.table(columns, schema=schema)
