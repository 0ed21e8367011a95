"""Types are read from DDL text and annotations as Spark would, without a JVM."""

from __future__ import annotations

import datetime
import subprocess
import sys
from collections.abc import Generator, Iterable, Iterator
from decimal import Decimal
from typing import Any, NamedTuple, Optional, Union

import pytest
from pyspark.sql.types import ArrayType, LongType, StringType, StructType

from trident.coordinators.errors import FieldError, OutputTypeError
from trident.states.core.names import folded
from trident.udf.types import MISSING, Returned, from_annotation, parse_outputs, parse_type, tuple_parts

DDL = [
    *"string boolean binary byte tinyint short smallint int integer long bigint float real double".split(),
    *"date timestamp timestamp_ntz decimal decimal(7) numeric(38,18) array<string> ARRAY<Array<int>>".split(),
    *("dec(10, 2)", "map<string, array<long>>", "struct<a: int, b string>"),
    "struct<a: struct<b: map<int, decimal(3,1)>>, `odd name`: date>",
]


def test_types_are_read_as_spark_reads_them(spark) -> None:
    for text in DDL:
        assert parse_type(text) == spark.sql(f"select cast(null as {text}) as x").schema["x"].dataType, text
    assert parse_type("struct<>") == StructType([])


def test_outputs_are_read_with_and_without_types() -> None:
    assert parse_outputs("word") == (("word", None),)
    assert parse_outputs("word string, n: long") == (("word", StringType()), ("n", LongType()))
    assert parse_outputs(["word", "n long"]) == (("word", None), ("n", LongType()))
    assert parse_outputs("`odd ``name` array<string>, b") == (("odd `name", ArrayType(StringType())), ("b", None))
    assert parse_outputs(StructType().add("a", "string")) == (("a", StringType()),)
    assert parse_outputs("straße string") == (("straße", StringType()),)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("word strin", "'strin'"),
        ("word string n", "'n'"),
        ("word string,", "comma"),
        ("word array<string", "end"),
        ("word decimal(39,1)", "decimal(39,1)"),
        ("word decimal(3,4)", "decimal(3,4)"),
        ("3 string", "'3'"),
        ("word ?", "'?'"),
        ("word map<string>", "'>'"),
    ],
)
def test_outputs_that_cannot_be_read_say_what_was_found(text: str, found: str) -> None:
    with pytest.raises(OutputTypeError) as caught:
        parse_outputs(text)
    assert found in caught.value.found
    assert text in caught.value.message


def test_an_unknown_type_names_the_nearest() -> None:
    with pytest.raises(OutputTypeError, match="string"):
        parse_outputs("word strng")


@pytest.mark.parametrize("outputs", ["a, a", "a string, A long", ["x", "y", "x"]])
def test_a_name_given_twice_is_an_error(outputs: Any) -> None:
    with pytest.raises(FieldError, match="twice"):
        parse_outputs(outputs)


@pytest.mark.parametrize("outputs", ["", [], "  "])
def test_no_output_is_an_error(outputs: Any) -> None:
    with pytest.raises(FieldError):
        parse_outputs(outputs)


@pytest.mark.parametrize(
    ("annotation", "ddl"),
    [
        (str, "string"),
        (int, "bigint"),
        (float, "double"),
        (bool, "boolean"),
        (bytes, "binary"),
        (datetime.date, "date"),
        (datetime.datetime, "timestamp"),
        (Decimal, "decimal(38,18)"),
        (list[str], "array<string>"),
        (dict[str, list[int]], "map<string,array<bigint>>"),
        (Optional[int], "bigint"),  # noqa: UP045
        (tuple[int, ...], "array<bigint>"),
    ],
)
def test_annotations_have_spark_types(annotation: Any, ddl: str) -> None:
    assert from_annotation(annotation).simpleString() == ddl


@pytest.mark.parametrize("annotation", [object, list, Union[int, str], tuple[int, str], set[int]])
def test_an_annotation_without_a_spark_type_is_an_error(annotation: Any) -> None:
    with pytest.raises(OutputTypeError, match="no Spark type"):
        from_annotation(annotation)


class Pair(NamedTuple):
    word: str
    n: int


