"""``trident.functions``: Columns that are written down without a session mean what PySpark's mean."""

from __future__ import annotations

import inspect
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.logger import PySparkLogger
from pyspark.sql import functions as P
from pyspark.sql.types import StructType

from tests.streams.stream_helpers import stream_of
from trident import expr
from trident import functions as F
from trident.coordinators.errors import FieldError, TopologyError
from trident.functions import _columns
from trident.udf.deferred import DeferredColumn, build
from trident.udf.expressions import _analyse, known, to_column
from trident.udf.types import parse_outputs


def test_every_function_of_pyspark_that_makes_a_column_is_here_with_its_signature():
    names = [name for name in P.__all__ if inspect.isfunction(getattr(P, name))]
    assert {"col", "lit", "when", "explode", "transform", "count_distinct", "window"} <= set(_columns())
    assert set(names) - set(_columns()) == {"udf", "pandas_udf", "arrow_udf", "udtf", "arrow_udtf", "broadcast"}
    for name in _columns():
        if name != "expr":
            assert inspect.signature(getattr(F, name)) == inspect.signature(getattr(P, name)), name
            assert name in dir(F)


def test_what_is_wrong_is_told_where_it_is_written():
    with pytest.raises(AttributeError, match="no 'uper'; did you mean 'upper'"):
        _ = F.uper
    with pytest.raises(AttributeError, match="no 'udf': give your function to each"):
        _ = F.udf
    n = F.col("n")
    for wrong, problem in (
        (lambda: F.upper("a", "b"), r"upper cannot be called so: too many.*expected: upper\(col\)"),
        (lambda: F.upper(column="a"), "upper cannot be called so.*'col'"),
        (lambda: n.cast(), r"Column.cast cannot be called so.*expected: cast\(dataType\)"),
        (lambda: n.otherwise(3), "otherwise belongs after when"),
        (lambda: n.over("w"), "over cannot be used in a stream.*group_by"),
        (lambda: n > 3 and n < 5, r"\(n > 3\) is neither true nor false.*Use & for and"),
        (lambda: 3 in n, "Use contains, isin"),
        (lambda: F.transform("xs", lambda *x: x), "one to three Columns"),
        (lambda: F.transform("xs", lambda x: 3), "makes no Column; found: 3"),
        (lambda: expr(" "), "SQL text"),
    ):
        with pytest.raises(TopologyError, match=problem):
            wrong()
    with pytest.raises(TypeError, match="not callable"):
        n.isNul()
    with pytest.raises(TypeError, match="not iterable"):
        list(n)


def test_a_list_that_is_changed_afterwards_changes_nothing():
    words = ["a"]
    column = F.col("word").isin(words)
    words.append("b")
    assert str(column) == "word.isin(a)"


# Of each the columns that either module makes must be one; n, word and pair are columns.
COLUMNS = r"""
n + 1; 1 + n; n - 1; 1 - n; n * 2; 2 * n; n / 2; 2 / n; n % 2; 7 % n; n**2; 2**n; -n
n == 1; n != 1; n < 1; n <= 1; n > 1; n >= 1; n.between(1, 3); n.isin(1, 2); n.isin([1, 2])
n.cast("int"); n.astype("string"); n.try_cast("int"); n.alias("m"); n.isNull(); n.isNotNull()
n.eqNullSafe(None); F.split(word, " ", limit=2)
n.bitwiseAND(1); word.like("a%"); word.rlike("^a"); word.contains("a"); word.startswith("a"); word.substr(1, 2)
F.substring("word", 1, 2); F.concat_ws("-", "word", F.upper(word)); word.transform(F.upper)
pair.getField("a"); pair["a"]; pair.b; pair.withField("c", F.lit(1)); pair.dropFields("a")
F.col("xs")[0]; F.col("xs").getItem(0); F.col("by")["k"]; F.map_filter("by", lambda k, v: v > 1)
F.when(n > 3, "many").when(n > 1, "some").otherwise(F.lit("few"))
F.transform("xs", lambda x: x + n); F.transform("xs", lambda x, i: x * i)
F.aggregate("xs", F.lit(0.0).cast("double"), lambda a, x: a + x, lambda a: a / 2)
F.transform("xs", lambda x: F.exists("xs", lambda y: y > x)); F.zip_with("xs", "xs", lambda a, b: a + b)
F.coalesce(n, F.lit(0)); F.struct("n", word.alias("w")); F.array(n, n); F.create_map("word", "n")
F.sum("n").alias("total"); F.count_distinct("n", word); F.col("n").desc(); F.round(n / 3, scale=2)
F.to_date(F.lit("2024-01-01")); F.date_format(F.lit("2024-01-01").cast("date"), "yyyy"); F.sha2(word, 256)
F.regexp_replace("word", r"\s+", " "); F.explode("xs"); F.posexplode(F.col("xs")); F.greatest(n, F.lit(1))
expr("n + 1"); F.expr("n") + 1
(n > 1) & (n < 5) | ~(n == 3); F.filter("xs", lambda x: (x > 0) & x.isNotNull())
"""
NAMES = ["n", "word", "pair"]


