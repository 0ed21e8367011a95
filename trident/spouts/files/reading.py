"""Turns ranges of files into rows, the same rows each time (docs/semantics.md 3).

Whole files are read by Spark itself. Parts of files, and more files than Spark
lists quickly, are read by Python in the tasks (`tasks.py`). Both give lines as bytes, and everything after
that is one native expression (`reading.py`). Which way was taken therefore never shows in the rows.
"""

from __future__ import annotations

import functools
import hashlib
import pickle
import re
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BinaryType, BooleanType, StringType, StructField, StructType

from trident.coordinators.errors import SourceError
from trident.coordinators.threads import DaemonPool
from trident.coordinators.tracebacks import causes, search_causes
from trident.spark.rows import FilesSlot, RowsSlot, TaskSlot
from trident.spouts.contracts import Emitted
from trident.spouts.files.format import Header, RowFormat, escape, is_name_for_spark, path_of, read_header, separator
from trident.spouts.files.ledger import FileRange
from trident.spouts.files.parquet import is_exact, read_parquet
from trident.spouts.files.tasks import (
    BOM,
    BROKEN,
    UNPACKED_HERE,
    LineRows,
    Piece,
    is_packed,
    is_packed_for_spark,
    is_stored,
    opened,
    opened_file,
    read_lines,
    reported,
    shown,
    spark_unpacks,
    why_not_unpacked,
)
from trident.spouts.tasks import TaskRows, counted_by_row
from trident.states.core import storage
from trident.states.core.names import backquoted
from trident.states.core.place import Place, reached_stores
from trident.workers.failures import MARK, SOURCE, find_report

# Lines as rows, in expressions of Spark: decoded, one carriage return at the end cut off, CSV and JSON parsed.


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


# From 33 paths on Spark lists files with a job that has one task per path:
# 200 paths took 550 ms to list and 30 took 29 ms; Python opens 200 in 5 ms.
NATIVE_FILES_MAX = 30
# One Spark partition per this many bytes: a batch below that runs fastest in one.
PARTITION_BYTES = 8 << 20
_COUNTING = DaemonPool(1, "trident-count-rows")
_COUNT_SECS = 10.0


def check_readable(path: str, format: RowFormat) -> None:
    """For when a file is discovered: one that nothing here can read is named before it is part of a batch.

    Raises:
        SourceError: its name, its packing or its header line cannot be read, or has other columns.
    """
    if format.name == "parquet":
        bad = not is_name_for_spark(path) and not (shown(path) == path and is_exact(path, format))
        found, expected = "its name", "a name in UTF-8 without a colon"
    else:
        why_not = why_not_unpacked(path)
        by_python = format.header or is_stored(path) or not is_name_for_spark(path)
        bad = why_not is not None or (by_python and is_packed_for_spark(path))
        found = why_not or "its name, or its packing with a header line or in a store"
        expected = f"a file that is not packed, or {' or '.join(UNPACKED_HERE)}"
        expected += (
            "; .deflate, .lz4 and .snappy of Hadoop not in a store, not with a header line, and with a name in UTF-8 "
            "without a colon alone"
        )
    if bad:
        raise SourceError(
            f"the input file {shown(path)} cannot be read by this stream",
            found=found,
            expected=expected,
            action="rename it, pack it anew, or take it out of the folder; until then nothing new is taken from there",
        )
    if format.header:
        read_header(path, format)


