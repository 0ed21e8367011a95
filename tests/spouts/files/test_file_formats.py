"""What a file's name, header, encoding and options say is followed as by Spark's own reader, or refused by name."""

from __future__ import annotations

import bz2
import gzip
import re
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

from tests.long_cases import sample
from tests.spouts.files import test_file_spout as helpers
from tests.spouts.files.test_file_spout import failure, put
from trident.coordinators.errors import SourceError, TopologyError
from trident.spouts.files import format as file_options
from trident.spouts.files import reading as file_reading
from trident.spouts.files.parquet import is_exact
from trident.spouts.files.spout import FileSpout

inputs, new_run = helpers.inputs, helpers.new_run
HEADER = {"header": True}


# --- headers ------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 1_000])
def test_columns_are_matched_by_the_names_in_each_files_header(inputs, new_run, rows):
    put(inputs, "a.csv", "first,last\nAda,Lovelace\nAlan,Turing\n")
    put(inputs, "b.csv", 'last,"First "\nHopper,Grace\n')
    put(inputs, "c.csv.gz", gzip.compress(b"\xef\xbb\xbflast,first\nNoether,Emmy\n"))
    run = new_run(inputs, "csv", HEADER, schema="first string, last string", min_rows=rows, max_rows=rows)
    people = [("Ada", "Lovelace"), ("Alan", "Turing"), ("Grace", "Hopper"), ("Emmy", "Noether")]
    assert run.all_rows() == Counter(people)


@pytest.mark.parametrize("header", ["first,family", "first", "first,last,age", "first,first", "1,2"])
def test_a_header_with_other_names_is_refused_when_the_file_is_discovered(inputs, new_run, header):
    put(inputs, "a.csv", f"{header}\nAda,Lovelace\n")
    run = new_run(inputs, "csv", HEADER, schema="first string, last string")
    with pytest.raises(SourceError, match=r"header of .*in/a\.csv.*'first', 'last'.*enforceSchema") as caught:
        run.ready()
    assert repr(header.split(",")[-1]) in str(caught.value)
    put(inputs, "a.csv", "last,first\nLovelace,Ada\n")
    assert run.all_rows() == Counter([("Ada", "Lovelace")])


def test_enforce_schema_is_as_in_spark_by_position_or_in_order(inputs, new_run):
    put(inputs, "a.csv", "last,first\nAda,Lovelace\n")
    schema = "first string, last string"
    by_position = new_run(inputs, "csv", {**HEADER, "enforceSchema": True}, schema=schema)
    assert by_position.all_rows() == Counter([("Ada", "Lovelace")])
    (inputs.parent / "state" / "files-life.jsonl").unlink()
    with pytest.raises(SourceError, match=r"in this order \(enforceSchema=False\)"):
        new_run(inputs, "csv", {**HEADER, "enforceSchema": False}, schema=schema).ready()


BEFORE = '\n  \n# a comment\n"a\n1","b ""x"""\r\n'


@pytest.mark.parametrize("rows", [1, 1_000])
def test_a_header_begins_behind_blanks_and_comments_and_may_have_newlines(inputs, new_run, rows):
    put(inputs, "a", BEFORE + "1,2\n# 3\n4,5\n")
    put(inputs, "b.zst", zstd((BEFORE + "6,7\n").encode()))
    put(inputs, "none", "\n# only a comment\n")
    run = new_run(
        inputs, "csv", {**HEADER, "comment": "#"}, schema='`a\n1` int, `b "x"` int', min_rows=rows, max_rows=rows
    )
    assert run.all_rows() == Counter([(1, 2), (4, 5), (6, 7)])


def test_a_quote_that_a_header_never_closes_is_named(inputs, new_run):
    put(inputs, "a", 'a,"b\n1,2\n')
    with pytest.raises(SourceError, match=r"header of .*in/a cannot be read: a quote"):
        new_run(inputs, "csv", HEADER, schema="a int, b int").ready()


