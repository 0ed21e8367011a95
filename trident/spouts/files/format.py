"""The format of a FileSpout's rows: Spark's options for it, and the names of files that Spark can read."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import unquote

from pyspark.sql.types import StructType

from trident.coordinators.errors import SourceError, TopologyError
from trident.spouts.files.tasks import BOM, BROKEN, opened, opened_file, shown
from trident.udf.types import did_you_mean

# The header line of a CSV file: where the rows begin behind it, and which columns they have.
#
# Spark's reader looks at names only with ``enforceSchema=False``, and goes by position otherwise. Here a
# file whose header has the schema's names in another order is read by name; one with other names is refused.


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
        with opened_file(path) as file, opened(file, path) as content:
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
        "names in headers are not checked, and columns are taken by position",
    )


FORMATS = ("text", "csv", "json", "parquet")
MODES = ("FAILFAST", "PERMISSIVE", "DROPMALFORMED")
_GLOB = re.compile(r"([{}\[\]*?\\])")


def is_name_for_spark(path: str) -> bool:
    """Hadoop's file system cannot open a name with a colon, nor one that is not UTF-8."""
    below = path.split("/", 3)[-1] if "://" in path else path
    return ":" not in below and shown(path) == path


def escape(path: str) -> str:
    """A path as Spark must be given it, so that it is not taken for a glob."""
    return _GLOB.sub(r"\\\1", path)


def path_of(file: str) -> str:
    """The path of a file as Spark names it, which is a URI, or as tasks of ours do."""
    return unquote(file[len("file:") :].removeprefix("//")) if file.startswith("file:") else file


@dataclass(frozen=True)
class RowFormat:
    """How lines become rows.

    Attributes:
        options: Spark's options for the format; those that Spark is given, by its names.

    Raises:
        TopologyError: an option cannot be used.
    """

    name: str
    schema: "StructType"
    options: Mapping[str, str]

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", checked(self.name, self.options))
        if self.mode not in MODES:
            raise TopologyError("the mode for malformed rows is unknown", found=self.mode, expected=" or ".join(MODES))

    def option(self, name: str, default: str = "") -> str:
        """The value of an option, by its name as Spark writes it."""
        return self.options.get(name, default)

    @property
    def mode(self) -> str:
        return self.option("mode", "FAILFAST").upper()

    @property
    def charset(self) -> str:
        return self.option("encoding", "UTF-8")

    @property
    def header(self) -> bool:
        return self.name == "csv" and self.option("header", "false").lower() == "true"

    @property
    def columns(self) -> list[str]:
        """The names of the columns that files have: all but the one for malformed rows."""
        corrupt = self.option("columnNameOfCorruptRecord", "_corrupt_record")
        return [name for name in self.schema.names if name != corrupt]

    @property
    def names_files(self) -> bool:
        """Tells whether lines travel with their file's name, for the error about a malformed one."""
        return self.name in ("csv", "json") and self.mode == "FAILFAST"


