"""Expressions of Spark in a stream: their type, what they read, whether they repeat.

Only Spark knows the type of an expression, so it is asked, by analysing the
expression against an empty DataFrame with the stream's fields. No job runs.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Union

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.types import (
    BooleanType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    NumericType,
    StringType,
    StructField,
    StructType,
)

from trident.coordinators.errors import BatchError, FieldError, OutputTypeError, TopologyError, TridentError
from trident.coordinators.tracebacks import search_causes
from trident.spark.session import session_for_analysis
from trident.states.core.names import backquoted, folded
from trident.udf.deferred import DeferredColumn, build, texts
from trident.udf.types import FRACTIONAL, INTEGRAL, PLAIN, Output, did_you_mean, nullable, parse_type
from trident.workers.arrow_plan import OwnFunction

# Tells the type of simple Columns, and the fields they read, without Spark.
#
# Only Spark knows every rule of its types, and starting it takes ten seconds. For
# the Columns that most topologies are made of (a field, a literal, comparisons,
# ``&``, ``|``, ``~``, sums of numbers, casts between plain types, ``alias``) the
# rules are few; whatever else there is, gives None: Spark is asked. A test
# compares every rule with Spark.


_INTEGRAL = tuple(kind() for kind in INTEGRAL)
_NUMBERS = (*_INTEGRAL, *(kind() for kind in FRACTIONAL))
_COMPARED = tuple(kind() for kind in PLAIN if not issubclass(kind, NumericType))
_COMPARISONS = ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "eqNullSafe")
_SUMS = ("__add__", "__radd__", "__sub__", "__rsub__", "__mul__", "__rmul__")
_OF_TEXT = ("upper", "lower", "trim", "ltrim", "rtrim", "initcap")
_PATTERNS = ("like", "ilike", "rlike")  # PySpark takes a text there, and no Column
_TEXT_TESTS = (*_PATTERNS, "contains", "startswith", "endswith")
# Where there is no field of such a name, Spark takes it for a function.
_NO_FIELDS = (
    "current_date",
    "current_timestamp",
    "current_time",
    "current_user",
    "user",
    "session_user",
    "grouping__id",
)


@dataclass(frozen=True)
class Known:
    """The facts of a Column.

    Attributes:
        name: that Spark would give it; None where only Spark knows.
    """

    type: DataType
    reads: frozenset[str]
    name: str | None = None


class _NeedsSpark(Exception):
    """No rule here covers it."""


def known(column: Any, schema: StructType, what: str) -> Known | None:
    """Returns what is known of a Column over rows of the schema; None: Spark must be asked.

    Raises:
        FieldError: it names a field that does not exist.
    """
    try:
        return _of(column, schema, what)
    except _NeedsSpark:
        return None


def _of(value: Any, schema: StructType, what: str) -> Known:
    if not isinstance(value, DeferredColumn):
        return Known(_literal(value), frozenset())
    name, on, args = value._name, value._on, value._args
    if value._kwargs:
        raise _NeedsSpark
    if on is None:
        return _called(name, args, schema, what)
    base = _of(on, schema, what)
    if name == "alias" and len(args) == 1 and isinstance(args[0], str):
        return Known(base.type, base.reads, args[0])
    if name in ("cast", "astype"):
        return Known(_cast(base.type, args[0]), base.reads)
    if name in ("isNull", "isNotNull"):
        return Known(BooleanType(), base.reads)
    if name in _PATTERNS and not all(isinstance(one, str) for one in args):
        raise _NeedsSpark
    others = [_of(one, schema, what) for one in _flat(name, args)]
    reads = base.reads.union(*(one.reads for one in others))
    return Known(_result(name, base.type, [one.type for one in others]), reads)


def _flat(name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    if name == "isin" and len(args) == 1 and isinstance(args[0], (list, set)):  # of a tuple PySpark makes one value
        return tuple(args[0])
    return args


def _called(name: str, args: tuple[Any, ...], schema: StructType, what: str) -> Known:
    if len(args) != 1:
        raise _NeedsSpark
    given = args[0]
    if name in ("col", "column") and isinstance(given, str):
        return _field(given, schema, what)
    if name == "lit":
        return _of(given, schema, what)
    if name in (*_OF_TEXT, "length"):
        text = _field(given, schema, what) if isinstance(given, str) else _of(given, schema, what)
        if text.type == StringType():
            return Known(IntegerType() if name == "length" else StringType(), text.reads)
    raise _NeedsSpark


def _field(name: str, schema: StructType, what: str) -> Known:
    if any(mark in name for mark in ".`*"):
        raise _NeedsSpark
    near = [field for field in schema.fields if folded(field.name) == folded(name)]
    if not near and not name.startswith("_") and name.lower() not in _NO_FIELDS:  # such as _metadata
        raise FieldError(
            f"{what} uses a field that does not exist",
            found=f"`{name}`",
            expected=f"one of {', '.join(schema.names)}",
            action=did_you_mean(name, schema.names),
        )
    if len(near) != 1 or near[0].name != name:
        raise _NeedsSpark
    return Known(near[0].dataType, frozenset((name,)), name)


def _literal(value: Any) -> DataType:
    if isinstance(value, bool):
        return BooleanType()
    if isinstance(value, int):
        for kind, bits in ((IntegerType(), 31), (LongType(), 63)):
            if -(1 << bits) <= value < 1 << bits:
                return kind
    if type(value) is str:
        return StringType()
    if type(value) is float:
        return DoubleType()
    raise _NeedsSpark


def _cast(source: DataType, target: Any) -> DataType:
    try:
        found = parse_type(target) if isinstance(target, str) else target
    except TridentError:  # a type that our own grammar does not have
        raise _NeedsSpark from None
    if isinstance(target, str) and target.strip().lower() == "bool":  # our own word for it
        raise _NeedsSpark
    plain = (*_NUMBERS, StringType())
    if source in (*plain, BooleanType()) and found in plain or source == found and found in (*plain, *_COMPARED):
        return found
    raise _NeedsSpark


def _result(name: str, base: DataType, others: list[DataType]) -> DataType:
    every = [base, *others]
    if name in _COMPARISONS or name == "isin" and others or name == "between":
        if all(one in _NUMBERS for one in every) or base in _COMPARED and all(one == base for one in others):
            return BooleanType()
    elif name in ("__and__", "__or__", "__rand__", "__ror__", "__invert__"):
        if all(one == BooleanType() for one in every):
            return BooleanType()
    elif name in _SUMS:
        return _sum(every)
    elif name == "__neg__" and base in _NUMBERS:
        return base
    elif name in _TEXT_TESTS and all(one == StringType() for one in every):
        return BooleanType()
    raise _NeedsSpark


def _sum(types: list[DataType]) -> DataType:
    if all(one in _INTEGRAL for one in types):
        return max(types, key=_INTEGRAL.index)
    if all(one == FloatType() for one in types):
        return FloatType()
    if DoubleType() in types and all(one in _NUMBERS for one in types):
        return DoubleType()
    raise _NeedsSpark


@dataclass(frozen=True)
class Analysis:
    """Spark's analysis of an expression.

    Attributes:
        fields: what it gives; several only for a generator such as posexplode.
        deterministic: whether computing it again gives the same.
        generates: whether it makes many rows of one.
        aggregates: whether it makes one row of many.
        all_fields: whether it says ``*``: it must be given exactly the fields of its stream, in their order.
    """

    fields: tuple[StructField, ...]
    reads: frozenset[str]
    deterministic: bool
    generates: bool
    aggregates: bool
    all_fields: bool = False


@dataclass(frozen=True)
class Expression:
    """A Column with the types of its outputs.

    Attributes:
        source: what the user gave: a Column, or one that is still to be made.
        schema: of the rows that it is applied to.
        outputs: the fields that it makes; empty for a filter.
        analysis: None while there has been no session to ask.
        own: of a built-in function: the same without Spark.
    """

    source: Union["Column", DeferredColumn]
    schema: StructType
    outputs: tuple[StructField, ...]
    analysis: Analysis | None
    what: str
    own: OwnFunction | None = None

    def analysed(self) -> Analysis:
        """Asks Spark if that has not been done; there must be a session now."""
        return self.analysis or analyse(self.source, self.schema, self.what)

    @property
    def all_fields(self) -> bool:
        """Tells whether it must be given exactly the fields of its stream, since it may say ``*``."""
        if self.analysis is None:
            given = self.source
            return not isinstance(given, DeferredColumn) or any("*" in text for text in texts(given))
        return self.analysis.all_fields

    @property
    def reads(self) -> frozenset[str]:
        """The fields that it refers to; all, as long as that is not known."""
        everything = self.analysis is None or self.analysis.all_fields
        return frozenset(self.schema.names) if everything else self.analysis.reads  # type: ignore[union-attr]

    @property
    def deterministic(self) -> bool:
        """Tells whether computing it again certainly gives the same."""
        return self.analysis is not None and self.analysis.deterministic

    def columns(self) -> list["Column"]:
        """The Columns to select: the outputs with their names and types."""
        column, found = to_column(self.source), self.analysed()
        if len(found.fields) != len(self.outputs):
            raise _wrong_count(self.what, found, self.outputs)
        if len(self.outputs) > 1:
            return [column.alias(*[field.name for field in self.outputs])]
        output = self.outputs[0]
        if found.fields[0].dataType != output.dataType:
            column = column.cast(output.dataType)
        return [column.alias(output.name)]

    def __str__(self) -> str:
        return str(self.source).removeprefix("Column<'").removesuffix("'>")


def is_expression(value: object) -> bool:
    """Tells whether it is a Column, of PySpark or of ``trident.functions``.

    Raises:
        TopologyError: it is a Column of Spark Connect.
    """
    if isinstance(value, Column) and ".connect." in type(value).__module__:
        raise TopologyError("a Column of Spark Connect cannot be used", expected="a Column of a classic session")
    return isinstance(value, (Column, DeferredColumn))


def to_column(source: Union["Column", DeferredColumn]) -> "Column":
    return build(source) if isinstance(source, DeferredColumn) else source


def resolve(
    kind: str, source: Union["Column", DeferredColumn], outputs: tuple[Output, ...], schema: StructType, what: str
) -> Expression:
    """Finds the output fields of an expression and checks that it suits the operation.

    Args:
        kind: "each", "map", "flat_map" or "filter".
        outputs: names, and types where given; empty for a filter.

    Raises:
        FieldError: it uses a field that does not exist.
        OutputTypeError: its types are not those of the outputs.
        TopologyError: Spark refuses it, or it does not suit the operation.
    """
    lazy = isinstance(source, DeferredColumn) and outputs and all(given is not None for _, given in outputs)
    if lazy and current_session() is None:
        fields = tuple(StructField(name, given, True) for name, given in outputs if given is not None)
        return Expression(source, schema, fields, None, what)
    found = analyse(source, schema, what)
    _check_kind(kind, found, what)
    if kind == "filter":
        if not isinstance(found.fields[0].dataType, BooleanType):
            raise TopologyError(
                f"{what} needs a condition", found=found.fields[0].dataType.simpleString(), expected="a boolean"
            )
        return Expression(source, schema, (), found, what)
    if len(found.fields) != len(outputs):
        raise _wrong_count(what, found, outputs)
    fields = tuple(
        StructField(name, given or actual.dataType, True) for (name, given), actual in zip(outputs, found.fields)
    )
    _check_types(found, fields, what)
    return Expression(source, schema, fields, found, what)


def _check_kind(kind: str, found: Analysis, what: str) -> None:
    if found.aggregates:
        raise TopologyError(
            f"{what} cannot aggregate",
            found="an aggregate expression",
            expected="one over a single row",
            action="use aggregate or persistent_aggregate",
        )
    if found.generates and kind == "map":
        raise TopologyError(
            f"{what} makes one row of each", found="an expression that makes many", action="use flat_map instead"
        )


def _check_types(found: Analysis, outputs: tuple[StructField, ...], what: str) -> None:
    """A generator's output cannot be cast where it is made."""
    for actual, output in zip(found.fields, outputs):
        if actual.dataType != output.dataType and found.generates:
            raise OutputTypeError(
                f"output {output.name!r} of {what} has another type",
                found=actual.dataType.simpleString(),
                expected=output.dataType.simpleString(),
                action="leave the type out, and cast in an each after it",
            )