NAMES = "`order-id` int, `größe` double, `a.b` string, `c``d` string, `select` int"


@pytest.mark.parametrize("header", [False, True])
def test_names_that_sql_would_have_to_quote_are_only_names(inputs, new_run, header):
    line = "1,2.5,x,y,3\n"
    put(inputs, "a", "order-id,größe,a.b,c`d,select\n" + line if header else line)
    run = new_run(inputs, "csv", {"header": header}, schema=NAMES)
    assert run.all_rows() == Counter([(1, 2.5, "x", "y", 3)])


# --- lines --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("native_files", "line", "options"),
    [
        (30, '1,"two\nlines"\n2,x', {}),
        (0, '1,"a\nb","c"\n', {}),
        (30, '1,"""a\nb"""\n', {}),
        (0, '1,"a\\"\nb"\n', {}),
        (30, '1, "two\nx",y', {"ignoreLeadingWhiteSpace": True}),
        (0, "1|'two\nlines'\n2|x", {"sep": "|", "quote": "'"}),
    ],
)
def test_a_quoted_value_that_goes_on_in_the_next_line_fails_the_batch(
    inputs, new_run, monkeypatch, native_files, line, options
):
    monkeypatch.setattr(file_reading, "NATIVE_FILES_MAX", native_files)
    put(inputs, "wrong", line)
    error = failure(new_run(inputs, "csv", options, schema="k int, v string"))
    assert "in/wrong" in str(error) and "not closed on its line" in str(error) and "mode=" in str(error), error
    assert line.split("\n")[0] in str(error)


def test_a_value_with_a_newline_in_quotes_fails_the_batch(inputs, new_run):
    put(inputs, "wrong", '1,"two\nlines",2\n')  # two rows of two values
    assert "not closed" in str(failure(new_run(inputs, "csv", schema="k string, v string")))


def test_quotes_inside_of_values_are_as_sparks_own_reader_takes_them(inputs, new_run, spark):
    values = ['5" pipe', '"5"" pipe"', '""', '"a,""b"', '"""q"""', 'say "x', '"C:\\\\"', '"a\\"b"', '" "']
    put(inputs, "a", "\n".join(f"{number},{value}" for number, value in enumerate(values, 1)))
    expected = Counter(map(tuple, spark.read.csv(str(inputs / "a"), schema="k int, v string").collect()))
    assert new_run(inputs, "csv", schema="k int, v string").all_rows() == expected and expected.total() == 9


@pytest.mark.parametrize(
    ("native_files", "format", "schema"),
    sample(
        [(30, "text", None), (0, "csv", "a string"), (30, "json", "a string")],
        (30, "text", None),
        (0, "csv", "a string"),
    ),
)
def test_bytes_that_are_not_utf8_fail_the_batch_and_latin1_is_an_option(
    inputs, new_run, monkeypatch, native_files, format, schema
):
    monkeypatch.setattr(file_reading, "NATIVE_FILES_MAX", native_files)
    put(inputs, "l", ('{"a": "é"}\r\n' if format == "json" else "é\r\n").encode("latin-1"))
    run = new_run(inputs, format, schema=schema)
    error = failure(run)
    assert "is not UTF-8" in str(error) and "in/l, line 1;" in str(error) and "encoding='ISO-8859-1'" in str(error), (
        error
    )

    def read(**options: Any) -> Any:
        run.spout = FileSpout(inputs, format, schema, options=options, poll_interval_secs=0)
        run.restart()
        return run.rows(1)

    assert read(encoding="iso-8859-1") == ["é"]
    assert read(mode="PERMISSIVE") == ["\ufffd"]
    assert read(mode="DROPMALFORMED") == []


# --- packing ------------------------------------------------------------------------------


