"""``from trident import functions as F``: the functions of PySpark, before there is a Spark session.

Every function of ``pyspark.sql.functions`` that makes a Column is here, by its
name and with its signature: ``F.col("amount") > 0``, ``F.explode("words")``,
``F.when(F.col("n") > 3, "many").otherwise("few")``, ``F.transform("xs", lambda x: x + 1)``.
Their results can stand at module level: they are written down, and become
Columns of PySpark when the topology is planned. Streams take it wherever they
take a Column.

Not here: ``udf`` and its like (give your function to ``each``, ``map`` or
``filter``), ``broadcast`` (of DataFrames); and ``over`` is refused.

Raises:
    AttributeError: PySpark has no function of that name.
    TopologyError: a function is called with arguments that PySpark's does not take.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column, functions

from trident.udf.deferred import DeferredColumn, check_call, unknown_name

if TYPE_CHECKING:  # for editors and type checkers they are PySpark's
    from pyspark.sql.functions import *  # noqa: F403
else:
    from trident.udf.deferred import expr as expr

_YOURS = "give your function to each, map, flat_map or filter: they take it as it is"
_REFUSED = {
    "udf": _YOURS,
    "pandas_udf": f"{_YOURS}; trident.pandas_function is called with whole columns",
    "arrow_udf": f"{_YOURS}; trident.arrow_function is called with whole columns",
    "udtf": _YOURS,
    "arrow_udtf": _YOURS,
    "broadcast": "it takes a DataFrame; Stream.broadcast multiplies the rows",
}


@functools.cache
def _columns() -> dict[str, Any]:
    """PySpark's functions that make a Column."""
    found = {}
    for name in functions.__all__:
        function = getattr(functions, name)
        if inspect.isfunction(function) and inspect.signature(function).return_annotation in (Column, "Column"):
            found[name] = function
    return found


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return sorted(_columns())
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    function = _columns().get(name)
    if function is None:
        if name in _REFUSED:
            raise AttributeError(f"trident.functions has no {name!r}: {_REFUSED[name]}")
        raise AttributeError(unknown_name(name, list(_columns())))

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> DeferredColumn:
        check_call(name, function, args, kwargs)
        return DeferredColumn(name, None, args, kwargs)

    globals()[name] = call  # from now on without this function
    return call


def __dir__() -> list[str]:
    return sorted({*globals(), *_columns()})
