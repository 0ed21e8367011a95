"""The outputs of ``map`` and ``flat_map`` that are not named: the fields of the input, as in Storm."""

from __future__ import annotations

from typing import Any

from pyspark.sql.types import StructType

from trident.udf.signatures import call_site, describe
from trident.udf.types import Output, Returned, is_known, tuple_parts, without_optional


def kept_fields(kind: str, function: Any, schema: StructType) -> tuple[Output, ...]:
    """The input's names; a type is the annotation's where that says one for each field, else the input's.

    Args:
        kind: "map" or "flat_map".
    """
    whole = without_optional(describe(function, kind, call_site()).returned)
    item = whole if kind == "map" else Returned.of(whole).item
    parts = tuple_parts(item) if is_known(item) else None
    if parts is None and len(schema.fields) == 1:
        parts = (item,)
    if parts is None or len(parts) != len(schema.fields):
        return tuple((field.name, field.dataType) for field in schema.fields)
    return tuple((field.name, None if is_known(part) else field.dataType) for field, part in zip(schema.fields, parts))
