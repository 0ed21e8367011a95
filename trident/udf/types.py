"""Types of fields and schemas: from Spark's DDL text and from Python annotations, without a JVM.

PySpark's own ``StructType.fromDDL`` asks the JVM; a topology is built before
there is one, so the text is parsed here. The grammar is the part of Spark's
that names a column's type: ``word string, n long``, ``decimal(10,2)``,
``array<…>``, ``map<…,…>``, ``struct<a: int, b: string>``.
"""

from __future__ import annotations

import collections.abc
import datetime
import decimal
import difflib
import re
import types as python_types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Union

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from trident.coordinators.errors import FieldError, OutputTypeError, TopologyError
from trident.states.core.names import folded
from trident.workers.debezium import can_be_read

# The everyday types without parts by their names, which Spark, Arrow and Python all can group by and compare.
_SIMPLE: dict[str, type[DataType]] = {
    "string": StringType,
    "boolean": BooleanType,
    "bool": BooleanType,
    "binary": BinaryType,
    "byte": ByteType,
    "tinyint": ByteType,
    "short": ShortType,
    "smallint": ShortType,
    "int": IntegerType,
    "integer": IntegerType,
    "long": LongType,
    "bigint": LongType,
    "float": FloatType,
    "real": FloatType,
    "double": DoubleType,
    "date": DateType,
    "timestamp": TimestampType,
    "timestamp_ltz": TimestampType,
    "timestamp_ntz": TimestampNTZType,
}
INTEGRAL = (ByteType, ShortType, IntegerType, LongType)  # each fits into the next
FRACTIONAL = (FloatType, DoubleType)
PLAIN: tuple[type[DataType], ...] = (*dict.fromkeys(_SIMPLE.values()), DecimalType)

# Python's int has no bound and its float is a double: the widest types of Spark.
_PYTHON: dict[Any, DataType] = {
    str: StringType(),
    int: LongType(),
    float: DoubleType(),
    bool: BooleanType(),
    bytes: BinaryType(),
    bytearray: BinaryType(),
    datetime.date: DateType(),
    datetime.datetime: TimestampType(),
    decimal.Decimal: DecimalType(38, 18),
}

_TOKEN = re.compile(r"""\s*(?:(`(?:[^`]|``)+`)|([^\W\d]\w*)|(\d+)|([<>(),:])|('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"))""")

# Types that Spark's own grammar has and fields of streams cannot have, and what to write instead.
_INSTEAD = {
    **dict.fromkeys(("char", "character", "varchar"), "string: Spark does not hold values to a length in a stream"),
    "interval": "long, for example a number of seconds, or two timestamps",
    "time": "long, for example the seconds since midnight, or string",
    "variant": "string with JSON, or a struct",
    **dict.fromkeys(("geometry", "geography"), "binary with WKB"),
    **dict.fromkeys(("void", "null"), "the type of the values that are not null"),
}
# The same of what may stand behind a column's type.
_TYPE_SUFFIXES = {
    "not": "no NOT NULL: a field of a stream may always be null; FilterNull() drops rows in which one is",
    "null": "nothing: a field of a stream may always be null",
    "collate": "string without COLLATE; compare by a field that lower(…) makes",
    "comment": "no COMMENT: a stream does not keep it",
    "default": "no DEFAULT: give the value where the row is made, or coalesce(…)",
    "generated": "no GENERATED: make the field by with_column(…)",
}

Output = tuple[str, Union[DataType, None]]


# --- DDL text ----------------------------------------------------------------------------


