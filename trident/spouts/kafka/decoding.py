"""Decodes the values of messages in the tasks: text, JSON, and by a schema registry Avro, JSON Schema and Protobuf.

A value that does not parse is told apart from a registry that does not answer: the first is of the message, the
second of the moment.
"""

from __future__ import annotations

import importlib
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from functools import cached_property
from types import GenericAlias
from typing import Annotated, Any, NamedTuple, TypedDict

import pyarrow as pa
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StructType

from trident.coordinators.errors import TopologyError
from trident.coordinators.tracebacks import causes, first_line
from trident.kafka.client import Connection, kafka_module
from trident.spouts.files.tasks import SourceFailure
from trident.workers.debezium import EnvelopeReader

_BITS: Mapping[type[T.DataType], int] = {T.ByteType: 8, T.ShortType: 16, T.IntegerType: 32, T.LongType: 64}
_SIMPLE: Mapping[type[T.DataType], type] = {
    T.StringType: str,
    T.BooleanType: bool,
    T.FloatType: float,
    T.DoubleType: float,
    T.DecimalType: Decimal,
    T.BinaryType: bytes,
    T.DateType: date,
}


def python_type(kind: T.DataType) -> Any:
    """The type that msgspec takes a value for; every field may be missing or null.

    Raises:
        TopologyError: values of the type cannot be read.
    """
    import msgspec  # optional: executors of a cluster have it only for this

    if isinstance(kind, T.StructType):
        make: Any = TypedDict
        return make("Value", {field.name: _or_null(field.dataType) for field in kind.fields}, total=False)
    if isinstance(kind, T.ArrayType):
        return GenericAlias(list, (_or_null(kind.elementType),))
    if isinstance(kind, T.MapType) and isinstance(kind.keyType, T.StringType):
        return GenericAlias(dict, (str, _or_null(kind.valueType)))
    if isinstance(kind, (T.TimestampType, T.TimestampNTZType)):
        return Annotated[datetime, msgspec.Meta(tz=isinstance(kind, T.TimestampType))]
    if type(kind) in _BITS:
        bound = 1 << (_BITS[type(kind)] - 1)
        return Annotated[int, msgspec.Meta(ge=-bound, le=bound - 1)]
    if type(kind) in _SIMPLE:
        return _SIMPLE[type(kind)]
    raise TopologyError(
        "values of Kafka cannot be read as this type",
        found=kind.simpleString(),
        expected="strings, numbers, booleans, binary, dates, timestamps; arrays, structs, and maps with text as keys",
    )


def _or_null(kind: T.DataType) -> Any:
    return operator.or_(python_type(kind), None)


def lacking(kind: T.DataType) -> Callable[[Any], None] | None:
    """Raises ValueError for a value without a field that is NOT NULL; None: no field is, and all values are whole."""
    if isinstance(kind, T.ArrayType):
        return _within(kind.elementType, lambda value: value)
    if isinstance(kind, T.MapType):
        return _within(kind.valueType, lambda value: value.values())
    if not isinstance(kind, T.StructType):
        return None
    needed = [field.name for field in kind.fields if not field.nullable]
    inside = {field.name: check for field in kind.fields if (check := lacking(field.dataType)) is not None}

    def check_struct(value: Any) -> None:
        for name in needed:
            if value.get(name) is None:
                raise ValueError(f"the field {name!r} is missing or null, and is NOT NULL")
        for name, check in inside.items():
            if value.get(name) is not None:
                check(value[name])

    return check_struct if needed or inside else None


def _within(kind: T.DataType, values: Callable[[Any], Any]) -> Callable[[Any], None] | None:
    check = lacking(kind)
    if check is None:
        return None

    def check_each(value: Any) -> None:
        for one in values(value):
            if one is not None:
                check(one)

    return check_each


# Of each request, which is sent again up to three times. Its client waits for ever by default.
_REGISTRY_SECS = 10.0


class Decoded(NamedTuple):
    """Values, null where there is none and where one does not parse; and why, by position."""

    values: pa.Array
    problems: Mapping[int, str]


@dataclass(frozen=True)
class TextDecoder:
    """UTF-8."""

    def decode(self, values: Sequence[bytes | None], topics: Sequence[str]) -> Decoded:
        raw = pa.array(values, pa.binary())
        try:
            return Decoded(raw.cast(pa.string()), {})
        except pa.ArrowInvalid:
            return _one_by_one(values, lambda value: value.decode("utf-8"), pa.string())


@dataclass(frozen=True)
class JsonDecoder:
    """JSON objects with the fields of a schema, strictly: a number is no text. Other fields are left out."""

    schema: "StructType"

    @cached_property
    def _decoder(self) -> Any:
        import msgspec  # optional: executors of a cluster have it only for this

        return msgspec.json.Decoder(python_type(self.schema))

    def decode(self, values: Sequence[bytes | None], topics: Sequence[str]) -> Decoded:
        decode = self._decoder.decode  # before a value can be blamed for what is missing here
        return _structs(values, lambda value, _: decode(value), topics, self.schema)

    def __getstate__(self) -> dict[str, Any]:
        return {"schema": self.schema}


@dataclass(frozen=True)
class DebeziumDecoder:
    """Debezium's messages in JSON, as envelopes (trident.workers.debezium)."""

    reader: EnvelopeReader

    def decode(self, values: Sequence[bytes | None], topics: Sequence[str]) -> Decoded:
        return _structs(values, lambda value, _: self.reader.read(value), topics, self.reader.envelope.toNullable())


