"""The arguments of a stream's operations, as users may write them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Union

from pyspark.sql import Column
from pyspark.sql.types import StructType

from trident.coordinators.errors import FieldError
from trident.planning.nodes import Names, field_names
from trident.udf.deferred import DeferredColumn
from trident.udf.types import check_distinct

Function = Callable[..., Any]
Outputs = Union[str, Iterable[str], StructType]
Columnar = Union["Column", DeferredColumn]
NOT_GIVEN: Any = object()


def shifted(inputs: Any, aggregator: Any, outputs: Any) -> tuple[Any, Any, Any]:
    """(inputs, aggregator, outputs), where inputs may have been left out."""
    if outputs is NOT_GIVEN:
        inputs, aggregator, outputs = (), inputs, aggregator
    if outputs is None:
        raise FieldError("the aggregate has no output field", expected="a name behind the aggregator")
    return inputs, aggregator, outputs


def as_columns(*given: Any) -> list[Any]:
    """The Columns of ``agg``, which stand where the other form has its arguments."""
    return [one for one in given if one is not None and one is not NOT_GIVEN]


def flat(fields: tuple[Names, ...], what: str) -> tuple[str, ...]:
    """The names in ``("a", "b, c")``, at least one and each once."""
    names = [name for given in fields for name in field_names(given, what)]
    if not names:
        raise FieldError(f"{what} has no fields", expected="at least one field name")
    check_distinct(names, f"the fields of {what}")
    return tuple(names)
