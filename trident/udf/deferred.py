"""Columns that are written down before there is a Spark session.

PySpark makes a Column in the JVM, so at module level, before there is a
session, ``F.col("n")`` fails. A :class:`DeferredColumn` is a record of what
was called instead: the name of PySpark's function or of Column's method, and
the arguments. PySpark's own signature is asked when it is written down, so a
wrong name or argument fails on the user's line; the real Column is made
when the topology is planned (:func:`build`).

Nothing here starts a JVM. A record can be pickled, and means the same in
every process.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pyspark.sql import Column, functions

from trident.coordinators.errors import TopologyError
from trident.udf.types import did_you_mean

# How operators are written; every other function is written as a call.
_INFIX = {
    "__add__": "+",
    "__sub__": "-",
    "__mul__": "*",
    "__truediv__": "/",
    "__mod__": "%",
    "__eq__": "=",
    "__ne__": "!=",
    "__lt__": "<",
    "__le__": "<=",
    "__gt__": ">",
    "__ge__": ">=",
    "__and__": "AND",
    "__or__": "OR",
}
_REFLECTED = {
    "__radd__": "__add__",
    "__rsub__": "__sub__",
    "__rmul__": "__mul__",
    "__rtruediv__": "__truediv__",
    "__rmod__": "__mod__",
    "__rand__": "__and__",
    "__ror__": "__or__",
}
_OPERATORS = (*_INFIX, *_REFLECTED, "__pow__", "__rpow__", "__neg__", "__invert__", "__getitem__")
_REFUSED_METHODS = {
    "over": "a stream has no windows of SQL: use group_by with aggregate, tumbling_window or sliding_window",
    "outer": "a stream has no subqueries",
}


class DeferredColumn:
    """A Column of PySpark that is made when the topology is planned.

    It has the operators and methods of ``pyspark.sql.Column``, each with
    PySpark's own signature. As there, a name that is no method is a field of
    a struct: ``F.col("address").city``.

    Raises:
        TopologyError: a method is called with arguments that PySpark's does not take, or cannot be used in a stream.
    """

    __slots__ = ("_name", "_on", "_args", "_kwargs")
    __hash__ = None  # type: ignore[assignment]  # `==` makes a Column, as in PySpark

    def __init__(
        self, name: str, on: DeferredColumn | None, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> None:
        self._name, self._on = name, on
        self._args = tuple(_recorded(one, name) for one in args)
        self._kwargs = {key: _recorded(one, name) for key, one in (kwargs or {}).items()}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # what pickle, copy and notebooks ask every object for
            raise AttributeError(f"a Column has no attribute {name!r}")
        method = _methods().get(name)
        if method is None:
            return self[name]  # type: ignore[index]  # as every operator, it is set below

        @functools.wraps(method)
        def call(*args: Any, **kwargs: Any) -> DeferredColumn:
            return self._call(name, *args, **kwargs)

        return call

    def _call(self, name: str, *args: Any, **kwargs: Any) -> DeferredColumn:
        if name in _REFUSED_METHODS:
            raise TopologyError(
                f"{name} cannot be used in a stream", found=f"{self}.{name}(…)", action=_REFUSED_METHODS[name]
            )
        check_call(f"Column.{name}", _methods()[name], (self, *args), kwargs, own=1)
        if name in ("when", "otherwise") and self._name != "when":
            raise TopologyError(f"{name} belongs after when", found=str(self), expected="F.when(condition, value)")
        return DeferredColumn(name, self, args, kwargs)

    def __iter__(self) -> Iterator[Any]:
        # PySpark asks for it when one of its own Columns stands in front.
        raise TypeError(
            f"a Column is not iterable: {self}; with a Column of pyspark.sql.functions write that one with "
            "trident.functions, too"
        )

    def __contains__(self, item: object) -> bool:
        raise TopologyError("a Column does not support `in`", action="use contains, isin or array_contains")

    def __bool__(self) -> bool:
        raise TopologyError(
            f"the Column {self} is neither true nor false while the topology is written",
            action="use & for and, | for or, ~ for not, each comparison in parentheses",
        )

    def __str__(self) -> str:
        return _text(self)

    def __repr__(self) -> str:
        return f"Column<'{self}'>"


class Expr(DeferredColumn):
    """A SQL expression over the fields of a stream, made before there is a session.

    The same as ``pyspark.sql.functions.expr(text)``, which needs a session.
    """

    __slots__ = ()

    def __init__(self, text: str) -> None:
        if not isinstance(text, str) or not text.strip():
            raise TopologyError("an expression is SQL text", found=repr(text), expected="text such as 'upper(word)'")
        super().__init__("expr", None, (text,))

    @property
    def text(self) -> str:
        return self._args[0]

    def __reduce__(self) -> Any:
        return Expr, (self.text,)

    def __repr__(self) -> str:
        return f"expr({self.text!r})"


def expr(text: str) -> Expr:
    """A SQL expression, wherever a Column is taken: ``expr("upper(word)")``.

    It stays native to Spark and needs no session to be written down. Its type
    is found by Spark when a session is there (one is started if need be),
    unless the outputs name it: ``.each(expr("length(word)"), "n int")``.
    """
    return Expr(text)


class Variable(DeferredColumn):
    """A parameter of a function that is given to ``transform``, ``filter`` and their like."""

    __slots__ = ()

    def __init__(self, name: str) -> None:
        super().__init__(name, None)

    def __reduce__(self) -> Any:
        return Variable, (self._name,)


class Lambda:
    """A function of Columns, written down: its parameters, and what it makes of them."""

    def __init__(self, parameters: tuple[Variable, ...], body: DeferredColumn, name: str) -> None:
        self.parameters, self.body, self.name = parameters, body, name


def _operator(name: str) -> Callable[..., DeferredColumn]:
    def call(self: DeferredColumn, *args: Any) -> DeferredColumn:
        return DeferredColumn(name, self, args)

    call.__name__ = name
    return call


for _one in _OPERATORS:
    setattr(DeferredColumn, _one, _operator(_one))
del _one


@functools.cache
def _methods() -> dict[str, Any]:
    """The public methods of PySpark's Column."""
    return {name: value for name, value in vars(Column).items() if callable(value) and not name.startswith("_")}