class _Tokens:
    """The words of one DDL text, with a place to stand."""

    def __init__(self, text: str) -> None:
        self.text, self.items, self.at = text, [], 0
        position = 0
        while text[position:].strip():
            match = _TOKEN.match(text, position)
            if match is None:
                raise self.wrong(f"{text[position:].strip()[:20]!r}", "a name, a type or one of <>(),:")
            quoted = match.group(1)
            self.items.append(quoted or match.group().strip())
            position = match.end()

    def peek(self) -> str | None:
        return self.items[self.at] if self.at < len(self.items) else None

    def next(self, expected: str) -> str:
        token = self.peek()
        if token is None:
            raise self.wrong("the end of the text", expected)
        self.at += 1
        return token

    def take(self, symbol: str) -> bool:
        if self.peek() == symbol:
            self.at += 1
            return True
        return False

    def require(self, symbol: str) -> None:
        token = self.next(repr(symbol))
        if token != symbol:
            raise self.wrong(repr(token), repr(symbol))

    def name(self) -> str:
        token = self.next("a field name")
        if token[0] == "`":
            return token[1:-1].replace("``", "`")
        if not (token[0].isalpha() or token[0] == "_"):
            raise self.wrong(repr(token), "a field name")
        return token

    def number(self) -> int:
        token = self.next("a number")
        if not token.isdigit():
            raise self.wrong(repr(token), "a number")
        return int(token)

    def refuse(self, instead: Mapping[str, str]) -> None:
        """Raises OutputTypeError where the next word is one of these, with what to write instead."""
        word = self.peek()
        if word is not None and word.lower() in instead:
            raise self.wrong(f"{word!r}, which Spark knows and a stream does not", instead[word.lower()])

    def wrong(self, found: str, expected: str) -> OutputTypeError:
        return OutputTypeError(f"the types {self.text!r} cannot be read", found=found, expected=expected)


def parse_type(text: str) -> DataType:
    """One type, as in ``array<struct<a: int, b: decimal(10,2)>>``.

    Raises:
        OutputTypeError: the text is not a type of Spark.
    """
    tokens = _Tokens(text)
    result = _type(tokens)
    if tokens.peek() is not None:
        raise tokens.wrong(repr(tokens.peek()), "the end of the text")
    return result


def parse_outputs(outputs: Union[str, Iterable[str], StructType]) -> tuple[Output, ...]:
    """Names and, where given, types of output fields.

    Args:
        outputs: ``"word"``, ``"word string, n long"``, ``["word", "n long"]`` or a StructType.

    Raises:
        OutputTypeError: it cannot be read.
        FieldError: no field, or a name given twice (upper and lower case are one to Spark).
    """
    if isinstance(outputs, StructType):
        fields: list[Output] = [(field.name, loosened(field.dataType)) for field in outputs.fields]
    elif isinstance(outputs, str):
        fields = _fields(outputs)
    elif isinstance(outputs, collections.abc.Iterable):
        fields = []
        for item in outputs:
            if not isinstance(item, str):
                raise OutputTypeError("an output is not text", found=repr(item), expected="'name' or 'name type'")
            fields.extend(_fields(item))
    else:
        raise OutputTypeError(
            "the outputs cannot be read", found=repr(outputs), expected="text such as 'word' or 'word string, n long'"
        )
    if not fields:
        raise FieldError("no output field is named", expected="at least one, such as 'word' or 'word string, n long'")
    check_distinct([name for name, _ in fields], "the outputs")
    for name, kind in fields:
        if kind is not None:
            check_parts(kind, name)
    return tuple(fields)


def loosened(kind: DataType) -> DataType:
    """The type with nulls allowed everywhere in it, as every field of a stream has it.

    So two types that differ only in whether Spark happens to know that there are no nulls are one.
    """
    if isinstance(kind, ArrayType):
        return ArrayType(loosened(kind.elementType), True)
    if isinstance(kind, MapType):
        return MapType(loosened(kind.keyType), loosened(kind.valueType), True)
    if isinstance(kind, StructType):
        return StructType([StructField(one.name, loosened(one.dataType), True, one.metadata) for one in kind.fields])
    return kind


def nullable(schema: StructType) -> StructType:
    """The schema with nulls allowed everywhere: a function may always give None."""
    return StructType([StructField(field.name, loosened(field.dataType), True) for field in schema.fields])


def check_distinct(names: Iterable[str], where: str) -> None:
    """Raises FieldError when a name is there twice; Spark does not tell upper from lower case: see ``folded``."""
    seen: dict[str, str] = {}
    for name in names:
        other = seen.get(folded(name))
        if other is not None:
            both = repr(name) if other == name else f"{other!r} and {name!r}"
            raise FieldError(f"{where} name a field twice", found=both, expected="distinct names (Spark ignores case)")
        seen[folded(name)] = name


def check_parts(kind: DataType, where: str) -> None:
    """Raises FieldError when a struct within the type has a name twice."""
    if isinstance(kind, StructType):
        check_distinct(kind.names, where)
        for field in kind.fields:
            check_parts(field.dataType, f"{where}.{field.name}")
    elif isinstance(kind, ArrayType):
        check_parts(kind.elementType, where)
    elif isinstance(kind, MapType):
        check_parts(kind.keyType, where)
        check_parts(kind.valueType, where)


