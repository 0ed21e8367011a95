"""How files are packed, as the end of their name says: who can unpack them, and which are refused."""

from __future__ import annotations

import contextlib
import gzip
import io
import zlib
from typing import Any, cast

import pyarrow as pa

# A worker unpacks these itself; Hadoop knows them too, except for the last one.
UNPACKED_HERE = (".gz", ".bz2", ".zst", ".zstd")
_HADOOP_ALONE = (".deflate", ".lz4", ".snappy")
_BY_SPARK = (".gz", ".bz2", ".zst", *_HADOOP_ALONE)
PACKED = (*UNPACKED_HERE, *_HADOOP_ALONE)
_UNKNOWN = tuple(".zip .7z .rar .tar .tgz .tbz .tbz2 .txz .tzst .xz .lzma .lz .lzo .br .z .jar .cab".split())
_TAR = tuple(f".tar{ending}" for ending in PACKED)
# Files of the tools of that name, which Hadoop's own way of packing, under the same ending, is not.
_OF_TOOLS = {".lz4": b"\x04\x22\x4d\x18", ".snappy": b"\xff\x06\x00\x00"}

# Reading a damaged one raises one of these.
BROKEN = (OSError, EOFError, zlib.error, pa.ArrowException)


def is_packed(path: str) -> bool:
    """Such a file is read as a whole: an offset into it means nothing."""
    return path.lower().endswith(PACKED)


def is_packed_for_spark(path: str) -> bool:
    """Tells whether only Spark can unpack a file."""
    return path.lower().endswith(_HADOOP_ALONE)


def spark_unpacks(path: str) -> bool:
    """Tells whether Spark reads the content of a file, packed or not."""
    return not is_packed(path) or path.lower().endswith(_BY_SPARK)


def why_not_unpacked(path: str) -> str | None:
    """Why the content of a file of lines cannot be read; None: it can."""
    name = path.lower()
    if name.endswith((*_UNKNOWN, *_TAR)):
        return "by its name it is an archive, or packed in a way that is not known here"
    for ending, magic in _OF_TOOLS.items():
        if name.endswith(ending):
            with open(path, "rb") as file:
                if file.read(len(magic)) == magic:
                    return f"it was packed by the tool for {ending} files, which is not the way of Hadoop and Spark"
    return None


def opened(file: Any, path: str) -> contextlib.AbstractContextManager[Any]:
    """The content of an open file, to be read from its beginning; those that workers unpack are unpacked."""
    name = path.lower()
    if name.endswith(".gz"):
        return gzip.GzipFile(fileobj=file)
    if name.endswith(".bz2"):
        import bz2  # optional: a Python may be built without it

        return bz2.BZ2File(file)
    if name.endswith((".zst", ".zstd")):
        return io.BufferedReader(cast(Any, pa.CompressedInputStream(file, "zstd")), 1 << 16)
    return contextlib.nullcontext(file)