def test_return_annotations_say_how_many() -> None:
    for many in (Iterator[str], Iterable[str], list[str], tuple[str, ...], Generator[str, None, None], set[str]):
        assert Returned.of(many) == Returned(True, str)
        assert Returned.of(Optional[many]) == Returned(True, str)  # noqa: UP045
    assert Returned.of(str) == Returned(False, str)
    assert Returned.of(Optional[str]) == Returned(False, str)  # noqa: UP045
    assert Returned.of(tuple[str, int]) == Returned(False, tuple[str, int])
    assert Returned.of(Pair).many is False
    assert Returned.of(dict[str, int]).many is False
    assert Returned.of(Iterator) == Returned(True, MISSING)
    assert Returned.of(MISSING) == Returned.of(Any) == Returned(None, MISSING)


def test_tuples_have_parts() -> None:
    assert tuple_parts(tuple[str, int]) == (str, int)
    assert tuple_parts(Pair) == (str, int)
    assert tuple_parts(tuple[str, ...]) is None
    assert tuple_parts(str) is None


def test_reading_types_starts_no_jvm() -> None:
    code = (
        "from trident.udf.types import parse_outputs; parse_outputs('a array<int>, b decimal(3,1)')\n"
        "from pyspark import SparkContext; assert SparkContext._gateway is None"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("text", "found", "instead"),
    [
        ("k interval day to second", "'interval'", "long"),
        ("c char(3)", "'char'", "string"),
        ("c VARCHAR(3)", "'VARCHAR'", "string"),
        ("v array<variant>", "'variant'", "JSON"),
        ("t time(6)", "'time'", "long"),
        ("s string collate UTF8_LCASE", "'collate'", "without COLLATE"),
        ("n long NOT NULL, m long", "'NOT'", "FilterNull"),
        ("n long comment 'a \\'key\\', of two'", "'comment'", "no COMMENT"),
        ("s struct<a: long NOT NULL>", "'NOT'", "may always be null"),
        ("n long default 1", "'default'", "coalesce"),
    ],
)
def test_what_only_sparks_own_grammar_has_is_refused_with_what_to_write(text: str, found: str, instead: str) -> None:
    with pytest.raises(OutputTypeError) as caught:
        parse_outputs(text)
    assert found in str(caught.value.found) and instead in str(caught.value.expected)
    assert parse_outputs("time string, comment long, not int, interval long") != ()


# The dotless i, the long s, the sign of Kelvin, micro and Greek mu, both small sigmas, the dotted capital I.
ONE_NAME = [("sıra", "sira"), ("s", "ſ"), ("K", "k"), ("µ", "μ"), ("σ", "ς"), ("İ", "i"), ("v", "V"), ("i̇d", "İD")]


@pytest.mark.parametrize(("one", "other"), ONE_NAME)
def test_names_that_are_one_to_spark_are_refused_wherever_fields_meet(one: str, other: str) -> None:
    from pyspark.sql.types import StructField

    from tests.streams.stream_helpers import stream_of
    from trident import functions as F

    both = StructType([StructField(one, LongType()), StructField(other, LongType())])
    left = stream_of(f"`{one}` long, zz long")
    for wrong in (
        lambda: parse_outputs(f"`{one}` long, `{other}` long"),
        lambda: parse_outputs(f"s array<struct<`{one}`: long, `{other}`: long>>"),
        lambda: parse_outputs(both),
        lambda: stream_of(f"`{one}` long, `{other}` long"),
        lambda: left.each("zz", lambda n: n, f"`{other}` long"),
        lambda: left.map(lambda *values: values, f"`{one}` long, `{other}` long"),
        lambda: left.rename({"zz": other}),
        lambda: left.select(one, F.col("zz").alias(other)),
    ):
        with pytest.raises(FieldError):
            wrong()
    assert left.with_column(other, F.lit(1)).fields == (other, "zz")


def test_names_that_are_not_one_to_spark_are_taken() -> None:
    assert len(parse_outputs("strasse long, straße long, e long, é long, o long, ö long")) == 6


def test_spark_agrees_which_names_are_one(spark) -> None:
    for one, other in [*ONE_NAME, ("straße", "strasse"), ("e", "é")]:
        row = spark.sql(f"select named_struct('{one}', 1, 'x', 2) as s").first()
        assert row is not None
        try:
            spark.sql(f"select s.`{other}` from (select named_struct('{one}', 1, 'x', 2) as s)")
            same = True
        except Exception as error:  # of the analysis
            assert "FIELD_NOT_FOUND" in str(error)
            same = False
        # One that Spark tells apart here it may take for one in a place that compares by lower case alone.
        assert not same or folded(one) == folded(other), (one, other)
