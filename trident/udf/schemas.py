"""A schema as users give it: a StructType, or DDL text that needs no JVM to be read."""

from __future__ import annotations

from typing import Any, Union

from pyspark.sql.types import StructField, StructType

from trident.coordinators.errors import TopologyError
from trident.udf.types import check_parts, parse_outputs
from trident.workers.debezium import can_be_read


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