def partitions_for(size: int, cores: int) -> int:
    """Counts how many Spark partitions this many bytes are worth."""
    return max(1, min(-(-size // PARTITION_BYTES), 2 * cores))


class FileReader:
    """Makes the DataFrame of a batch."""

    def __init__(self, spark: "SparkSession", format: RowFormat) -> None:
        self._spark, self._format = spark, format
        self._cores = max(1, spark.sparkContext.defaultParallelism)
        self._strict = format.mode == "FAILFAST"
        # In this order of columns → the form that the lines' rows are parsed with.
        self._forms: dict[tuple[str, ...] | None, Parsing] = {}
        # Spark drops lines that cannot be parsed without a count.
        drops = format.mode == "DROPMALFORMED"
        comment = format.option("comment").encode(format.charset, "ignore")
        self._line_rows = None if drops else LineRows(format.name == "text", comment)

    def read(self, ranges: Sequence[FileRange]) -> Emitted:
        """The rows of some ranges."""
        size = sum(part.size * (4 if is_packed(part.entry.path) else 1) for part in ranges)
        partitions = partitions_for(size, self._cores)
        if not ranges:
            return Emitted(self._spark.createDataFrame([], self._format.schema), partitions=1, rows=0)
        if self._format.name == "parquet":
            rows = sum(part.end - part.begin for part in ranges)
            return Emitted(read_parquet(self._spark, self._format, ranges, partitions), None, partitions, rows=rows)
        if partitions == 1 and all(map(self._can_be_native, ranges)) and len(ranges) <= NATIVE_FILES_MAX:
            files = [(part.entry.path, part.entry.size, part.entry.mtime_ns // 1_000_000) for part in ranges]
            slot = FilesSlot(self, files, self._native, self._native_rows)
            return Emitted(slot, None, partitions, rows=self._rows_of_native(ranges))
        by_order: dict[tuple[str, ...] | None, list[tuple[FileRange, int]]] = {}
        calls = [functools.partial(self._header, part) for part in ranges]
        for part, header in zip(ranges, storage.run_concurrently(calls)):
            by_order.setdefault(header.order, []).append((part, header.size))
        if partitions == len(by_order) == 1 and not any(map(self._by_spark_alone, ranges)):
            ((order, parts),) = by_order.items()
            return self._slot(parts, order)
        counts: list[_Count] = []
        frames = [self._rows_of(parts, order, partitions, counts) for order, parts in by_order.items()]
        data = functools.reduce(lambda one, other: one.unionByName(other), frames)
        return Emitted(data, None, partitions, rows=functools.partial(_added, counts))

    def _header(self, part: FileRange) -> Header:
        check_readable(part.entry.path, self._format)  # one that a version before has discovered
        return read_header(part.entry.path, self._format) if self._format.header else _NO_HEADER

    def _rows_of(
        self,
        parts: Sequence[tuple[FileRange, int]],
        order: tuple[str, ...] | None,
        partitions: int,
        counts: list["_Count"],
    ) -> "DataFrame":
        """The rows; what counts them is added to ``counts``."""
        native = [part for part, _ in parts if self._can_be_native(part)]
        if len(native) < len(parts) or len(native) > NATIVE_FILES_MAX:
            # One way for all of them: a union costs more than it saves. Only what
            # Python cannot unpack stays with Spark.
            native = [part for part in native if self._by_spark_alone(part)]
        chosen = set(native)
        frames = []
        if native:
            frames.append(self._native_rows(self._native([part.entry.path for part in native])))
            counts.append(self._rows_of_native(native))
        if rest := [(part, skip) for part, skip in parts if part not in chosen]:
            groups = group(_pieces_of(rest), partitions)
            rows = TaskRows(self._spark, len(groups))
            frames.append(self._parsed(self._in_tasks(groups, rows), order))
            counts.append(self._known(rows))
        return functools.reduce(lambda one, other: one.unionByName(other), frames)

    # --- counts -----------------------------------------------------------------------------

    def _known(self, rows: TaskRows) -> "_Count":
        return _unknown if self._line_rows is None else rows

    def _rows_of_native(self, ranges: Sequence[FileRange]) -> "_Count":
        """Counts, while the batch runs, the rows of files that Spark reads itself: Spark does not say."""
        if self._line_rows is None or any(is_packed(one.entry.path) for one in ranges):
            return _unknown  # to unpack them once more would take as long as the batch
        return functools.partial(_counted, _COUNTING.submit(self._line_rows.of_pieces, pieces(ranges)))

    # --- lines ------------------------------------------------------------------------------

    def _can_be_native(self, part: FileRange) -> bool:
        path = part.entry.path
        native = part.whole and is_name_for_spark(path) and spark_unpacks(path) and not self._format.header
        return native and not is_stored(path)

    def _by_spark_alone(self, part: FileRange) -> bool:
        return is_packed_for_spark(part.entry.path)

    def _native(self, paths: Sequence[str]) -> "DataFrame":
        lines = self._spark.read.text([escape(path) for path in paths], lineSep="\n")
        if self._strict:
            return lines.selectExpr("value", "_metadata.file_path AS file")
        return lines  # a column for each `name=value` folder is not made: the paths are files

    def _native_rows(self, lines: "DataFrame") -> "DataFrame":
        """The rows of lines as Spark gives them: not yet checked to be UTF-8."""
        if self._strict and self._format.charset == "UTF-8":
            lines = lines.select(self._in_utf8, "file")
        return self._parsed(lines, None)

    def _in_tasks(self, groups: Sequence[Sequence[Piece]], rows: TaskRows) -> "DataFrame":
        """The lines of each task's pieces."""
        task = self._task(groups, is_stored(groups[0][0].path))
        counted = task if self._line_rows is None else rows.counted(task, self._line_rows)
        return self._lines(self._spark.range(0, len(groups), 1, len(groups)), counted)

    def _sent(self, sent: "DataFrame", stored: bool) -> "DataFrame":
        """The lines of the pieces that the row of a slot has. Its plan is kept: the row says whose rows are counted."""
        task = self._task((), stored)
        counted = task if self._line_rows is None else counted_by_row(self._spark, task, self._line_rows)
        return self._lines(sent, counted)

    def _slot(self, parts: Sequence[tuple[FileRange, int]], order: tuple[str, ...] | None) -> Emitted:
        """A batch that one task reads."""
        found, rows = _pieces_of(parts), TaskRows(self._spark, 1)
        sent = pa.table({"pieces": pa.array([pickle.dumps(found)], pa.binary()), "emission": [rows.emission]})
        slot = TaskSlot(
            RowsSlot(self._spark, sent, _SENT),
            (self, order),
            lambda frame: self._parsed(self._sent(frame, is_stored(found[0].path)), order),
            lambda: self._parsed(self._in_tasks([found], rows), order),
        )
        return Emitted(slot, None, 1, rows=self._known(rows))

    def _task(self, groups: Sequence[Sequence[Piece]], stored: bool) -> "_Task":
        strict, stores = self._strict and self._format.charset == "UTF-8", tuple[Place, ...]()
        if stored:
            stores = reached_stores()
        return functools.partial(read_lines, groups, self._format.names_files, strict, stores)

    def _lines(self, tasks: "DataFrame", task: "_Task") -> "DataFrame":
        names = self._format.names_files
        lines = tasks.mapInArrow(task, "value binary, file string" if names else "value binary")
        # Sent as bytes: Arrow's strings would have to be UTF-8.
        return lines.selectExpr("CAST(value AS STRING) AS value", *(["file"] if names else []))

    @functools.cached_property
    def _in_utf8(self) -> "Column":
        refusal = refused(
            f"a line of {self._format.name} is not UTF-8",
            expected="text in UTF-8",
            action="correct the file's producer; where the files are in Latin-1 set the option encoding='ISO-8859-1'; "
            "with mode='PERMISSIVE' such bytes become U+FFFD",
        )
        return F.when(F.expr("is_valid_utf8(value)"), F.col("value")).otherwise(refusal).alias("value")

    # --- rows -------------------------------------------------------------------------------

    def _parsed(self, lines: "DataFrame", order: tuple[str, ...] | None) -> "DataFrame":
        form = self._forms.get(order)
        if form is None:
            form = self._forms[order] = Parsing(self._format, order)
        return form.rows(lines)


_NO_HEADER = Header(0)
_SENT = StructType([StructField("pieces", BinaryType()), StructField("emission", StringType())])

# Gives the number of rows once they were read; None: it is not known.
_Count = Callable[[], "int | None"]
_Task = Callable[[Iterable[Any]], Iterator[Any]]


def _unknown() -> None:
    return None


def _counted(counting: "Future[int | None]") -> int | None:
    """The count, unless the file system, which has just given Spark all of these files, does not answer."""
    wait([counting], _COUNT_SECS)
    return counting.result() if counting.done() else None


def _added(counts: Sequence[_Count]) -> int | None:
    found = [count() for count in counts]
    return None if None in found else sum(one or 0 for one in found)


def _pieces_of(parts: Sequence[tuple[FileRange, int]]) -> list[Piece]:
    return [piece for part, skip in parts for piece in pieces([part], skip)]


def pieces(ranges: Sequence[FileRange], skip: int = 0) -> list[Piece]:
    """Ranges as tasks read them: none longer than PARTITION_BYTES. ``skip``: bytes before the first row."""
    result = []
    for part in ranges:
        most = max(1, part.end) if is_packed(part.entry.path) else PARTITION_BYTES
        for begin in range(part.begin, part.end, most):
            end = min(part.end, begin + most)
            entry = part.entry
            result.append(Piece(entry.path, entry.size, entry.mtime_ns, begin, end, skip, entry.tag))
    return result


def group(items: Sequence[Piece], partitions: int) -> list[list[Piece]]:
    """Pieces in order, as evenly over at most this many tasks as whole pieces go."""
    total = sum(item.end - item.begin for item in items)
    share = max(1, -(-total // partitions))
    groups: list[list[Piece]] = [[]]
    filled = 0
    for item in items:
        if groups[-1] and filled >= share and len(groups) < partitions:
            groups.append([])
            filled = 0
        groups[-1].append(item)
        filled += item.end - item.begin
    return groups


_NATIVE_FAILURE = re.compile(r"\[(FAILED_READ_FILE[.\w]*)\] Encountered error while reading file (.+?)\. (.*)")

_ANOTHER_TYPE = re.compile("DATA_TYPE_MISMATCH|_PARQUET_TYPE|PARQUET_TYPE_|Parquet type", re.IGNORECASE)


def source_failure(error: BaseException) -> SourceError | None:
    """The SourceError behind a failed Spark job, when a file was the cause; else None."""
    known = next((one for one in causes(error) if isinstance(one, SourceError)), None)
    if known is not None:
        return known
    report = find_report(error, SOURCE)
    if report is not None:
        return with_line_number(report)
    match = search_causes(error, _NATIVE_FAILURE)
    if match is None:
        return None
    restore = "restore the file; the batch is tried again up to max_attempts"
    another_type = _ANOTHER_TYPE.search(f"{match[1]} {match[3]}") is not None
    return SourceError(
        f"the file {path_of(match[2])} cannot be read",
        found=f"{match[1]} {match[3]}".strip()[:300],
        action="correct the schema of the spout, or take the file away" if another_type else restore,
    )


_SECS = 10.0  # a file that takes longer is named without the line


def with_line_number(report: Mapping[str, Any]) -> SourceError:
    """The error of a worker's report, with the number of the line where the report has the line's digest.

    Its fingerprint is without the number, which is not found where the file has gone.
    """
    file = report.get("file")
    if not file:
        return reported(report)
    path = path_of(file)
    message = report["message"].replace(file, path)
    error = reported({**report, "message": message})
    number = _line_number(path, report["digest"], report["charset"])
    if number is None:
        return error
    numbered = reported({**report, "message": f"{message}, line {number}"})
    numbered.fingerprint = error.fingerprint
    return numbered


def _line_number(path: str, digest: str, charset: str) -> int | None:
    """From 1; None: no line is the one, or it took too long to look."""
    end = time.monotonic() + _SECS
    try:
        with opened_file(path) as raw, opened(raw, path) as content:
            for number, line in enumerate(content, 1):
                text = (line.removeprefix(BOM) if number == 1 else line).removesuffix(b"\n")
                if digest in {_digest(text, charset), _digest(text.removesuffix(b"\r"), charset)}:
                    return number
                if not number % 1_000 and time.monotonic() > end:
                    return None
    except BROKEN:
        pass
    return None


def _digest(line: bytes, charset: str) -> str:
    """As Spark's sha2 gives it for the text of a line."""
    text = line if charset == "UTF-8" else line.decode(charset).encode()
    return hashlib.sha256(text).hexdigest()
