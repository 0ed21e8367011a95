"""A line is one JSON object and nothing else.

Spark's ``from_json``, its reader and its functions for variants all parse the first value of a text and never look
further: of ``{"id": 1}{"id": 2}`` they give 1. Here the text stands in an array, before an element of ours:
``{"rows": [TEXT, {"end": true}]}``. A text that is one object makes that an array of two elements; a second
object makes it longer, a bracket that closes too early loses our element, and anything else is no JSON.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BooleanType, StringType, StructField, StructType

# No text can have these names, and so neither the array nor its last element: each process draws them.
_TOKEN = secrets.token_hex(8)
_CORRUPT, _END, _ROWS = f"corrupt_{_TOKEN}", f"end_{_TOKEN}", f"rows_{_TOKEN}"


class JsonLines:
    """Reads a column of texts, by options of Spark's JSON but for ``mode``.

    Args:
        text: the column's name.
        schema: of an object; without a column for malformed texts.

    Attributes:
        parsed: what the methods are given, for one text.
    """

    def __init__(self, text: str, schema: StructType, options: Mapping[str, str]) -> None:
        own = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
        chosen = {key: value for key, value in options.items() if key.lower() not in {one.lower() for one in own}} | own
        self._element = StructType([*schema.fields, StructField(_END, BooleanType())])
        corrupt = StructField(_CORRUPT, StringType())
        # The newline ends a comment, where options allow one.
        wrapped = F.concat(F.lit(f'{{"{_ROWS}":['), text, F.lit(f'\n,{{"{_END}":true}}]}}'))
        rows = StructField(_ROWS, ArrayType(self._element))
        self.parsed = F.from_json(wrapped, StructType([rows, corrupt]), chosen)
        self._first = F.from_json(text, StructType([*self._element.fields, corrupt]), chosen)

    def good(self, parsed: Column) -> Column:
        """Tells whether the text is one object of the schema."""
        rows = parsed[_ROWS]
        whole = (F.size(rows) == 2) & rows[1][_END]
        return F.coalesce(parsed[_CORRUPT].isNull() & whole & rows[0].isNotNull(), F.lit(False))

    def row(self, parsed: Column) -> Column:
        """The object, where it is good."""
        return parsed[_ROWS][0]

    def kept(self, parsed: Column) -> Column:
        """The object, and of a malformed text what Spark's reader keeps of it; null of one that text follows."""
        first = self._first
        fields = F.struct(*(first[field.name].alias(field.name) for field in self._element))
        return F.when(self.good(parsed), self.row(parsed)).when(first[_CORRUPT].isNotNull(), fields)
