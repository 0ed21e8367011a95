"""Lines as rows, in expressions of Spark: decoded, one carriage return at the end cut off, CSV and JSON parsed."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BooleanType, StringType, StructField, StructType

from trident.spouts.files.format import RowFormat
from trident.spouts.files.header import separator
from trident.states.core.names import backquoted
from trident.workers.reports import MARK, SOURCE

# No text can have these names, and so neither the array nor its last element: each process draws them.
_TOKEN = secrets.token_hex(8)
_NO_OBJECT, _END, _ROWS = f"corrupt_{_TOKEN}", f"end_{_TOKEN}", f"rows_{_TOKEN}"


class JsonLines:
    """Reads a column of texts, by options of Spark's JSON but for ``mode``: each is one object and nothing else.

    Spark's ``from_json``, its reader and its functions for variants all parse the first value of a text and never look
    further: of ``{"id": 1}{"id": 2}`` they give 1. Here the text stands in an array, before an element of ours:
    ``{"rows": [TEXT, {"end": true}]}``. A text that is one object makes that an array of two elements; a second
    object makes it longer, a bracket that closes too early loses our element, and anything else is no JSON.

    Args:
        text: the column's name.
        schema: of an object; without a column for malformed texts.

    Attributes:
        parsed: what the methods are given, for one text.
    """

    def __init__(self, text: str, schema: StructType, options: Mapping[str, str]) -> None:
        own = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _NO_OBJECT}
        chosen = {key: value for key, value in options.items() if key.lower() not in {one.lower() for one in own}} | own
        self._element = StructType([*schema.fields, StructField(_END, BooleanType())])
        corrupt = StructField(_NO_OBJECT, StringType())
        # The newline ends a comment, where options allow one.
        wrapped = F.concat(F.lit(f'{{"{_ROWS}":['), text, F.lit(f'\n,{{"{_END}":true}}]}}'))
        rows = StructField(_ROWS, ArrayType(self._element))
        self.parsed = F.from_json(wrapped, StructType([rows, corrupt]), chosen)
        self._first = F.from_json(text, StructType([*self._element.fields, corrupt]), chosen)

    def good(self, parsed: Column) -> Column:
        """Tells whether the text is one object of the schema."""
        rows = parsed[_ROWS]
        whole = (F.size(rows) == 2) & rows[1][_END]
        return F.coalesce(parsed[_NO_OBJECT].isNull() & whole & rows[0].isNotNull(), F.lit(False))

    def row(self, parsed: Column) -> Column:
        """The object, where it is good."""
        return parsed[_ROWS][0]

    def kept(self, parsed: Column) -> Column:
        """The object, and of a malformed text what Spark's reader keeps of it; null of one that text follows."""
        first = self._first
        fields = F.struct(*(first[field.name].alias(field.name) for field in self._element))
        return F.when(self.good(parsed), self.row(parsed)).when(first[_NO_OBJECT].isNotNull(), fields)


_CORRUPT = "_trident_corrupt"
_LINE = "CASE WHEN endswith(text, char(13)) THEN substring(text, 1, length(text) - 1) ELSE text END"
_BLANKS = "".join(map(chr, range(33)))  # a line of these alone is blank to Spark's own readers