# Each line or file is read as Spark's own reader does with these.
_PARSED = (
    "columnNameOfCorruptRecord dateFormat enableDateTimeParsingFallback locale mode timeFormat timeZone "
    "timestampFormat timestampNTZFormat"
)
_SUPPORTED = {
    "text": "mode",
    "csv": f"{_PARSED} charToEscapeQuoteEscaping comment delimiter emptyValue enforceSchema escape header "
    "ignoreLeadingWhiteSpace ignoreTrailingWhiteSpace inputBufferSize maxCharsPerColumn maxColumns nanValue "
    "negativeInf nullValue positiveInf quote sep unescapedQuoteHandling",
    "json": f"{_PARSED} allowBackslashEscapingAnyCharacter allowComments allowNonNumericNumbers "
    "allowNumericLeadingZeros allowSingleQuotes allowUnquotedControlChars allowUnquotedFieldNames maxNestingDepth "
    "maxNumLen maxStringLen",
    "parquet": "datetimeRebaseMode int96RebaseMode",
}
_INFERS, _WRITES, _WALKS, _LOSES = (
    "a schema is given",
    "it is for writing",
    "give the path as a glob",
    "rows would be lost",
)
_STREAMS = "it belongs to readStream"
_LINES = ("text", "csv", "json")
# Of no format: (option, why not, the values that say what is done anyway).
_REFUSED: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("multiLine", "a row must be a line", ("false",)),
    ("wholetext", "a row is a line", ("false",)),
    ("lineSep", "rows end with a newline", ("\n",)),
    ("columnPruning", "each row is parsed as a whole", ("false",)),
    ("singleVariantColumn", "name the columns in the schema", ()),
    ("inferSchema", _INFERS, ("false",)),
    ("samplingRatio", _INFERS, ()),
    ("preferDate", _INFERS, ()),
    ("prefersDecimal", _INFERS, ("false",)),
    ("primitivesAsString", _INFERS, ("false",)),
    ("inferTimestamp", _INFERS, ("false",)),
    ("dropFieldIfAllNull", _INFERS, ("false",)),
    ("mergeSchema", _INFERS, ("false",)),
    ("avroSchema", _INFERS, ()),
    ("compression", "how a file is packed says the end of its name", ()),
    ("codec", "how a file is packed says the end of its name", ()),
    ("parquet.compression", _WRITES, ()),
    ("orc.compress", _WRITES, ()),
    ("quoteAll", _WRITES, ()),
    ("escapeQuotes", _WRITES, ()),
    ("extension", _WRITES, ()),
    ("ignoreNullFields", _WRITES, ()),
    ("pretty", _WRITES, ()),
    ("sortKeys", _WRITES, ()),
    ("writeNonAsciiCharacterAsCodePoint", _WRITES, ()),
    ("useUnsafeRow", "it is Spark's own", ()),
    ("pathGlobFilter", _WALKS, ()),
    ("recursiveFileLookup", "give the path as a glob with **", ("false",)),
    ("basePath", "names of folders become no columns", ()),
    ("ignoreInvalidPartitionPaths", "names of folders become no columns", ()),
    ("ignoreCorruptFiles", _LOSES, ("false",)),
    ("ignoreMissingFiles", _LOSES, ("false",)),
    ("modifiedBefore", _LOSES, ()),
    ("modifiedAfter", _LOSES, ()),
    ("maxFilesPerTrigger", f"{_STREAMS}; use max_rows", ()),
    ("maxBytesPerTrigger", f"{_STREAMS}; use max_bytes", ()),
    ("latestFirst", f"{_STREAMS}; files come in the order in which they were discovered", ("false",)),
    ("maxFileAge", f"{_STREAMS}; files of any age are read", ()),
    ("cleanSource", f"{_STREAMS}; DirectoryQueueSpout takes files away", ("off",)),
)
# (name as written in Spark) → the names that mean the same to us.
CHARSETS = {"utf-8": "UTF-8", "utf8": "UTF-8", "iso-8859-1": "ISO-8859-1"}


def checked(format: str, options: Mapping[str, Any]) -> dict[str, str]:
    """The options that are Spark's affair, by their names as Spark writes them.

    Raises:
        TopologyError: one is not supported for the format, is unknown, or is there twice.
    """
    supported = {name.lower(): name for name in _SUPPORTED[format].split()}
    refused = {name.lower(): (why, same) for name, why, same in _REFUSED}
    taken: dict[str, str] = {}
    for given, value in options.items():
        name, text = given.lower(), _text(value)
        if name in ("encoding", "charset") and format in _LINES:
            name, text = "encoding", _charset(given, text)
        elif name in supported:
            name = supported[name]
        elif name in refused:
            why, same = refused[name]
            if text.lower() in same:
                continue
            raise _refusal(format, given, value, f"none: {why}")
        else:
            known = [*_SUPPORTED[format].split(), *(["encoding"] if format in _LINES else [])]
            raise _refusal(format, given, value, f"one of {', '.join(known)}", did_you_mean(given, known))
        if name in taken:
            raise _refusal(format, given, value, f"one value of {name}")
        taken[name] = text
    return taken


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _charset(given: str, text: str) -> str:
    if text.lower() not in CHARSETS:
        raise TopologyError(
            f"FileSpout cannot use the option {given}",
            found=repr(text),
            expected=" or ".join(dict.fromkeys(CHARSETS.values())),
            action="write the files as UTF-8",
        )
    return CHARSETS[text.lower()]


def _refusal(format: str, given: str, value: Any, expected: str, hint: str | None = None) -> TopologyError:
    return TopologyError(
        f"FileSpout cannot use the option {given} for {format}", found=repr(value), expected=expected, action=hint
    )