# --- writing down --------------------------------------------------------------------------


def check_call(what: str, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], own: int = 0) -> None:
    """Raises TopologyError when PySpark's function cannot be called so; ``own``: leading arguments that we give."""
    signature = _signature(function)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        shown = signature.replace(
            parameters=[one.replace(annotation=one.empty) for one in list(signature.parameters.values())[own:]],
            return_annotation=signature.empty,
        )
        name = what.rpartition(".")[2]
        raise TopologyError(f"{what} cannot be called so: {error}", expected=f"{name}{shown}") from None


@functools.cache
def _signature(function: Any) -> inspect.Signature:
    return inspect.signature(function)


def _recorded(value: Any, where: str) -> Any:
    """An argument as it is kept: a value that the user may change is copied, a function of Columns is called once."""
    if isinstance(value, (DeferredColumn, str, type)) or not callable(value) and not isinstance(value, _CONTAINERS):
        return value
    if isinstance(value, _CONTAINERS):
        return _mapped(value, lambda one: _recorded(one, where))
    is_function = inspect.isroutine(value) or isinstance(value, functools.partial)
    return _lambda(value, where) if is_function else value


_CONTAINERS = (list, tuple, set, frozenset, dict)


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """A container with each of its values changed; one without a Column or function in it stays what it is."""
    if isinstance(value, dict):
        return {key: change(one) for key, one in value.items()}
    changed = [change(one) for one in value]
    if all(one is before for one, before in zip(changed, value)) and not isinstance(value, list):
        return value  # such as a Row, which is a tuple with names
    kind = next(kind for kind in _CONTAINERS if isinstance(value, kind))
    return kind(changed)


