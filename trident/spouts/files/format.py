"""The format of a FileSpout's rows: Spark's options for it, and the names of files that Spark can read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote

from trident.coordinators.errors import TopologyError
from trident.spouts.files.options import checked
from trident.spouts.files.tasks import shown

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

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
