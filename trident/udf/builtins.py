"""Trident's built-in functions and filters: FilterNull, Equals, Negate, TrueFilter, Split, Debug (docs/semantics.md 4).

Each is a function as a user would write it, called row by row on the workers, so imports are light here. Most know
an expression of Spark that gives the same rows, too; ``trident.operations.row_functions`` says when it is used.
"""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql.types import BooleanType, DataType, StringType, StructField

from trident.coordinators.errors import OutputTypeError, TopologyError
from trident.states.core.names import backquoted
from trident.states.core.typed_values import python_value
from trident.udf.signatures import describe
from trident.udf.types import INTEGRAL, PLAIN
from trident.workers.arrow_plan import AllEqual, Always, Condition, NoneIsNull, Not


@dataclass(frozen=True)
class NativeForm:
    """The expression that gives the same rows as a built-in function.

    Attributes:
        text: SQL over the inputs alone, deterministic.
        type: of what it gives.
        generates: whether it makes any number of rows of one.
        own: the same without Spark, a condition or the separator of Split; None: there is no such form.
    """

    text: str
    type: DataType
    generates: bool = False
    own: Condition | str | None = None


class FilterNull:
    """A filter that keeps the rows in which no input is null: ``filter("word", FilterNull())``."""

    def __call__(self, *values: Any) -> bool:
        return all(value is not None for value in values)

    def __repr__(self) -> str:
        return "FilterNull()"

    def native_form(self, fields: Sequence[StructField]) -> NativeForm | None:
        return _condition([f"{backquoted(field.name)} IS NOT NULL" for field in fields], NoneIsNull())


class TrueFilter:
    """A filter that keeps every row."""

    def __call__(self, *values: Any) -> bool:
        return True

    def __repr__(self) -> str:
        return "TrueFilter()"

    def native_form(self, fields: Sequence[StructField]) -> NativeForm | None:
        return _condition([], Always())


class Equals:
    """A filter that keeps the rows in which all inputs are equal: ``filter("a, b", Equals())``.

    Nulls are equal to nulls only, and so is NaN to NaN. Values of different
    types are equal when Python says so: 1 and 1.0 are, 1 and "1" are not.
    """

    def __call__(self, first: Any, second: Any, *more: Any) -> bool:
        return all(_same(first, other) for other in (second, *more))

    def __repr__(self) -> str:
        return "Equals()"

    def native_form(self, fields: Sequence[StructField]) -> NativeForm | None:
        kinds = [field.dataType for field in fields]
        alike = all(kind == kinds[0] for kind in kinds) and isinstance(kinds[0], PLAIN)
        if not alike and not all(isinstance(kind, INTEGRAL) for kind in kinds):
            return None
        if isinstance(kinds[0], StringType) and kinds[0] != StringType():  # with a collation
            return None
        parts = [f"{backquoted(fields[0].name)} <=> {backquoted(other.name)}" for other in fields[1:]]
        return _condition(parts, AllEqual())


class Negate:
    """A filter that keeps what another filter drops: ``filter("word", Negate(FilterNull()))``.

    Args:
        inner: a built-in filter, or a function of yours that returns True or False; None counts as False.

    Raises:
        TopologyError: it is no function over rows.
    """

    def __init__(self, inner: Callable[..., Any]) -> None:
        described = describe(inner, "Negate", "")
        if described.vectors:
            raise TopologyError(
                "Negate takes a filter over rows",
                found=f"{described.name}, which works on whole columns",
                expected="a function that is called for each row",
                action="negate the column in the function",
            )
        self._inner = inner
        self.__qualname__ = f"Negate({described.name})"

    @property
    def __wrapped__(self) -> Any:
        """For ``prepare`` and ``cleanup``."""
        return self._inner

    @property
    def __signature__(self) -> inspect.Signature | None:
        try:
            return inspect.signature(self._inner)
        except (ValueError, TypeError):  # written in C
            return None

    def __call__(self, *values: Any) -> bool:
        given: Any = self._inner(*values)
        kept = python_value(given)
        # Anything else is refused where the condition is used, and Python's ``not`` would hide it.
        return not kept if kept is None or isinstance(kept, bool) else given

    def __repr__(self) -> str:
        return f"Negate({self._inner!r})"

    def native_form(self, fields: Sequence[StructField]) -> NativeForm | None:
        form = form_of(self._inner, fields)
        if form is None:
            return None
        own = Not(form.own) if isinstance(form.own, Condition) else None
        return NativeForm(f"NOT ({form.text})", BooleanType(), own=own)


class Split:
    """A function that gives the parts of a text: ``each("sentence", Split(), "word")``.

    Empty parts are left out, as in Trident; a null text has none.

    Args:
        separator: what stands between the parts, taken literally.

    Raises:
        TopologyError: the separator is empty or no text.
    """

    def __init__(self, separator: str = " ") -> None:
        if not isinstance(separator, str) or not separator:
            raise TopologyError("Split needs a separator", found=repr(separator), expected="text such as ' ' or ','")
        self._separator = separator

    def __call__(self, text: str) -> Iterator[str]:
        if text is not None:
            yield from filter(None, text.split(self._separator))

    def __repr__(self) -> str:
        return f"Split({self._separator!r})"

    def native_form(self, fields: Sequence[StructField]) -> NativeForm | None:
        (field,) = fields
        if not isinstance(field.dataType, StringType):
            raise OutputTypeError(
                f"Split cannot split field {field.name!r}", found=field.dataType.simpleString(), expected="string"
            )
        parts = f"split({backquoted(field.name)}, {_pattern(self._separator)})"
        own = self._separator if field.dataType == StringType() else None
        return NativeForm(f"explode(filter({parts}, part -> part != ''))", StringType(), generates=True, own=own)


class Debug:
    """Prints each row on the standard error of the Spark worker, and keeps it: ``peek(Debug("words"))``.

    For ``filter`` and ``peek``. It prints ``words: 'a', 1``, one line a row.
    The line is printed again when a batch or a Spark task is tried again.

    Args:
        name: stands in front.
    """

    def __init__(self, name: str | None = None) -> None:
        self._name = "Debug" if name is None else name

    def __call__(self, *values: Any) -> bool:
        # One write: tasks print at the same time. A worker's standard output may belong to Spark.
        sys.stderr.write(f"{self._name}: {', '.join(map(repr, values))}\n")
        return True

    def __repr__(self) -> str:
        return f"Debug({self._name!r})"


_BUILT_IN = (FilterNull, TrueFilter, Equals, Negate, Split)


def form_of(function: Any, fields: Sequence[StructField]) -> NativeForm | None:
    """The expression of a built-in function; None for any other."""
    # The classes themselves: one that is derived from them may mean something else.
    return function.native_form(fields) if type(function) in _BUILT_IN else None


def _condition(parts: Sequence[str], own: Condition) -> NativeForm:
    return NativeForm(" AND ".join(f"({part})" for part in parts) or "true", BooleanType(), own=own)


def _same(a: Any, b: Any) -> bool:
    if a is None or b is None:
        return a is b
    if isinstance(a, float) and isinstance(b, float) and math.isnan(a):
        return math.isnan(b)
    return bool(a == b)


def _pattern(text: str) -> str:
    """A regular expression for exactly the text, in SQL."""
    if text.isprintable() and not set(text) & set("\\^$.|?*+()[]{}'"):
        return f"'{text}'"
    # In hexadecimal: the meaning of a backslash in SQL depends on a setting of the session.
    pattern = "".join(one if one.isalnum() else f"\\{one}" for one in text)
    return f"decode(X'{pattern.encode().hex()}', 'UTF-8')"