@dataclass(frozen=True)
class RegistryDecoder:
    """Values that begin with the id of a schema in a registry, as Confluent's serializers write them.

    Attributes:
        form: "avro", "json-schema" or "protobuf".
        registry: settings of the registry's client, with its secrets.
        message: of protobuf: ``module:Class`` of the generated class.
    """

    form: str
    schema: "StructType"
    registry: Connection
    message: str | None = None

    @cached_property
    def _client(self) -> Any:
        renamed = {("url" if key == "bootstrap.servers" else key): one for key, one in self.registry.config.items()}
        config = {"timeout": _REGISTRY_SECS, **renamed}
        return kafka_module("confluent_kafka.schema_registry").SchemaRegistryClient(config)

    @cached_property
    def _parse(self) -> Callable[[bytes, Any], Any]:
        """Gives the value as Python's own types."""
        modules = {"avro": "avro", "json-schema": "json_schema", "protobuf": "protobuf"}
        module = kafka_module(f"confluent_kafka.schema_registry.{modules[self.form]}")
        if self.form == "avro":
            return module.AvroDeserializer(self._client)
        if self.form == "json-schema":
            return module.JSONDeserializer(None, schema_registry_client=self._client)
        json_format = kafka_module("google.protobuf.json_format")
        assert self.message is not None
        name, _, kind = self.message.partition(":")
        parse = module.ProtobufDeserializer(
            getattr(importlib.import_module(name), kind), {"use.deprecated.format": False}, self._client
        )
        return lambda value, context: json_format.MessageToDict(
            parse(value, context), preserving_proto_field_name=True, always_print_fields_with_no_presence=True
        )

    @cached_property
    def _convert(self) -> Callable[[Any], Any]:
        import msgspec  # optional: executors of a cluster have it only for this

        kind = python_type(self.schema)
        native = (bytes, datetime, date, Decimal) if self.form == "avro" else ()
        # Protobuf's JSON has 64-bit numbers as text.
        strict = self.form != "protobuf"
        return lambda value: msgspec.convert(value, kind, strict=strict, builtin_types=native)

    def decode(self, values: Sequence[bytes | None], topics: Sequence[str]) -> Decoded:
        serialization = kafka_module("confluent_kafka.serialization")
        of_value = serialization.MessageField.VALUE
        # Before a value can be blamed for what is missing here.
        read, convert = self._parse, self._convert

        def parse(value: bytes, topic: str) -> Any:
            self._know(value)
            try:
                found = read(value, serialization.SerializationContext(topic, of_value))
            except Exception as error:  # of three parsers, which may ask the registry for more
                if any(_is_of_registry(cause) for cause in causes(error)):
                    raise self._away(error) from None
                raise
            return convert(found)

        return _structs(values, parse, topics, self.schema)

    def _know(self, value: bytes) -> None:
        """Asks the registry for the schema of a value, once for each id.

        Raises:
            ValueError: there is no such schema, or the value names none.
            SourceFailure: the registry does not answer.
        """
        if len(value) < 5 or value[0] != 0:
            raise ValueError("it does not begin with the id of a schema (the magic byte 0, and four bytes)")
        number = int.from_bytes(value[1:5], "big")
        if number in _known(self):
            return
        try:
            self._client.get_schema(number)
        except Exception as error:  # of the registry's client, and of its HTTP client
            if getattr(error, "http_status_code", None) == 404:
                raise ValueError(f"the registry has no schema {number}") from None
            raise self._away(error) from None
        _known(self).add(number)

    def _away(self, error: Exception) -> SourceFailure:
        return SourceFailure(
            "the schema registry gives no schema",
            found=self.registry.clean(f"{type(error).__name__}: {first_line(error)}"),
            expected=f"a registry that answers at {self.registry.config['bootstrap.servers']}",
            action="the batch is tried again up to max_attempts",
        )

    def __getstate__(self) -> dict[str, Any]:
        return {"form": self.form, "schema": self.schema, "registry": self.registry, "message": self.message}


Decoder = TextDecoder | JsonDecoder | DebeziumDecoder | RegistryDecoder


def _known(decoder: RegistryDecoder) -> set[int]:
    found: set[int] = decoder.__dict__.setdefault("_ids", set())
    return found


def _is_of_registry(error: BaseException) -> bool:
    """Tells whether an error comes from a request to the registry, and not from the bytes of a value."""
    module = type(error).__module__.partition(".")[0]
    return isinstance(error, OSError) or module.startswith("http") or type(error).__name__ == "SchemaRegistryError"


def _structs(
    values: Sequence[bytes | None],
    parse: Callable[[bytes, str], Any],
    topics: Sequence[str],
    schema: "StructType",
) -> Decoded:
    problems: dict[int, str] = {}
    found: list[Any] = []
    required = lacking(schema)
    for number, value in enumerate(values):
        one = None
        if value is not None:
            try:
                one = parse(value, topics[number])
                if one is None:
                    raise ValueError("it is null, which a tombstone is not")
                if required is not None:
                    required(one)
            except SourceFailure:
                raise
            except Exception as error:  # of four parsers
                one, problems[number] = None, f"{type(error).__name__}: {first_line(error)}"[:1_000]
        found.append(one)
    kind = to_arrow_type(schema, timezone="UTC")
    try:
        return Decoded(pa.array(found, kind), problems)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        later = _one_by_one(found, lambda value: value, kind)
        return Decoded(later.values, {**later.problems, **problems})


def _one_by_one(values: Sequence[Any], convert: Callable[[Any], Any], kind: pa.DataType) -> Decoded:
    """Values of which one at least does not fit."""
    problems: dict[int, str] = {}
    found: list[Any] = []
    for number, value in enumerate(values):
        try:
            one = None if value is None else convert(value)
            pa.array([one], kind)
        except Exception as error:  # Arrow's, and of the conversion
            one, problems[number] = None, f"{type(error).__name__}: {first_line(error)}"[:1_000]
        found.append(one)
    return Decoded(pa.array(found, kind), problems)