def _wrong_count(what: str, found: Analysis, outputs: tuple[Any, ...]) -> OutputTypeError:
    return OutputTypeError(
        f"{what} has another number of outputs than its expression",
        found=f"{len(outputs)} outputs",
        expected=f"{len(found.fields)}",
    )


def current_session() -> "SparkSession | None":
    """The session of this process, if there is one that still runs."""
    if SparkContext._active_spark_context is None:
        return None
    return SparkSession.getActiveSession() or SparkSession._instantiatedSession


def analyse(
    source: Union["Column", DeferredColumn], schema: StructType, what: str, needs_name: bool = False
) -> Analysis:
    """Returns what an expression over rows of the schema is.

    A simple one is known without Spark; else Spark is asked, and a session is made when there is none.

    Args:
        needs_name: Spark's own name of the output is needed.
    """
    if isinstance(source, DeferredColumn) and current_session() is None:
        found = known(source, schema, what)
        if found is not None and (found.name is not None or not needs_name):
            field = StructField(found.name or str(source), found.type, True)
            return Analysis((field,), found.reads, deterministic=True, generates=False, aggregates=False)
    return _analyse(lambda empty: empty.select(to_column(source)), schema, what)


def analyse_aggregates(
    sources: Sequence[Union["Column", DeferredColumn]], keys: Sequence[str], schema: StructType, what: str
) -> Analysis:
    """Asks Spark about aggregate expressions over groups of rows of the schema.

    Raises:
        FieldError: one uses a field that does not exist.
        TopologyError: Spark refuses one, such as a column that is neither a key nor aggregated.
    """
    found = _analyse(
        lambda empty: empty.groupBy(*map(backquoted, keys)).agg(*[to_column(one) for one in sources]),
        schema,
        what,
    )
    return replace(found, fields=found.fields[len(keys) :])