def evaluated(columns: str, names: list[str], F=F, expr=expr) -> list:
    """The columns of a text, with a semicolon between two; those of the rows stand by their names."""
    values = {"F": F, "expr": expr, "lit": F.lit, **{name: F.col(name) for name in names}}
    return [eval(text.strip(), values) for line in columns.strip().splitlines() for text in line.split("; ")]


def test_they_become_the_columns_that_pyspark_makes(spark):
    made, wanted = evaluated(COLUMNS, NAMES), evaluated(COLUMNS, NAMES, P, P.expr)
    assert len(made) == len(wanted)
    for one, column in zip(made, wanted):
        assert isinstance(one, DeferredColumn)
        for copy in (one, pickle.loads(pickle.dumps(one))):
            assert plain(build(copy)) == plain(column)


def plain(column) -> str:
    return re.sub(r"\b([a-z])_\d+\b", r"\1", str(column))  # PySpark numbers the parameters of functions


ROWS = "n long, i int, s short, f float, d double, word string, flag boolean, day date, at timestamp, xs array<int>"


def test_what_is_known_without_spark_is_what_spark_says(spark):
    schema = StructType([*_fields(ROWS)])
    given = """
        n; word.alias("w"); lit(1); lit(1 << 40); lit("a"); lit(1.5); lit(True); n + 1; i + 1; s + i
        i + (1 << 40); 2 * s; 3 - d; f + f; f + d; d * n; -f; n > 3; n == d; word == "a"; flag == True
        day < day; at.between(at, at); n.between(1, 2.5); n.isin(1, 2); word.isin(["a", "b"]); (n > 1) & flag; ~flag
        xs.isNull(); xs.isNotNull(); n.cast("string"); word.cast("double"); flag.cast("int"); word.like("a%")
        word.startswith("a"); F.upper("word"); F.trim(word); F.length("word"); n.eqNullSafe(1)
    """
    simple = evaluated(given, schema.names)
    whole = _analyse(lambda empty: empty.select(*[to_column(one) for one in simple]), schema, "x")
    for one, field in zip(simple, whole.fields, strict=True):
        found = known(one, schema, "select")
        assert found is not None, str(one)
        assert found.type == field.dataType, str(one)
        assert found.name in (None, field.name)
    assert known(F.col("i") + F.col("n") > 3, schema, "x").reads == {"i", "n"}


def _fields(ddl: str):
    from pyspark.sql.types import StructField

    return [StructField(name, kind) for name, kind in parse_outputs(ddl)]


def test_what_is_not_simple_is_left_to_spark():
    schema = StructType(_fields(ROWS))
    columns = """
        F.col("N"); F.col("`n`"); F.col("*"); n / 2; f + n; day > "2024"; F.rand(); expr("n"); F.explode("xs")
        n.alias("a", metadata={}); F.lit(None); F.sum("n"); flag + 1; word > 3; n.isin(); F.lit(1 << 70)
        day.cast("int"); flag.cast("bool"); n.isin((1, 2)); F.col("current_date"); word.like(word)
    """
    for one in evaluated(columns, schema.names):
        assert known(one, schema, "x") is None, str(one)
    with pytest.raises(FieldError, match="`wrd`; expected: one of n, i.*Did you mean 'word'"):
        known(F.col("wrd") > 3, schema, "x")