def _lambda(function: Callable[..., Any], where: str) -> Lambda:
    name = getattr(function, "__name__", "function")
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # written in C
        parameters = []
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if not 1 <= len(parameters) <= 3 or any(one.kind not in positional for one in parameters):
        raise TopologyError(
            f"{where} needs a function of one to three Columns", found=name, expected="such as lambda x: x + 1"
        )
    variables = tuple(Variable(one.name) for one in parameters)
    body = function(*variables)
    if not isinstance(body, DeferredColumn):
        raise TopologyError(
            f"the function that {where} is given makes no Column",
            found=repr(body),
            expected="a Column of trident.functions, such as x + 1 or F.lit(True)",
        )
    return Lambda(variables, body, name)


# --- making the real one -------------------------------------------------------------------


def build(column: DeferredColumn) -> "Column":
    """The Column of PySpark; there must be a session.

    Raises:
        PySparkException, Py4JError: PySpark refuses an argument.
    """
    return _build(column, {})


def _build(value: Any, variables: Mapping[int, "Column"]) -> Any:
    if isinstance(value, Variable):
        return variables[id(value)]
    if isinstance(value, DeferredColumn):
        args = [_build(one, variables) for one in value._args]
        kwargs = {key: _build(one, variables) for key, one in value._kwargs.items()}
        if value._on is not None:
            return getattr(_build(value._on, variables), value._name)(*args, **kwargs)

        return getattr(functions, value._name)(*args, **kwargs)
    if isinstance(value, Lambda):
        return _function_of(value, variables)
    if isinstance(value, _CONTAINERS):
        return _mapped(value, lambda one: _build(one, variables))
    return value


def _function_of(value: Lambda, variables: Mapping[int, "Column"]) -> Callable[..., "Column"]:
    def function(*columns: "Column") -> "Column":
        own = {id(one): column for one, column in zip(value.parameters, columns)}
        return _build(value.body, {**variables, **own})

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter(one._name, kind) for one in value.parameters]
    function.__name__ = value.name
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # PySpark counts by it
    return function


# --- looking at it -------------------------------------------------------------------------


def texts(value: Any) -> Iterator[str]:
    """All texts in a record: names of fields, SQL, literals."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Lambda):
        yield from texts(value.body)
    elif isinstance(value, DeferredColumn):
        for one in (value._on, *value._args, *value._kwargs.values()):
            yield from texts(one)
    elif isinstance(value, dict):
        yield from texts(list(value.values()))
    elif isinstance(value, _CONTAINERS):
        for one in value:
            yield from texts(one)


def _text(value: Any) -> str:
    if isinstance(value, Variable):
        return value._name
    if isinstance(value, Lambda):
        names = ", ".join(one._name for one in value.parameters)
        return f"{names} -> {_text(value.body)}"
    if not isinstance(value, DeferredColumn):
        if isinstance(value, (list, tuple)):
            return ", ".join(_text(one) for one in value)
        return value if isinstance(value, str) else str(value).removeprefix("Column<'").removesuffix("'>")
    name, args = value._name, [*value._args, *value._kwargs.values()]
    if value._on is None:
        if name in ("col", "column", "expr", "lit") and len(args) == 1:
            return _text(args[0])
        return f"{name}({', '.join(_text(one) for one in args)})"
    on = _text(value._on)
    if name in _REFLECTED:
        return f"({_text(args[0])} {_INFIX[_REFLECTED[name]]} {on})"
    if name in _INFIX:
        return f"({on} {_INFIX[name]} {_text(args[0])})"
    if name in ("cast", "astype"):
        return f"CAST({on} AS {args[0] if isinstance(args[0], str) else args[0].simpleString()})"
    if name in ("alias", "name"):
        return f"{on} AS {', '.join(_text(one) for one in args)}"
    if name in ("__getitem__", "getItem", "getField"):
        return f"{on}[{_text(args[0])}]"
    if name in ("__neg__", "__invert__"):
        return f"({'-' if name == '__neg__' else 'NOT '}{on})"
    return f"{on}.{name.strip('_')}({', '.join(_text(one) for one in args)})"


def unknown_name(name: str, known: list[str]) -> str:
    """The error's text for a function that PySpark does not have."""
    question = did_you_mean(name, known)
    return f"pyspark.sql.functions has no {name!r}" + (f"; {question}" if question else "")