def _analyse(make: Callable[["DataFrame"], "DataFrame"], schema: StructType, what: str) -> Analysis:
    session = current_session()
    if session is None:
        session = session_for_analysis()
    empty = session.createDataFrame([], schema)
    try:
        with _without_sparks_log():
            chosen = make(empty)
        plan = chosen._jdf.queryExecution().analyzed()
    except PySparkException as error:
        raise _refused(error, schema, what) from None
    except Py4JError as error:  # an argument of a deferred Column that only the JVM can refuse
        raise TopologyError(f"{what}: Spark refuses the expression: {str(error).splitlines()[0]}") from None
    kinds = [operator.nodeName() for operator in _chain(plan)]
    return Analysis(
        fields=tuple(nullable(chosen.schema).fields),
        reads=frozenset(_names(plan, schema)),
        deterministic=bool(plan.deterministic()) and not _says(plan, _CLOCK),
        generates="Generate" in kinds,
        aggregates="Aggregate" in kinds,
        all_fields=_says(chosen._jdf.queryExecution().logical(), _STAR),
    )


@contextmanager
def _without_sparks_log() -> Iterator[None]:
    """PySpark logs a refused expression as five kilobytes of JSON, beside raising it; here it is told by our error."""
    logger, thread = PySparkLogger.getLogger("DataFrameQueryContextLogger"), threading.get_ident()

    def of_others(record: logging.LogRecord) -> bool:
        return record.thread != thread

    logger.addFilter(of_others)
    try:
        yield
    finally:
        logger.removeFilter(of_others)


