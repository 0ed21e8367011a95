"""The word count that most benchmarks share: its input, its query, its topologies."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from trident import TridentTopology

VOCABULARY = 20_000
WORDS_PER_LINE = 10
LINES = 5_000
# Different contents; more files than this are copies of them.
_DISTINCT = 10


def write_files(folder: Path, count: int, lines: int = LINES, first: int = 0) -> Path:
    """A folder of text files, one transaction each, put there by rename."""
    folder.mkdir(parents=True, exist_ok=True)
    contents = [_text(seed, lines) for seed in range(min(count, _DISTINCT))]
    for number in range(first, first + count):
        temporary = folder / f"_{number:05d}"
        temporary.write_bytes(contents[number % len(contents)])
        temporary.rename(folder / f"{number:05d}.txt")
    return folder


def _text(seed: int, lines: int) -> bytes:
    pick = random.Random(seed).randrange
    return "".join(
        " ".join(f"w{pick(VOCABULARY):05d}" for _ in range(WORDS_PER_LINE)) + "\n" for _ in range(lines)
    ).encode()


def split_column() -> "Column":
    """The words of a line, as a native expression."""
    from pyspark.sql import functions as F

    return F.explode(F.split("value", " "))


def split(sentence: str) -> Iterator[str]:
    """The words of a line, in Python."""
    yield from sentence.split()


def counted(frame: "DataFrame") -> "DataFrame":
    """The query that all contenders run: words and how often, of one batch."""
    from pyspark.sql import functions as F

    return frame.select(split_column().alias("word")).groupBy("word").agg(F.count(F.lit(1)).alias("count"))


def topology(name: str, folder: Path, state: Any, lines: int = LINES, python: bool = False) -> "TridentTopology":
    """Our word count, a file a transaction."""
    from trident import Count, FileSpout, TridentTopology

    made = TridentTopology(name)
    stream = made.new_stream("lines", FileSpout(folder, min_rows=lines, max_rows=lines))
    words = stream.each("value", split, "word") if python else stream.flat_map(split_column(), "word")
    words.group_by("word").persistent_aggregate(state, Count(), "count")
    return made