def _fields(text: str) -> list[Output]:
    tokens = _Tokens(text)
    fields: list[Output] = []
    while tokens.peek() is not None:
        name = tokens.name()
        tokens.take(":")
        typed = tokens.peek() not in (None, ",")
        fields.append((name, _type(tokens) if typed else None))
        tokens.refuse(_TYPE_SUFFIXES)
        if tokens.peek() is not None:
            tokens.require(",")
            if tokens.peek() is None:
                raise tokens.wrong("a comma at the end", "a field name")
    return fields


def _type(tokens: _Tokens) -> DataType:
    tokens.refuse(_INSTEAD)
    word = tokens.next("a type")
    name = word.lower()
    if name in _SIMPLE:
        return _SIMPLE[name]()
    if name in ("decimal", "dec", "numeric"):
        return _decimal(tokens)
    if name in ("array", "map", "struct"):
        tokens.require("<")
        result = _nested(name, tokens)
        tokens.require(">")
        return result
    known = [*_SIMPLE, "decimal", "array", "map", "struct"]
    near = difflib.get_close_matches(name, known, n=1)
    raise tokens.wrong(repr(word), f"a type, such as {near[0] if near else 'string, long, double, array<string>'}")


def _decimal(tokens: _Tokens) -> DecimalType:
    precision, scale = 10, 0
    if tokens.take("("):
        precision = tokens.number()
        if tokens.take(","):
            scale = tokens.number()
        tokens.require(")")
    if not (1 <= precision <= 38 and scale <= precision):
        raise tokens.wrong(f"decimal({precision},{scale})", "a precision of 1 to 38 and a scale not above it")
    return DecimalType(precision, scale)


def _nested(name: str, tokens: _Tokens) -> DataType:
    if name == "array":
        return ArrayType(_type(tokens), True)
    if name == "map":
        key = _type(tokens)
        tokens.require(",")
        return MapType(key, _type(tokens), True)
    fields: list[StructField] = []
    while tokens.peek() != ">":
        if fields:
            tokens.require(",")
        field = tokens.name()
        tokens.take(":")
        fields.append(StructField(field, _type(tokens), True))
        tokens.refuse(_TYPE_SUFFIXES)
    return StructType(fields)


# --- Python annotations ------------------------------------------------------------------


class _Missing:
    def __repr__(self) -> str:
        return "nothing"


MISSING: Any = _Missing()


def is_known(annotation: Any) -> bool:
    """Tells whether an annotation says anything at all."""
    return annotation is not MISSING and annotation is not Any and not isinstance(annotation, typing.TypeVar)


def without_optional(annotation: Any) -> Any:
    """``T`` for ``Optional[T]`` and ``T | None``; other annotations as they are."""
    if typing.get_origin(annotation) in (Union, getattr(python_types, "UnionType", Union)):
        rest = [part for part in typing.get_args(annotation) if part is not type(None)]
        if len(rest) == 1:
            return rest[0]
    return annotation


def from_annotation(annotation: Any) -> DataType:
    """The Spark type of a Python annotation.

    ``str``, ``int`` → bigint, ``float`` → double, ``bool``, ``bytes``, ``date``,
    ``datetime`` → timestamp, ``Decimal`` → decimal(38,18), ``list[T]``,
    ``dict[K, V]``, ``tuple[T, ...]``, ``Optional[T]``.

    Raises:
        OutputTypeError: it has no Spark type.
    """
    annotation = without_optional(annotation)
    try:
        if annotation in _PYTHON:
            return _PYTHON[annotation]
    except TypeError:  # unhashable
        pass
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (list, collections.abc.Sequence) and len(args) == 1:
        return ArrayType(from_annotation(args[0]), True)
    if origin is tuple and len(args) == 2 and args[1] is Ellipsis:
        return ArrayType(from_annotation(args[0]), True)
    if origin in (dict, collections.abc.Mapping) and len(args) == 2:
        return MapType(from_annotation(args[0]), from_annotation(args[1]), True)
    raise OutputTypeError(
        f"the annotation {annotation_name(annotation)} has no Spark type",
        expected="str, int, float, bool, bytes, date, datetime, Decimal, list[...] or dict[..., ...]",
        action="give the types with the outputs, as in 'word string, n long'",
    )


