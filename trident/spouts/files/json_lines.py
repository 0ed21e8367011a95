"""A line is one JSON object and nothing else.

Spark's ``from_json``, its reader and its functions for variants all parse the first value of a text and never look
further: of ``{"id": 1}{"id": 2}`` they give 1. Here the text stands in an array, before an element of ours:
``{"rows": [TEXT, {"end": true}]}``. A text that is one object makes that an array of two elements; a second
object makes it longer, a bracket that closes too early loses our element, and anything else is no JSON.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import NamedTuple

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BooleanType, StringType, StructField, StructType

# No text can have these names, and so neither the array nor its last element: each process draws them.
_TOKEN = secrets.token_hex(8)
_CORRUPT, _END, _ROWS = f"corrupt_{_TOKEN}", f"end_{_TOKEN}", f"rows_{_TOKEN}"


class ParsedLines(NamedTuple):
    """Expressions of Spark.

    Attributes:
        parsed: what a projection has to name ``parsed``: the others read it.
        good: whether the text is one object of the schema.
        row: the object, where it is good.
        kept: the same, and of a malformed text what Spark's reader keeps of it; null of one that text follows.
    """

    parsed: Column
    good: Column
    row: Column
    kept: Column


def parse_json_lines(text: str, schema: StructType, options: Mapping[str, str]) -> ParsedLines:
    """Reads a column of texts, by options of Spark's JSON but for ``mode``.

    Args:
        text: the column's name.
        schema: of an object; without a column for malformed texts.
    """
    own = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    chosen = {key: value for key, value in options.items() if key.lower() not in {one.lower() for one in own}} | own
    element = StructType([*schema.fields, StructField(_END, BooleanType())])
    corrupt = StructField(_CORRUPT, StringType())
    # The newline ends a comment, where options allow one.
    wrapped = F.concat(F.lit(f'{{"{_ROWS}":['), text, F.lit(f'\n,{{"{_END}":true}}]}}'))
    found = F.from_json(wrapped, StructType([StructField(_ROWS, ArrayType(element)), corrupt]), chosen)
    # An expression of which Spark does not know that it is deterministic: it would filter before the projection else,
    # and parse each text twice.
    found = F.when(F.spark_partition_id() >= 0, found)
    whole = F.expr(f"size(parsed.{_ROWS}) = 2 AND parsed.{_ROWS}[1].{_END}")
    row = F.expr(f"parsed.{_ROWS}[0]")
    first = F.from_json(text, StructType([*element.fields, corrupt]), chosen)
    good = F.coalesce(F.expr(f"parsed.{_CORRUPT} IS NULL") & whole & row.isNotNull(), F.lit(False))
    kept = F.when(good, row).when(first[_CORRUPT].isNotNull(), _without_corrupt(first, element))
    return ParsedLines(found, good, row, kept)


def _without_corrupt(row: Column, kind: StructType) -> Column:
    return F.struct(*(row.getField(field.name).alias(field.name) for field in kind.fields))
