"""Turns ranges of files into rows, the same rows each time (docs/semantics.md 3).

Whole files are read by Spark itself. Parts of files, and more files than Spark
lists quickly, are read by Python in the tasks (`tasks.py`). Both give
lines as bytes, and everything after that is one native expression: bytes that
are not UTF-8 become U+FFFD, one carriage return at the end is cut off, CSV and
JSON are parsed. Which way was taken therefore never shows in the rows.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from trident.coordinators.causes import causes, search_causes
from trident.coordinators.errors import SourceError
from trident.spark.slots import FilesSlot
from trident.spouts.files.cuts import FileRange
from trident.spouts.files.format import RowFormat, escape, is_compressed, is_name_for_spark
from trident.spouts.files.parquet import is_exact, read_parquet
from trident.spouts.files.tasks import UNPACKED_HERE, Piece, read_lines, reported, shown
from trident.states.core.names import backquoted
from trident.workers.reports import MARK, SOURCE, find_report

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

# From 33 paths on Spark lists files with a job that has one task per path:
# 200 paths took 550 ms to list and 30 took 29 ms; Python opens 200 in 5 ms.
NATIVE_FILES_MAX = 30
# One Spark partition per this many bytes: a batch below that runs fastest in one.
PARTITION_BYTES = 8 << 20
_CORRUPT = "_trident_corrupt"
_LINE = """CASE WHEN endswith(value, char(13))
    THEN substring(make_valid_utf8(value), 1, length(make_valid_utf8(value)) - 1)
    ELSE make_valid_utf8(value) END"""


def check_readable(path: str, format: RowFormat) -> None:
    """For when a file is discovered: one that nothing here can read is named before it is part of a batch."""
    if format.name == "parquet":
        bad = not is_name_for_spark(path) and not (shown(path) == path and is_exact(path, format.schema))
        expected = "a name in UTF-8 without a colon"
    else:
        by_python = format.header or not is_name_for_spark(path)
        bad = by_python and is_compressed(path) and not path.endswith(UNPACKED_HERE)
        expected = f"a file that is not packed, or {' or '.join(UNPACKED_HERE)}"
        expected += "; others only without a header line and with a name in UTF-8 without a colon"
    if bad:
        raise SourceError(
            f"the input file {shown(path)} cannot be read by this stream",
            found="its name, or its packing with a header line",
            expected=expected,
            action="rename it, pack it anew, or take it out of the folder; until then nothing new is taken from there",
        )


def partitions_for(size: int, cores: int) -> int:
    """Counts how many Spark partitions this many bytes are worth."""
    return max(1, min(-(-size // PARTITION_BYTES), 2 * cores))


class FileReader:
    """Makes the DataFrame of a batch."""

    def __init__(self, spark: "SparkSession", format: RowFormat) -> None:
        self._spark, self._format = spark, format
        self._cores = max(1, spark.sparkContext.defaultParallelism)

    def read(self, ranges: Sequence[FileRange]) -> tuple["DataFrame | FilesSlot", int]:
        """The rows of some ranges, and how many Spark partitions they are worth."""
        size = sum(part.size * (4 if is_compressed(part.entry.path) else 1) for part in ranges)
        partitions = partitions_for(size, self._cores)
        if not ranges:
            return self._spark.createDataFrame([], self._format.schema), 1
        if self._format.name == "parquet":
            return read_parquet(self._spark, self._format, ranges, partitions), partitions
        if partitions == 1 and all(map(self._can_be_native, ranges)) and len(ranges) <= NATIVE_FILES_MAX:
            files = [(part.entry.path, part.entry.size, part.entry.mtime_ns // 1_000_000) for part in ranges]
            return FilesSlot(self, files, self._native, self._rows), partitions
        return self._rows(self._lines(ranges, partitions)), partitions

    # --- lines ------------------------------------------------------------------------------

    def _lines(self, ranges: Sequence[FileRange], partitions: int) -> "DataFrame":
        """``value`` (and ``file``): one row per line, not yet checked to be UTF-8."""
        native = [part for part in ranges if self._can_be_native(part)]
        if len(native) < len(ranges) or len(native) > NATIVE_FILES_MAX:
            # One way for all of them: a union costs more than it saves. Only what
            # Python cannot unpack stays with Spark.
            native = [part for part in native if is_compressed(part.entry.path)]
        chosen = set(native)
        rest = [part for part in ranges if part not in chosen]
        if not rest:
            return self._native_of(native)
        if not native:
            return self._in_tasks(rest, partitions)
        return self._native_of(native).unionByName(self._in_tasks(rest, partitions))

    def _can_be_native(self, part: FileRange) -> bool:
        return part.whole and is_name_for_spark(part.entry.path) and not self._format.header

    def _native_of(self, ranges: Sequence[FileRange]) -> "DataFrame":
        return self._native([part.entry.path for part in ranges])

    def _native(self, paths: Sequence[str]) -> "DataFrame":
        lines = self._spark.read.text([escape(path) for path in paths], lineSep="\n")
        if self._format.names_files:
            return lines.selectExpr("value", "_metadata.file_path AS file")
        return lines  # a column for each `name=value` folder is not made: the paths are files

    def _in_tasks(self, ranges: Sequence[FileRange], partitions: int) -> "DataFrame":
        for part in ranges:
            check_readable(part.entry.path, self._format)  # one that a version before has discovered
        groups = group(pieces(ranges, self._format.header), partitions)
        names = self._format.names_files
        task = functools.partial(read_lines, groups, names)
        lines = self._spark.range(0, len(groups), 1, len(groups)).mapInArrow(
            task, "value binary, file string" if names else "value binary"
        )
        # Sent as bytes: Arrow's strings would have to be UTF-8.
        return lines.selectExpr("CAST(value AS STRING) AS value", *(["file"] if names else []))

    # --- rows -------------------------------------------------------------------------------

    def _rows(self, lines: "DataFrame") -> "DataFrame":
        text = self._format.name == "text"
        name = self._format.schema.fields[0].name if text else "value"
        # As SQL: built from Column objects it takes ten calls to the JVM for each batch.
        lines = lines.selectExpr(f"{_LINE} AS {backquoted(name)}", *(["file"] if self._format.names_files else []))
        return lines if text else self._parsed(lines)

    def _parsed(self, lines: "DataFrame") -> "DataFrame":
        csv, mode = self._format.name == "csv", self._format.mode
        kept = F.length(F.trim("value")) > 0  # as Spark's own readers do
        comment = self._format.option("comment", "") if csv else ""
        if comment:
            kept = kept & ~F.startswith("value", F.lit(comment))
        options = {k: str(v) for k, v in self._format.options.items() if k.lower() not in ("mode", "header")}
        options["mode"] = "PERMISSIVE"
        schema = self._format.schema
        if mode != "PERMISSIVE":
            # A row that cannot be parsed is found by this field, so that the error can name its file.
            options["columnNameOfCorruptRecord"] = _CORRUPT
            schema = StructType([*schema.fields, StructField(_CORRUPT, StringType())])
        if csv:
            parsed = F.from_csv("value", schema.simpleString(), options)
        else:
            parsed = F.from_json("value", schema, options)
        rows = lines.where(kept).select("*", parsed.alias("row"))
        if mode != "PERMISSIVE":
            good = F.col("row").isNotNull() & F.col(f"row.{_CORRUPT}").isNull()
            rows = rows.where(good if mode == "DROPMALFORMED" else F.when(good, True).otherwise(self._refusal()))
        return rows.select([F.col("row").getField(field.name).alias(field.name) for field in self._format.schema])

    def _refusal(self) -> "Column":
        what = F.to_json(
            F.struct(
                F.lit(SOURCE).alias("kind"),
                F.lit(True).alias("repeats"),
                F.concat(F.lit(f"a row of {self._format.name} cannot be parsed, in "), "file").alias("message"),
                F.substring("value", 1, 200).alias("found"),
                F.lit(f"a row of {self._format.schema.simpleString()}"[:500]).alias("expected"),
                F.lit(
                    "correct the file's producer, skip the batch, or set option mode='PERMISSIVE' or 'DROPMALFORMED'"
                ).alias("action"),
            )
        )
        return F.raise_error(F.concat(F.lit(f"<<{MARK}:"), F.base64(F.encode(what, "UTF-8")), F.lit(">>"))).cast(
            "boolean"
        )


def pieces(ranges: Sequence[FileRange], header: bool) -> list[Piece]:
    """Ranges as tasks read them: none longer than PARTITION_BYTES."""
    result = []
    for part in ranges:
        most = max(1, part.end) if is_compressed(part.entry.path) else PARTITION_BYTES
        for begin in range(part.begin, part.end, most):
            end = min(part.end, begin + most)
            entry = part.entry
            result.append(Piece(entry.path, entry.size, entry.mtime_ns, begin, end, header and begin == 0))
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


def source_failure(error: BaseException) -> SourceError | None:
    """The SourceError behind a failed Spark job, when a file was the cause; else None."""
    known = next((one for one in causes(error) if isinstance(one, SourceError)), None)
    if known is not None:
        return known
    report = find_report(error, SOURCE)
    if report is not None:
        return reported(report)
    match = search_causes(error, _NATIVE_FAILURE)
    if match is None:
        return None
    return SourceError(
        f"the file {match[2]} cannot be read",
        found=f"{match[1]} {match[3]}".strip()[:300],
        action="restore the file; the batch is tried again up to max_attempts",
    )
