"""The format of a FileSpout's rows: Spark's options for it, and the names of files that Spark can read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trident.coordinators.errors import TopologyError
from trident.spouts.files.tasks import shown

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

FORMATS = ("text", "csv", "json", "parquet")
# Hadoop knows these by the end of the name; an offset into one means nothing.
COMPRESSED = (".gz", ".bz2", ".zst", ".lz4", ".snappy", ".deflate")
MODES = ("FAILFAST", "PERMISSIVE", "DROPMALFORMED")
_GLOB = re.compile(r"([{}\[\]*?\\])")


def is_compressed(path: str) -> bool:
    return path.endswith(COMPRESSED)


def is_name_for_spark(path: str) -> bool:
    """Hadoop's file system cannot open a name with a colon, nor one that is not UTF-8."""
    return ":" not in path and shown(path) == path


def escape(path: str) -> str:
    """A path as Spark must be given it, so that it is not taken for a glob."""
    return _GLOB.sub(r"\\\1", path)


@dataclass(frozen=True)
class RowFormat:
    """How lines become rows.

    Attributes:
        options: Spark's options for the format.

    Raises:
        TopologyError: an option cannot be used.
    """

    name: str
    schema: "StructType"
    options: Mapping[str, str]

    def __post_init__(self) -> None:
        lowered = {key.lower(): value for key, value in self.options.items()}
        for option, why in (
            ("multiline", "a row must be a line"),
            ("linesep", "rows end with a newline"),
            ("encoding", "files are read as UTF-8"),
            ("charset", "files are read as UTF-8"),
            ("wholetext", "a row is a line"),
            ("pathglobfilter", "give the path as a glob"),
            ("recursivefilelookup", "give the path as a glob with **"),
            ("ignorecorruptfiles", "rows would be lost"),
            ("ignoremissingfiles", "rows would be lost"),
            ("modifiedbefore", "rows would be lost"),
            ("modifiedafter", "rows would be lost"),
            ("inferschema", "a schema is given"),
        ):
            if option in lowered and str(lowered[option]).lower() not in ("false", "utf-8", "utf8", "\n"):
                raise TopologyError(
                    f"FileSpout cannot use the option {self._as_written(option)}",
                    found=repr(lowered[option]),
                    expected=f"none: {why}",
                )
        if self.mode not in MODES:
            raise TopologyError("the mode for malformed rows is unknown", found=self.mode, expected=" or ".join(MODES))

    def _as_written(self, option: str) -> str:
        return next(key for key in self.options if key.lower() == option)

    def option(self, name: str, default: str) -> str:
        return next((str(value) for key, value in self.options.items() if key.lower() == name.lower()), default)

    @property
    def mode(self) -> str:
        return self.option("mode", "FAILFAST").upper()

    @property
    def header(self) -> bool:
        return self.name == "csv" and self.option("header", "false").lower() == "true"

    @property
    def names_files(self) -> bool:
        """Tells whether lines travel with their file's name, for the error about a malformed one."""
        return self.name in ("csv", "json") and self.mode == "FAILFAST"
