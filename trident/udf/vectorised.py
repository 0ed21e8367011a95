"""Functions over whole columns: how they are told from functions over rows, and what they make.

A function is vectorised when it is decorated, or when its annotations say
pandas or Arrow: ``def longer(words: pd.Series) -> pd.Series``.
"""

from __future__ import annotations

import functools
import inspect
import re
import typing
from collections.abc import Iterator
from typing import Any, TypeVar

from pyspark.sql.types import DataType

from trident.coordinators.errors import OutputTypeError, TopologyError
from trident.udf.types import Output, without_optional

F = TypeVar("F")

ARROW, PANDAS = "arrow", "pandas"
_TABLES = ("DataFrame", "Table", "RecordBatch")
_MARK = "__trident_vectors__"
# Where an annotation is text that cannot be resolved, such as of a module imported for type checkers only.
_TEXT = re.compile(r"\b(pd|pandas|pa|pyarrow)\.(Series|DataFrame|\w*Array|Table|RecordBatch)\b")


def arrow_function(function: F) -> F:
    """Marks a function that works on whole columns as Arrow arrays.

    ::

        @trident.arrow_function
        def longer(words):
            return pc.add(pc.utf8_length(words), 1)

        stream.each("word", longer, "n long")

    ``each``, ``map`` and ``filter`` call it once per piece of a batch (up to
    100,000 rows, never none), with one ``pyarrow.Array`` per input field; or, where its one
    parameter is annotated as ``pyarrow.Table`` or ``RecordBatch``, with that.
    It returns an Array or ChunkedArray, for several outputs a tuple of them or
    a Table with their names, of exactly as many rows as it was given. A null is
    a null value: no row is dropped. ``filter`` needs booleans; null is false.

    ``flat_map`` replaces all fields: it returns a Table or RecordBatch of any
    number of rows with the outputs' names (for one output also an Array).

    Types are given with the outputs. A result is cast where no value changes,
    else the batch fails with the output, its type and the one found.
    The same functions without decorator are known by their annotations
    (``-> pyarrow.Array``). Pandas and numpy results are taken too.

    How many rows a piece has is not promised: the rows that a function sees together mean nothing.
    """
    return _marked(function, ARROW)


def pandas_function(function: F) -> F:
    """Marks a function that works on whole columns as pandas Series; else as :func:`arrow_function`.

    It takes one ``pandas.Series`` per input field, or a DataFrame where its one
    parameter is annotated so; it returns a Series, a tuple of them or a DataFrame
    (columns by name; numbered ones by place). The index means nothing.

    Integers and booleans with nulls come as pandas' nullable types (Int64,
    boolean), so that no value changes; a float's null is NaN, and a NaN that
    comes back is a null.
    """
    return _marked(function, PANDAS)


def _marked(function: Any, kind: str) -> Any:
    if not callable(function):
        raise TopologyError(f"{kind}_function marks a function", found=repr(function), expected="a callable")
    try:
        setattr(function, _MARK, kind)
    except AttributeError:  # a bound method, or a function written in C
        function = functools.partial(function)
        setattr(function, _MARK, kind)
    return function


def vectorised(function: Any, inner: Any, what: str) -> tuple[str | None, str]:
    """How a function takes columns: ARROW, PANDAS or None for row by row; and the class of one table of them, or "".

    Args:
        function: as the user gave it.
        inner: the plain function in it.
        what: the operation, for messages.

    Raises:
        TopologyError: its annotations say both, or an iterator of columns.
    """
    if isinstance(function, type):
        return None, ""
    found = _annotated(function, inner, what)
    kinds = {kind for kind, _, _ in found}
    marked = getattr(function, _MARK, None)
    if marked is None and len(kinds) > 1:
        raise TopologyError(
            f"{what} says both pandas and Arrow",
            found=", ".join(sorted(text for _, _, text in found)),
            expected="one of them",
            action="decorate it with pandas_function or arrow_function",
        )
    parameters = [(name, text) for _, name, text in found if name != "return"]
    table = parameters[0][1] if len(parameters) == 1 and parameters[0][1] in _TABLES else ""
    return marked or next(iter(kinds), None), table


def _annotated(function: Any, inner: Any, what: str) -> list[tuple[str, str, str]]:
    """(kind, parameter or "return", class name) of each annotation that says pandas or Arrow.

    A parameter that has its value already, by a default or a partial, takes no field.
    """
    try:
        hints = typing.get_type_hints(inner)
    except Exception:  # a name that is only imported for type checkers, or a C function
        hints = getattr(inner, "__annotations__", {})
    taken = _taken(function)
    found = []
    for name, hint in hints.items():
        if name == "return" or taken is None or name in taken:
            for kind, text in _classes(hint, what):
                found.append((kind, name, text))
    return found


def _taken(function: Any) -> set[str] | None:
    """The parameters that are given fields; None when they cannot be known."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (ValueError, TypeError):
        return None
    return {one.name for one in parameters if one.default is one.empty and one.kind is not one.KEYWORD_ONLY}


def _classes(hint: Any, what: str) -> Iterator[tuple[str, str]]:
    hint = without_optional(hint)
    if isinstance(hint, str):
        for module, text in _TEXT.findall(hint):
            yield PANDAS if module.startswith("pd") or module == "pandas" else ARROW, text
    elif typing.get_origin(hint) is tuple:
        for part in typing.get_args(hint):
            yield from _classes(part, what)
    elif isinstance(hint, type):
        module = hint.__module__.partition(".")[0]
        if module == "pandas" and hint.__name__ in ("Series", "DataFrame"):
            yield PANDAS, hint.__name__
        elif module == "pyarrow" and (hint.__name__.endswith("Array") or hint.__name__ in ("Table", "RecordBatch")):
            yield ARROW, hint.__name__
    elif any(True for part in typing.get_args(hint) for _ in _classes(part, what)):
        raise TopologyError(
            f"{what} cannot take or give columns one after the other",
            found=str(hint),
            expected="one Series, DataFrame, Array or Table for each call",
        )


def vector_outputs(outputs: tuple[Output, ...], name: str, what: str) -> list[tuple[str, DataType]]:
    """The outputs of a vectorised function, all with their types.

    Raises:
        OutputTypeError: one has none.
    """
    fields = []
    for output, given in outputs:
        if given is None:
            raise OutputTypeError(
                f"the type of output {output!r} of {what} is not known",
                found=f"{name} works on whole columns: its annotations do not say what is in them",
                expected="a type with the output",
                action=f"write the output as '{output} long', or what it is",
            )
        fields.append((output, given))
    return fields