def test_a_column_of_pyspark_in_front_of_one_of_these_says_what_to_write(spark):
    with pytest.raises(TypeError, match="is not iterable: n; with a Column of pyspark.*trident.functions"):
        P.col("i") + F.col("n")
    assert plain(build(F.col("n") + P.col("i"))) == plain(P.col("n") + P.col("i"))


@pytest.mark.long
def test_streams_take_them_wherever_they_take_columns(spark):
    from trident.streams.run_batch import run_batch

    stream = stream_of("n long, word string")
    shaped = (
        stream.where((F.col("n") > 1) & F.col("word").isNotNull())
        .with_column("m", F.col("n") * 2)
        .with_columns({"big": F.when(F.col("m") > 5, "big").otherwise("small")})
        .each(F.upper("word"), "upper")
        .flat_map(F.explode(F.transform(F.array("n", "m"), lambda x: x + F.lit(1))), "x")
        .select(F.col("x"), (F.col("x") % 2).alias("odd"))
    )
    rows = [(1, "a"), (2, "b"), (3, None), (4, "c")]
    assert sorted(tuple(row) for row in run_batch(shaped, rows)) == [(3, 1), (5, 1), (5, 1), (9, 1)]
    summed = stream.group_by("word").agg(F.sum("n").alias("total"), F.max(F.col("n")).alias("most"))
    assert sorted(tuple(row) for row in run_batch(summed, rows[:2] + rows[:1])) == [("a", 2, 1), ("b", 2, 2)]
    with pytest.raises(FieldError, match="Did you mean 'word'"):
        stream.where(F.upper("wrd") == "A")
    with pytest.raises(TopologyError, match="select: Spark refuses the expression"):
        stream.select("n", F.upper(F.array("n")))
    with pytest.raises(TopologyError, match="Spark refuses the expression"):
        stream.where(F.col("n").cast(3))


README = """\
from trident import FixedBatchSpout, TridentTopology
topology = TridentTopology("readme")
fields = "order_id long, country string, amount double, paid_at timestamp"
payments = topology.new_stream("payments", FixedBatchSpout(fields, [[]]))
"""

FILE = """\
from {home} import functions as F
from trident import Count, DeltaAppend, DeltaMapState, FixedBatchSpout, TridentTopology
topology = TridentTopology("plain")
stream = topology.new_stream("s", FixedBatchSpout("n long, word string", [[(1, "a")]]))
stream = stream.where({condition}).with_column("m", F.col("n") + 1)
stream.group_by("word").persistent_aggregate(DeltaMapState("plain_counts"), Count(), "count")
"""


def test_a_file_with_columns_is_planned_without_a_jvm_and_pysparks_own_are_explained(tmp_path):
    for name, home, condition in (
        ("good", "trident", 'F.col("n") > 0'),
        ("own", "pyspark.sql", 'F.col("n") > 0'),
        ("explodes", "pyspark.sql", 'F.explode("n")'),
        ("wrong", "trident", 'F.col("m") > 0'),
    ):
        Path(tmp_path, f"{name}.py").write_text(FILE.format(home=home, condition=condition))
    page = Path(__file__).parents[2].joinpath("docs", "stream-api.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    Path(tmp_path, "readme.py").write_text(README + next(block for block in blocks if "functions as F" in block))
    script = """
from pyspark import SparkContext
from trident.commands.user_file import load_topology
for name in ("good", "readme", "own", "explodes", "wrong"):
    try:
        print(load_topology(name + ".py")[0].name)
    except Exception as error:
        print(type(error).__name__, error)
assert SparkContext._gateway is None
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    good, readme, own, explodes, wrong = done.stdout.splitlines()
    assert (good, readme) == ("plain", "readme")
    for line, name in ((own, "own"), (explodes, "explodes")):
        assert f"{name}.py:5: a Column of pyspark.sql.functions is made in Spark" in line
        assert "from trident import functions as F" in line and "trident.expr(" in line and "configure_spark" in line
    assert "FieldError" in wrong and "wrong.py:5: filter uses a field that does not exist; found: `m`" in wrong
    assert done.returncode == 0, done.stderr


def test_a_refused_column_is_told_once(spark, monkeypatch):
    told = []
    monkeypatch.setattr(PySparkLogger.getLogger("DataFrameQueryContextLogger"), "callHandlers", told.append)
    with pytest.raises(FieldError, match="`m`"):
        stream_of("n long").where(F.sin("m") > 0)
    assert told == []
