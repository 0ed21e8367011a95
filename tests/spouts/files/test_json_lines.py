"""A line of JSON is one object and nothing else; all else is as Spark's own reader has it."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from pyspark.sql.types import StructType

from trident.spouts.files.format import RowFormat
from trident.spouts.files.reading import Parsing, source_failure

SCHEMA = "id long, name string, at timestamp, price decimal(10,2), tags array<string>, inner struct<x: int, y: double>"
BAD = "bad string"
TIME = "CAST(at AS STRING) AS at"
WIDTH = 7  # columns, with that of malformed texts

OBJECTS = [
    {"id": 1},
    {},
    {"id": 2, "name": 'a } ] , { [ " b', "other": [{"x": 1}]},
    {"id": None, "tags": ["a", None], "inner": {"x": 1, "y": 0.5}},
    {"price": 12.345, "at": "2026-01-02T03:04:05Z"},
    {"id": 3, "inner": {"x": "no number"}, "name": "partly read"},
    {"id": "no number", "name": "kept"},
    {"id": 2**63},
    {"ID": 1, "tags": {}},
    {"inner": {"y": 1, "z": {"x": {"y": []}}}, "tags": []},
    {"end": True, "rows": [1], "id": 4},
]
TEXTS = [*map(json.dumps, OBJECTS), '{"id": 1, "id": 2}', "{'id': 5}", '{"inner": {"y": NaN}}']
BROKEN = [
    *('{"id": 1', '{"id": 01}', '{"id": 1,}', "{id: 1}", '{"id" 1}'),
    *("null", "1", '"x"', "[1]", "true", "", "  ", "\t"),
]
AFTER = [
    *(
        '{"id": 2}',
        " trailing",
        "]",
        "}",
        ",",
        ',{"id": 2}',
        "],[",
        '],"rows":[{"id": 2}',
        "}]}",
        ',"x":1',
        "[]",
        " null",
    ),
    *("//", "/* */", "\\", '"', "0", ",,", '}],"corrupt":null}', '\x0b{"id": 2}', "#"),
]


def rows_of(spark: Any, lines: list[str], options: dict[str, str], schema: str = f"{SCHEMA}, {BAD}") -> list[Any]:
    """What a FileSpout makes of lines, in their order."""
    options = {"columnNameOfCorruptRecord": "bad", **options}
    frame = spark.createDataFrame([(line, "a file") for line in lines], "value string, file string").coalesce(1)
    format = RowFormat("json", StructType.fromDDL(schema), options)
    return collected(Parsing(format, None).rows(frame))


def collected(frame: Any) -> list[Any]:
    """Rows, with times as text: Python's own end with the year 9999."""
    return [
        tuple(row) for row in frame.selectExpr(*(TIME if name == "at" else name for name in frame.columns)).collect()
    ]


def changed(text: str, rng: random.Random) -> str:
    """A text with a character less, more or another."""
    at = rng.randrange(len(text) + 1)
    return text[:at] + rng.choice(["", *'{}[]",:0a \\']) + text[at + rng.choice((0, 1)) :]


def is_followed(text: str) -> bool:
    """Whether a JSON value is there and something after it, by Python's parser."""
    text = text.lstrip(" \t\r\n")
    if text.startswith("{'"):
        return text.rstrip(" \t\r\n") != "{'id': 5}"
    try:
        _, end = json.JSONDecoder().raw_decode(text)
    except ValueError:
        return False
    return bool(text[end:].strip(" \t\r\n"))


def certain(row: Any) -> str:
    """Of a malformed text the text alone."""
    return repr(row if row[-1] is None else row[-1])


def test_a_line_is_one_object_and_all_else_is_as_sparks_reader_has_it(spark, rng, tmp_path) -> None:
    lines = [blank + text + after for text in TEXTS for blank, after in (("", ""), (" ", "\t "))] + BROKEN
    lines += [text + rng.choice(["", " "]) + after for text in TEXTS for after in AFTER]
    given = len(lines)
    drawn = [changed(rng.choice(lines), rng) for _ in range(500)]
    # Spark's reader makes several rows of an array; Python's parser does not know single quotes.
    lines += [line for line in drawn if "'" not in line and not line.lstrip().startswith("[")]
    (tmp_path / "lines.json").write_text("\n".join(lines) + "\n")
    permissive = {"schema": f"{SCHEMA}, {BAD}", "columnNameOfCorruptRecord": "bad"}
    read_by_spark = collected(spark.read.json(str(tmp_path / "lines.json"), **permissive).coalesce(1))
    expected = []
    for line, row in zip([line for line in lines if line.strip(" \t")], read_by_spark, strict=True):
        assert row[-1] in (None, line)
        expected.append(row if row[-1] is not None or not is_followed(line) else (None,) * (WIDTH - 1) + (line,))
    found = rows_of(spark, lines, {"mode": "PERMISSIVE"})
    given = sum(bool(line.strip(" \t")) for line in lines[:given])
    # Spark's parsers of files and of texts go on in different ways where a drawn character stands amid a text.
    assert list(map(repr, found[:given])) == list(map(repr, expected[:given]))
    assert list(map(certain, found[given:])) == list(map(certain, expected[given:]))
    found = rows_of(spark, lines, {"mode": "DROPMALFORMED"})
    assert [repr(row) for row in found] == [repr(row) for row in expected if row[-1] is None]
    assert sum(row[-1] is None for row in expected) > 15 and sum(is_followed(line) for line in lines) > 200


def test_more_than_one_object_fails_the_batch_and_names_the_file(spark) -> None:
    for text in ('{"id": 1}{"id": 2}', '{"id": 1}, {"id": 2}', '{"id": 1} trailing garbage'):
        with pytest.raises(Exception) as caught:
            rows_of(spark, ['{"id": 1}', text], {}, SCHEMA)
        error = source_failure(caught.value)
        assert error is not None and "cannot be parsed, in a file" in str(error) and f"found: {text}" in str(error)


def test_options_of_the_parser_hold(spark) -> None:
    options = {"allowComments": "true", "allowUnquotedFieldNames": "true"}
    assert rows_of(spark, ["{id: 1} // c", "{id: 2} /* c */ "], options, "id long") == [(1,), (2,)]
