"""The header line of a CSV file: where the rows begin behind it, and which columns they have.

Spark's reader looks at names only with ``enforceSchema=False``, and goes by position otherwise. Here a
file whose header has the schema's names in another order is read by name; one with other names is refused.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from trident.coordinators.errors import SourceError
from trident.spouts.files.tasks import BOM, BROKEN, opened, shown

if TYPE_CHECKING:
    from trident.spouts.files.format import RowFormat

# A header that is longer is none: a quote in it is never closed.
_LONGEST = 1 << 20
_ESCAPED = {"\\t": "\t", "\\\\": "\\", "\\r": "\r", "\\b": "\b", "\\f": "\f", '\\"': '"', "\\'": "'", "\\u0000": "\0"}
_SPACES = bytes(range(33))  # what Java trims


class Header(NamedTuple):
    """The part of a file before its rows.

    Attributes:
        size: bytes of the file's content before the first row.
        order: the schema's fields in the order that this file has them; None: it is the schema's.
    """

    size: int
    order: tuple[str, ...] | None = None


def read_header(path: str, format: "RowFormat") -> Header:
    """Reads a file up to its first row, and compares the header with the schema.

    Raises:
        SourceError: the header has other columns, or the file cannot be read.
    """
    try:
        with open(path, "rb") as file, opened(file, path) as content:
            size, line = _first_line(content, path, format)
    except BROKEN as error:
        raise SourceError(
            f"the input file {shown(path)} cannot be read",
            found=str(error),
            action="restore it or its permissions; the batch is tried again up to max_attempts",
        ) from error
    return Header(size, None if line is None else _order(path, names_in(line, format), format))


def _first_line(content: Iterable[bytes], path: str, format: "RowFormat") -> tuple[int, str | None]:
    """The bytes up to the end of the header, and its text; None: there is none."""
    size, header = 0, b""
    comment = format.option("comment").encode()
    for line in content:
        start, size = size, size + len(line)
        text = line.removeprefix(BOM) if start == 0 else line
        if not header and (not text.strip(_SPACES) or (comment and text.startswith(comment))):
            continue
        header += text
        if not _is_open(header.decode(format.charset, "replace"), format):
            return size, header.decode(format.charset, "replace").rstrip("\r\n")
        if len(header) > _LONGEST:
            break
    if header:
        raise SourceError(
            f"the header of {shown(path)} cannot be read: a quote in it is not closed",
            found=header[:200].decode(format.charset, "replace"),
            expected=f"a line with the names {', '.join(format.columns)}",
            action="correct the file, or take it out of the folder",
        )
    return size, None


def _is_open(text: str, format: "RowFormat") -> bool:
    """Tells whether a line ends inside of a quoted value."""
    quote, escape = format.option("quote", '"'), format.option("escape", "\\")
    if not quote or quote == "\0":
        return False
    if escape and escape not in (quote, "\0"):
        text = text.replace(escape * 2, "").replace(escape + quote, "")
    return text.count(quote) % 2 == 1


def separator(format: "RowFormat") -> str:
    """The text between two values."""
    sep = format.option("sep", format.option("delimiter", ","))
    return _ESCAPED.get(sep, sep)


def names_in(line: str, format: "RowFormat") -> list[str]:
    """The names in a header, by the format's separator and quotes."""
    sep = separator(format)
    if len(sep) != 1:
        line, sep = line.replace(sep, "\x1f"), "\x1f"
    quote, escape = format.option("quote", '"'), format.option("escape", "\\")
    quoted = len(quote) == 1 and quote != "\0"
    reader = csv.reader(
        [line],
        delimiter=sep,
        quotechar=quote if quoted else None,
        quoting=csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE,
        escapechar=escape if quoted and len(escape) == 1 and escape not in (quote, "\0") else None,
    )
    return next(reader, [])


def _order(path: str, found: list[str], format: "RowFormat") -> tuple[str, ...] | None:
    by_position = format.option("enforceSchema")
    if by_position == "true":
        return None
    wanted = format.columns
    # As in Spark, names that differ in case are one name, unless the schema has both.
    exact = len({name.lower() for name in wanted}) < len(wanted)
    strict = by_position == "false"
    keys = [name if strict else name.strip() for name in found]
    keys = keys if exact else [name.lower() for name in keys]
    named = {name if exact else name.lower(): name for name in wanted}
    if keys == list(named):
        return None
    if not strict and sorted(keys) == sorted(named):
        return tuple(named[key] for key in keys)
    raise SourceError(
        f"the header of {shown(path)} has other columns than the schema",
        found=", ".join(map(repr, found))[:500],
        expected=", ".join(map(repr, wanted))[:500] + (" in this order (enforceSchema=False)" if strict else ""),
        action="correct the file or the schema, or take the file out of the folder; with the option enforceSchema=True "
        "names in headers are not looked at, and columns are taken by position",
    )