def zstd(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as packed:
        packed.write(data)
    return bytes(sink.getvalue())


@pytest.mark.parametrize("native_files", [30, 0])
def test_packed_files_are_known_by_their_names_in_any_case(inputs, new_run, monkeypatch, native_files):
    monkeypatch.setattr(file_reading, "NATIVE_FILES_MAX", native_files)
    lines = helpers.numbered(50)
    for number, (name, packed) in enumerate(
        {
            "a.gz": gzip.compress,
            "b.GZ": gzip.compress,
            "c.BZ2": bz2.compress,
            "d.zst": zstd,
            "e.zstd": lambda data: zstd(data) + zstd(b""),
            "f.Zst": zstd,
        }.items()
    ):
        put(inputs, name, packed(f"{number}\n{lines}".encode()))
    run = new_run(inputs, max_rows=20)
    expected = Counter({line: 6 for line in lines.splitlines()}) + Counter("012345")
    assert run.all_rows() == expected


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.zip", b"PK\x03\x04"),
        ("a.XZ", b"\xfd7zXZ\x00"),
        ("a.tar.gz", gzip.compress(b"x", mtime=0)),
        ("a.tgz", gzip.compress(b"x", mtime=0)),
        ("a.lz4", b"\x04\x22\x4d\x18rest"),
        ("a.snappy", b"\xff\x06\x00\x00sNaPpY"),
    ],
)
def test_a_file_packed_in_a_way_that_nothing_here_unpacks_is_refused_when_it_is_discovered(inputs, new_run, name, data):
    put(inputs, name, data)
    with pytest.raises(SourceError, match=rf"in/{name} cannot be read.*pack") as caught:
        new_run(inputs).ready()
    assert "pack it anew" in str(caught.value)


# --- options ------------------------------------------------------------------------------

_PLACES = {
    "csv": "org.apache.spark.sql.catalyst.csv.CSVOptions",
    "json": "org.apache.spark.sql.catalyst.json.JSONOptions",
    "text": "org.apache.spark.sql.execution.datasources.text.TextOptions",
    "parquet": "org.apache.spark.sql.execution.datasources.parquet.ParquetOptions",
}
_OF_ALL = "org.apache.spark.sql.execution.datasources.FileIndexOptions"


def names_in_spark(spark: Any, place: str) -> set[str]:
    found = spark._jvm
    for part in place.split("."):
        found = getattr(found, part)
    return set(spark._jvm.scala.jdk.javaapi.CollectionConverters.asJava(found.getAllOptions()))


@pytest.mark.parametrize("format", _PLACES)
def test_each_option_of_sparks_reader_is_known_and_no_other_one_is_taken(spark, tmp_path, format):
    supported = {*file_options._SUPPORTED[format].split()}
    supported |= {"encoding", "charset"} if format != "parquet" else set()
    refused = {name for name, _, _ in file_options._REFUSED}
    known = {name.lower() for name in supported | refused}
    there = names_in_spark(spark, _PLACES[format]) | names_in_spark(spark, _OF_ALL) | {"ignoreCorruptFiles"}
    there -= {"timeZone"} - supported  # of every file format, for modifiedBefore and modifiedAfter
    assert {name.lower() for name in there} <= known, there
    for name in sorted((there | refused) - supported):
        with pytest.raises(TopologyError, match=f"the option {name} for {format}"):
            FileSpout(tmp_path, format, "a string", options={name: "something"})


@pytest.mark.parametrize(
    ("format", "options", "message"),
    [
        ("csv", {"delimeter": ";"}, "delimeter.*id you mean 'delimiter'"),
        ("json", {"header": True}, "header for json"),
        ("csv", {"allowComments": True}, "allowComments for csv"),
        ("csv", {"encoding": "UTF-16"}, "encoding.*UTF-8 or ISO-8859-1"),
        ("csv", {"sep": ",", "SEP": ";"}, "one value of sep"),
        ("parquet", {"mode": "PERMISSIVE"}, "mode for parquet"),
        ("csv", {"multiLine": "TRUE"}, "a row must be a line"),
        ("csv", {"lineSep": "\r"}, "rows end with a newline"),
    ],
)
def test_an_option_that_would_be_ignored_is_refused_when_built(tmp_path, format, options, message):
    with pytest.raises(TopologyError, match=message):
        FileSpout(tmp_path, format, "a string", options=options)