def annotation_name(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) and not typing.get_args(annotation) else str(annotation)


_MANY = (
    collections.abc.Iterator,
    collections.abc.Iterable,
    collections.abc.Generator,
    collections.abc.Sequence,
    collections.abc.Collection,
    collections.abc.Set,
    list,
    set,
    frozenset,
)


@dataclass(frozen=True)
class Returned:
    """The meaning of a function's return annotation.

    Attributes:
        many: True for an iterable of results, False for one, None when nothing is said.
        item: the annotation of one result, MISSING when nothing is said.
    """

    many: bool | None
    item: Any = MISSING

    @classmethod
    def of(cls, annotation: Any) -> "Returned":
        """Reads ``Iterator[T]``, ``Iterable[T]``, ``list[T]``, ``tuple[T, ...]`` as many T, else one."""
        annotation = without_optional(annotation)
        if not is_known(annotation):
            return cls(None)
        origin, args = typing.get_origin(annotation) or annotation, typing.get_args(annotation)
        if origin in _MANY:
            return cls(True, args[0] if args and is_known(args[0]) else MISSING)
        if origin is tuple and len(args) == 2 and args[1] is Ellipsis:
            return cls(True, args[0] if is_known(args[0]) else MISSING)
        return cls(False, annotation)


def tuple_parts(item: Any) -> tuple[Any, ...] | None:
    """The annotations of ``tuple[A, B]`` or of a NamedTuple's fields; None for anything else."""
    item = without_optional(item)
    if typing.get_origin(item) is tuple:
        args = typing.get_args(item)
        return None if len(args) == 2 and args[1] is Ellipsis else args
    if isinstance(item, type) and issubclass(item, tuple) and hasattr(item, "_fields"):
        try:
            hints = typing.get_type_hints(item)
        except Exception:  # a name that is not defined where the class is
            hints = {}
        return tuple(hints.get(name, MISSING) for name in item._fields)
    return None


def did_you_mean(name: str, names: Iterable[str]) -> str | None:
    """The question that an error about a wrong name ends with; None when nothing is near."""
    known = {one.lower(): one for one in names}
    near = difflib.get_close_matches(name.lower(), list(known), n=1, cutoff=0.5)
    return f"did you mean {known[near[0]]!r}?" if near else None


# A schema as users give it: a StructType, or DDL text that needs no JVM to be read.


def as_schema(schema: Union[str, "StructType", None], what: str) -> "StructType":
    """The schema, every field with a type.

    Raises:
        TopologyError: it is missing, or a field has no type.
    """
    if isinstance(schema, StructType) and schema.fields:
        check_parts(schema, what)
        return schema
    if schema is None or not isinstance(schema, (str, StructType)):
        raise TopologyError(
            f"{what} needs a schema",
            found=repr(schema),
            expected="a StructType, or text such as 'word string, n long'",
        )

    fields = parse_outputs(schema)
    untyped = [name for name, type in fields if type is None]
    if untyped:
        raise TopologyError(
            f"the schema of {what} has fields without a type",
            found=", ".join(untyped),
            expected="a type after each name, as in 'word string, n long'",
        )
    return StructType([StructField(name, type, True) for name, type in fields if type is not None])


def spout_schema(spout: Any) -> "StructType":
    """The fields of a spout's batches, however it says them.

    Raises:
        TopologyError: as :func:`as_schema`.
    """
    return as_schema(spout.output_schema, type(spout).__name__)


def table_schema(schema: Union[str, StructType, None], what: str) -> StructType:
    """The columns of a table whose changes Debezium writes, each of a type that a value in JSON can become.

    Raises:
        TopologyError: they are missing, or one is of another type.
    """
    if schema is None:
        raise TopologyError(f"{what} needs the columns of the table to read JSON", expected="'id long, name string'")
    row = as_schema(schema, what)
    for field in row.fields:
        if not can_be_read(field.dataType):
            raise TopologyError(
                f"{what} cannot read column {field.name}",
                found=field.dataType.simpleString(),
                expected="text, numbers, booleans, binary, dates, times; arrays, structs, maps with text as keys",
            )
    return row