# Classes of Spark's expressions, as its JSON names them.
_STAR = re.compile(r"\.Unresolved(DataFrame)?(Star|Regex)")
# One value in a query, and so to Spark deterministic; but a batch may be several queries.
_CLOCK = re.compile(r"\.(Current(Timestamp|Date|Time|BatchTimestamp)|Now|LocalTimestamp|LocalTime)\"")


def _says(plan: Any, pattern: "re.Pattern[str]") -> bool:
    """Tells whether an expression of a plan is of a class."""
    for operator in _chain(plan):
        expressions = operator.expressions().iterator()
        while expressions.hasNext():
            if pattern.search(expressions.next().toJSON()):
                return True
    return False


def _chain(plan: Any) -> Iterator[Any]:
    """The operators of a plan that have one child each."""
    while True:
        yield plan
        children = plan.children()
        if children.isEmpty():
            return
        plan = children.head()


def _names(plan: Any, schema: StructType) -> Iterator[str]:
    """The fields of the schema that any operator of the plan refers to."""
    known = {folded(name): name for name in schema.names}  # Spark takes a name as it is written
    for operator in _chain(plan):
        references = operator.references().iterator()
        while references.hasNext():
            name = known.get(folded(references.next().name()))
            if name is not None:
                yield name


def _refused(error: Any, schema: StructType, what: str) -> TopologyError:
    condition = error.getCondition() or ""
    first = str(error).splitlines()[0]
    if condition.startswith("UNRESOLVED_COLUMN"):
        parameters = error.getMessageParameters() or {}
        return FieldError(
            f"{what} uses a field that does not exist",
            found=parameters.get("objectName", first),
            expected=f"one of {', '.join(schema.names)}",
            action=did_you_mean(parameters.get("objectName", "").strip("`"), schema.names),
        )
    return TopologyError(f"{what}: Spark refuses the expression: {first}")


# Explains a failed Spark job whose expression met a value that it cannot take: a division by zero, a cast.


_log = logging.getLogger("trident.failures")
# Class 22 of the SQL standard's states: the data is at fault. It fails the same way whenever it is computed.
_DATA_FAILURE = re.compile(r"\[([A-Z_0-9.]+)\] ((?:(?!SQLSTATE: )[^\n])*)SQLSTATE: 22\w{3}")


def expression_failure(exc: BaseException, attempt: object) -> BatchError | None:
    """The error behind a failed Spark job, when the values of a row were the cause; else None."""
    match = search_causes(exc, _DATA_FAILURE)
    if match is None:
        return None
    said = f"[{match[1]}] {match[2].strip()}"
    error = BatchError(
        f"an expression of Spark cannot take a value of attempt {attempt}: {said}",
        action="correct the expression or the data",
    )
    error.attempt, error.fingerprint = str(attempt), said
    _log.debug("what Spark says of the failure of %s", attempt, exc_info=exc)
    return error