def test_an_option_that_says_what_is_done_anyway_is_taken(tmp_path):
    same = {"multiLine": False, "lineSep": "\n", "INFERSCHEMA": "false", "charset": "utf8", "ignoreMissingFiles": False}
    assert FileSpout(tmp_path, "csv", "a string", options=same).row_format.options == {"encoding": "UTF-8"}


# --- Parquet ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "declared"),
    [
        *(
            (pa.uint64(), "long"),
            (pa.uint32(), "int"),
            (pa.int32(), "short"),
            (pa.int64(), "int"),
            (pa.uint8(), "byte"),
        ),
        *((pa.timestamp("ns"), "long"), (pa.timestamp("us", "UTC"), "long"), (pa.time64("us"), "long")),
        *((pa.date32(), "int"), (pa.string(), "long"), (pa.uint32(), "double"), (pa.int32(), "date")),
    ],
    ids=str,
)
def test_what_spark_would_read_as_another_number_is_named_when_the_file_is_discovered(inputs, new_run, kind, declared):
    """Spark reads times as their numbers, uint32 as a number below 0, and a number as a day."""
    column = pa.array(["t" if pa.types.is_string(kind) else 1], kind)
    made = pa.StructArray.from_arrays([pa.ListArray.from_arrays([0, 1], column)], ["in"])
    nested = pa.MapArray.from_arrays([0, 1], ["k"], made)
    helpers.parquet(inputs, "a.parquet", pa.table({"x": ["t"], "n": column, "m": nested}), version="2.6")
    for path, schema in (("n", f"n {declared}"), (r"m\[\]\.in\[\]", f"m map<string,struct<in:array<{declared}>>>")):
        run = new_run(inputs, "parquet", schema=f"x string, {schema}")
        said = rf"column {path} of .*in/a\.parquet.*found: {re.escape(str(kind))}; .*Correct the schema"
        with pytest.raises(SourceError, match=said):
            run.ready()


@pytest.mark.parametrize(
    ("values", "declared", "rows"),
    [(["t", "u"], "boolean", 1), (pa.array([1, 2], pa.timestamp("ns")), "timestamp", 1_000)],
)
def test_another_type_names_file_and_column_and_says_to_correct_the_schema(inputs, new_run, values, declared, rows):
    helpers.parquet(inputs, "a.parquet", pa.table({"i": [1, 2], "n": values}), version="2.6")
    error = failure(new_run(inputs, "parquet", schema=f"i long, n {declared}", min_rows=rows, max_rows=rows))
    assert "in/a.parquet" in str(error) and "Correct the schema" in str(error) and "estore" not in str(error), error


@pytest.mark.parametrize("rows", [1, 1_000])
def test_two_columns_whose_names_differ_in_case_are_one_answer_whoever_reads(inputs, new_run, rows):
    helpers.parquet(inputs, "a.parquet", pa.table({"ID": [1, 2], "id": [3, 4]}))
    run = new_run(inputs, "parquet", schema="id long", min_rows=rows, max_rows=rows)
    with pytest.raises(SourceError, match=r"in/a\.parquet has several columns.*ID, id"):
        run.ready()


def test_options_of_parquet_are_followed_by_either_reader(inputs):
    path = helpers.parquet(inputs, "a.parquet", pa.table({"i": [1]}))
    plain, rebased = (
        FileSpout(inputs, "parquet", "i long", options=options).row_format
        for options in ({}, {"datetimeRebaseMode": "LEGACY"})
    )
    assert is_exact(str(path), plain) and not is_exact(str(path), rebased)