class Parsing:
    """How lines of a format become rows. Its expressions are made once: each takes a call to the JVM.

    A line is parsed and checked within one generator, which gives a row or none. Spark evaluates a generator once for
    each line, and always. A filter it would copy below, with all that computes its columns; a column that is not read
    it would leave out.

    Args:
        order: the fields in the order that the files have them; None: it is the schema's.
    """

    def __init__(self, format: RowFormat, order: tuple[str, ...] | None) -> None:
        self._format = format
        self._file = ["file"] if format.names_files else []
        text = format.name == "text"
        if format.charset != "UTF-8":
            decoded = f"decode(CAST(value AS BINARY), '{format.charset}')"
        else:
            decoded = "value" if format.mode == "FAILFAST" else "make_valid_utf8(value)"
        self._decoded = [f"{decoded} AS text", *self._file]
        self._line = [f"{_LINE} AS {backquoted(format.schema.names[0] if text else 'value')}", *self._file]
        if text:
            return
        # Nearly every line begins with what is not blank.
        kept = (F.ascii("value") > len(_BLANKS)) | (F.length(F.trim("value", F.lit(_BLANKS))) > 0)
        comment = format.option("comment")
        if comment:
            kept = kept & ~F.startswith("value", F.lit(comment))
        rows = self._json() if format.name == "json" else self._csv(order)
        self._rows = F.inline(F.when(kept, rows))

    def rows(self, lines: "DataFrame") -> "DataFrame":
        """The rows of lines: ``value``, and ``file`` where the format names files."""
        format = self._format
        if format.charset == "UTF-8" and format.mode == "DROPMALFORMED":
            lines = lines.where("is_valid_utf8(value)")
        lines = lines.selectExpr(*self._decoded).selectExpr(*self._line)
        return lines if format.name == "text" else lines.select(self._rows).select(self._fields)

    def _json(self) -> "Column":
        format = self._format
        corrupt = format.option("columnNameOfCorruptRecord") or "_corrupt_record"
        data = StructType([field for field in format.schema if field.name != corrupt])
        read = JsonLines("value", data, {key: value for key, value in format.options.items() if key != "encoding"})
        given, is_kept = F.array(read.parsed), format.mode == "PERMISSIVE"
        row, values = F.col("row"), {}
        for field in format.schema:
            values[field.name] = row.getField(field.name) if field.name != corrupt else F.col("malformed")
        self._fields = [values[field.name].alias(field.name) for field in format.schema]

        def named(parsed: "Column") -> "Column":
            malformed = F.when(~read.good(parsed), F.col("value")) if is_kept else F.lit(None).cast("string")
            chosen = read.kept(parsed) if is_kept else read.row(parsed)
            return F.struct(chosen.alias("row"), malformed.alias("malformed"))

        return F.transform(self._checked(given, read.good), named)

    def _csv(self, order: tuple[str, ...] | None) -> "Column":
        format = self._format
        options = {k: v for k, v in format.options.items() if k not in ("mode", "header", "enforceSchema", "encoding")}
        options["mode"] = "PERMISSIVE"
        schema = format.schema
        if order is not None:
            extra = [field for field in schema if field.name not in order]
            schema = StructType([*(schema[name] for name in order), *extra])
        if format.mode != "PERMISSIVE":
            # A row that cannot be parsed is found by this field, so that the error can name its file.
            options["columnNameOfCorruptRecord"] = _CORRUPT
            schema = StructType([*schema.fields, StructField(_CORRUPT, StringType())])
        self._fields = [F.col(backquoted(field.name)) for field in format.schema]
        given = F.array(F.from_csv("value", schema.toDDL(), options))
        return self._checked(given, lambda row: row.isNotNull() & row[_CORRUPT].isNull())

    def _checked(self, parsed: "Column", good: "Callable[[Column], Column]") -> "Column":
        """The array of what was parsed of one line, without what is malformed, or failing at it, by the mode."""
        format = self._format
        if format.mode == "PERMISSIVE":
            return parsed
        if format.mode == "DROPMALFORMED":
            return F.filter(parsed, good)
        what = f"a row of {format.name} cannot be parsed"
        expected = f"a row of {format.schema.simpleString()}"[:500]
        action = "correct the file's producer, skip the batch, or set option mode='PERMISSIVE' or 'DROPMALFORMED'"
        malformed = refused(what, expected, action, format.charset)
        is_open = _is_open(format)
        if is_open is None:
            return F.transform(parsed, lambda one: F.when(~good(one), malformed).otherwise(one))
        refusal = refused(
            "a quoted value of csv is not closed on its line",
            "each row on one line: a newline inside of quotes is not supported",
            "have the file's producer write values without newlines, or set option mode='PERMISSIVE', with which "
            "each line is a row whatever quotes it has",
            format.charset,
        )
        return F.transform(parsed, lambda one: F.when(is_open, refusal).when(~good(one), malformed).otherwise(one))


def _is_open(format: RowFormat) -> "Column | None":
    """Tells whether a line ends inside of a quoted value; None: no line does."""
    quote, escape = format.option("quote", '"'), format.option("escape", "\\")
    if format.name != "csv" or not quote or quote == "\0" or format.option("unescapedQuoteHandling"):
        return None
    sep = re.escape(separator(format))
    begins = f"(^|{sep})" + ("[ \\t]*" if format.option("ignoreLeadingWhiteSpace") == "true" else "")
    quoted = re.escape(quote)
    # Without the quotes that are part of a value, and then without the values that are closed.
    inner: Any = F.col("value")
    for pair in ([escape * 2, escape + quote] if escape not in ("", "\0", quote) else []) + [quote * 2]:
        inner = F.replace(inner, F.lit(pair), F.lit(""))
    opened = F.regexp_replace(inner, f"{begins}{quoted}[^{quoted}]*{quoted}", "")
    return F.contains(F.col("value"), F.lit(quote)) & F.rlike(opened, F.lit(f"{begins}{quoted}"))


def refused(what: str, expected: str, action: str, charset: str = "UTF-8") -> "Column":
    """An expression that fails with a report of the line ``value`` of ``file``; ``line_numbers`` finds which it is.

    Args:
        charset: of the file's bytes.
    """
    report = F.to_json(
        F.struct(
            F.lit(SOURCE).alias("kind"),
            F.lit(True).alias("repeats"),
            F.concat(F.lit(f"{what}, in "), "file").alias("message"),
            F.substring(F.expr("make_valid_utf8(value)"), 1, 200).alias("found"),
            F.lit(expected).alias("expected"),
            F.lit(action).alias("action"),
            F.col("file"),
            F.sha2("value", 256).alias("digest"),
            F.lit(charset).alias("charset"),
        )
    )
    return F.raise_error(F.concat(F.lit(f"<<{MARK}:"), F.base64(F.encode(report, "UTF-8")), F.lit(">>")))
