"""The format of a FileSpout's rows: Spark's options for it, and the names of files that Spark can read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from pyspark.sql.types import StructType

from trident.coordinators.errors import TopologyError
from trident.spouts.files.tasks import shown
from trident.udf.types import did_you_mean

FORMATS = ("text", "csv", "json", "parquet")
MODES = ("FAILFAST", "PERMISSIVE", "DROPMALFORMED")
_GLOB = re.compile(r"([{}\[\]*?\\])")


def is_name_for_spark(path: str) -> bool:
    """Hadoop's file system cannot open a name with a colon, nor one that is not UTF-8."""
    return ":" not in path and shown(path) == path


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
