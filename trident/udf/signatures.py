"""Users' functions: their names, places, output types, and what their failures become.

Everything that can be known about a function without running it is found
here, when the topology is built: how many values it takes, what types it
returns, whether it can travel to a worker.
"""

from __future__ import annotations

import functools
import inspect
import logging
import re
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pyspark import cloudpickle
from pyspark.sql.types import DataType, DecimalType, TimestampNTZType, TimestampType

from trident.coordinators.errors import (
    ClusterProblem,
    FailedException,
    OutputTypeError,
    TopologyError,
    TridentError,
    UserFunctionError,
)
from trident.coordinators.tracebacks import search_causes
from trident.udf.types import (
    FRACTIONAL,
    INTEGRAL,
    MISSING,
    Output,
    Returned,
    annotation_name,
    from_annotation,
    is_known,
    tuple_parts,
    without_optional,
)
from trident.workers.calls import owner_of
from trident.workers.failures import FAILED, find_report

# Functions over whole columns: how they are told from functions over rows, and what they make.
#
# A function is vectorised when it is decorated, or when its annotations say
# pandas or Arrow: ``def longer(words: pd.Series) -> pd.Series``.


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


# Checks that a user's function can travel to the workers, and finds the part of it that cannot.


# A cause lies a few steps deep; a graph of objects may be endless.
_STEPS_MAX = 8
_PARTS_MAX = 200


def check_serialisable(function: Any, what: str) -> None:
    """Raises TopologyError, naming the captured object that is the cause, when pickling fails.

    The cause is named by the way to it: ``helper → client → lock`` is the
    attribute ``lock`` of ``client``, which the function ``helper`` uses.
    """
    error = _pickling_error(function)
    if error is None:
        return
    path, cause = _cause(function)
    if not path:
        raise TopologyError(
            f"{what} cannot be sent to the workers", found=_short(error), expected="a function that can be pickled"
        )
    reason = _pickling_error(cause) or error
    raise TopologyError(
        f"{what} cannot be sent to the workers: it uses {' → '.join(path)}",
        found=f"{path[-1]} is a {type(cause).__module__}.{type(cause).__qualname__} ({_short(reason)})",
        expected="values that can be pickled",
        action=f"make {path[-1]} inside the function or in the prepare(context) of a class, or use a plain value",
    )


def _pickling_error(value: Any) -> Exception | None:
    try:
        cloudpickle.dumps(value)
    except Exception as error:  # pickling runs the object's own code: anything can come
        return error
    return None


def _cause(function: Any) -> tuple[list[str], Any]:
    """The way to the deepest captured object that cannot be pickled, and that object."""
    path: list[str] = []
    value, seen = function, {id(function)}
    while len(path) < _STEPS_MAX:
        for name, part in _parts(value, top=not path):
            if id(part) not in seen and _pickling_error(part) is not None:
                path.append(name)
                seen.add(id(part))
                value = part
                break
        else:
            break
    return path, value


def _parts(value: Any, top: bool) -> Iterator[tuple[str, Any]]:
    """Returns what an object takes along when it is pickled, by name; at most this many of a container."""
    if isinstance(value, functools.partial):
        for position, item in enumerate(value.args):
            yield f"argument {position + 1} of the partial", item
        yield from value.keywords.items()
        yield getattr(value.func, "__name__", "the function of the partial"), value.func
    elif isinstance(value, types.MethodType):
        if top:  # a method is its object, to its user
            yield from _attributes(value.__self__, "self.")
        yield "self", value.__self__
    elif isinstance(value, types.FunctionType):
        yield from _of_function(value)
    elif isinstance(value, Mapping):
        yield from ((f"[{key!r}]", item) for key, item in list(value.items())[:_PARTS_MAX])
    elif isinstance(value, (list, tuple, set, frozenset)):
        yield from ((f"[{position}]", item) for position, item in enumerate(list(value)[:_PARTS_MAX]))
    elif isinstance(value, type):
        yield from ((name, getattr(item, "__func__", item)) for name, item in vars(value).items() if name != "__dict__")
    else:
        yield from _attributes(value, "self." if top else "")
        yield f"the class {type(value).__name__}", type(value)


def _of_function(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not filled yet, as in a function that calls itself
            continue
    for name in _global_names(function.__code__):
        if name in function.__globals__:
            yield name, function.__globals__[name]
    for item in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
        yield "a default value", item
    yield from vars(function).items()


def _global_names(code: types.CodeType) -> Iterator[str]:
    """The names that the code looks up, with those of functions inside it."""
    yield from code.co_names
    for constant in code.co_consts:
        if inspect.iscode(constant):
            yield from _global_names(constant)


def _attributes(value: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    yield from ((f"{prefix}{name}", item) for name, item in getattr(value, "__dict__", {}).items())
    for cls in type(value).__mro__:
        slots = vars(cls).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if hasattr(value, name):
                yield f"{prefix}{name}", getattr(value, name)


def _short(error: Exception) -> str:
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    return text[:200]


# --- describing a function ---------------------------------------------------------------


@dataclass(frozen=True)
class UserFunction:
    """A user's function with what is known of it before it runs.

    Attributes:
        name: for messages and plans.
        location: "file:line" where it is defined, or where it was given to the topology.
        vectors: "arrow" or "pandas" for a function over whole columns; None: it is called for each row.
        table: the class that it takes its columns as, where it takes them as one; "": one by one.
    """

    call: Callable[..., Any]
    name: str
    location: str
    returned: Any
    generator: bool
    vectors: str | None = None
    table: str = ""


def describe(function: object, operation: str, call_site: str) -> UserFunction:
    """Names a function and reads its return annotation.

    Raises:
        TopologyError: it is not callable, or is a coroutine function.
    """
    if not callable(function):
        raise TopologyError(
            f"{operation} needs a function",
            found=repr(function),
            expected="a callable; or a Column or trident.expr(...), which names its columns itself: "
            "without input fields",
        )
    inner = _inner(function)
    if inspect.iscoroutinefunction(inner) or inspect.isasyncgenfunction(inner):
        raise TopologyError(f"{operation} cannot call an async function", found=function_name(function))
    vectors, table = vectorised(function, inner, f"{operation}({function_name(function)})")
    return UserFunction(
        call=function,
        name=function_name(function),
        location=_users_location(function) or call_site,
        returned=return_annotation(function),
        generator=inspect.isgeneratorfunction(inner),
        vectors=vectors,
        table=table,
    )


def _inner(function: Any) -> Any:
    """The plain function inside a partial, a wrapper, a method or a callable object."""
    while isinstance(function, functools.partial):
        function = function.func
    is_object = callable(function) and not isinstance(function, type) and not inspect.isroutine(function)
    if is_object:
        function = type(function).__call__
    return inspect.unwrap(function) if callable(function) else function


def function_name(function: Any) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    return name.rpartition("<locals>.")[2]


def function_location(function: Any) -> str | None:
    """ "file:line" of a function's definition; None for one written in C."""
    code = getattr(_inner(function), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else None


def _users_location(function: Any) -> str | None:
    """As ``function_location``, but of what a built-in function wraps; None for one of this package."""
    if type(function).__module__.startswith("trident."):
        function = getattr(function, "__wrapped__", None)
        return None if function is None else _users_location(function)
    return function_location(function)


def return_annotation(function: Any) -> Any:
    """The return annotation, MISSING when there is none or it cannot be resolved."""
    if isinstance(function, type):  # int, str, Decimal: calling one makes one
        return function
    inner = _inner(function)
    try:
        return typing.get_type_hints(inner).get("return", MISSING)
    except Exception:  # a name in an annotation that is only imported for type checkers, or a C function
        hint = getattr(inner, "__annotations__", {}).get("return", MISSING)
        return MISSING if isinstance(hint, str) else hint


def check_arity(function: Any, count: int, what: str, more: tuple[str, ...] = (), yields: bool = True) -> None:
    """Raises TopologyError when the function cannot be called with that many positional values.

    Args:
        yields: it may be a generator function.
    """
    check_runs(function, what, yields)
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):  # written in C, without a signature
        return
    try:
        signature.bind(*[None] * (count + len(more)))
    except TypeError:
        fields = [f"{count} field{'' if count == 1 else 's'}"] if count or not more else []
        given = ", ".join([*dict.fromkeys(more), *fields])
        raise TopologyError(
            f"{what} cannot be called with the fields it is given",
            found=f"{function_name(function)}{signature}",
            expected=f"parameters for {given}",
            action="name the fields that it takes as the operation's inputs, or change its parameters",
        ) from None


def check_runs(function: Any, what: str, yields: bool = False) -> None:
    """Raises TopologyError for a function of which a call runs nothing: an async one, or one that yields.

    Its coroutine or generator would be taken for a result; as a condition it counts as true for each row.

    Args:
        yields: a generator's values are taken.
    """
    inner = _inner(function)
    if inspect.iscoroutinefunction(inner) or inspect.isasyncgenfunction(inner):
        raise TopologyError(f"{what} cannot be async", found=function_name(function), expected="a plain function")
    if not yields and inspect.isgeneratorfunction(inner):
        raise TopologyError(
            f"{what} cannot yield",
            found=f"the generator function {function_name(function)}, whose code a call does not run",
            expected="a function that returns its result",
        )


def check_lifecycle(function: Any, what: str) -> None:
    """Raises TopologyError when the ``prepare`` or ``cleanup`` that goes with a function cannot be called."""
    owner = owner_of(function)
    for method, arguments in (("prepare", ("the context",)), ("cleanup", ())):
        call = getattr(owner, method, None)
        if not callable(call):
            continue
        if inspect.iscoroutinefunction(call):
            raise TopologyError(f"{what} cannot call an async {method}", found=f"async def {method}")
        check_runs(call, f"{method} of {what}")
        try:
            inspect.signature(call).bind(*arguments)
        except TypeError:
            raise TopologyError(
                f"{method} of {what} cannot be called",
                found=f"{function_name(call)}{inspect.signature(call)}",
                expected=f"{method}({'context' if arguments else ''})",
                action=_CALLED[method],
            ) from None
        except ValueError:  # written in C, without a signature
            continue


def check_for_workers(function: Any, what: str) -> None:
    """Raises TopologyError when a function, with its ``prepare`` and ``cleanup``, cannot be called on the workers."""
    check_lifecycle(function, what)
    check_serialisable(function, what)


_CALLED = {
    "prepare": "it is called with an OperationContext before the first row of a Spark task",
    "cleanup": "it is called after the last row of a Spark task",
}


def call_site() -> str:
    """ "file:line" of the user's line that called into this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("trident."):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


# --- output types ------------------------------------------------------------------------

_INSTANT = (TimestampType, TimestampNTZType)


def resolve_outputs(
    kind: str, function: UserFunction, outputs: tuple[Output, ...], what: str
) -> tuple[list[tuple[str, DataType]], bool | None]:
    """Output fields with their types, and whether a call returns many rows.

    Types given with the outputs come first, then the annotation's.

    Args:
        kind: "each", "map", "flat_map" or "complete" (of an Aggregator, read as each).

    Returns:
        the fields, and True (an iterable of rows), False (one row) or None (decide by what comes back).

    Raises:
        OutputTypeError: a type is not known, or the annotation contradicts the outputs.
    """
    many, item = _shape(kind, function, outputs, what)
    parts: tuple[Any, ...] | None = tuple_parts(item) if is_known(item) else None
    one = len(outputs) == 1
    if parts is not None:
        # A tuple may be one value only where a struct is asked for.
        fits = outputs[0][1] is not None if one else len(parts) == len(outputs)
    else:
        fits = one or not is_known(item) or without_optional(item) in (tuple, list)
    if not fits:
        raise OutputTypeError(
            f"{what} returns another number of values than it has outputs",
            found=f"{function.name} is annotated with {annotation_name(item)}",
            expected=f"{'one value' if one else f'a tuple of {len(outputs)}'} for {[name for name, _ in outputs]}",
        )
    if one:
        parts = (item,)
    fields = []
    for position, (name, given) in enumerate(outputs):
        annotation = parts[position] if parts else MISSING
        fields.append((name, _output_type(name, given, annotation, function, what)))
    return fields, many


def _shape(kind: str, function: UserFunction, outputs: tuple[Output, ...], what: str) -> tuple[bool | None, Any]:
    """(many, annotation of one row)."""
    whole = without_optional(function.returned)
    returned = Returned.of(whole)
    if function.generator and returned.many is not True:
        if returned.many is False:
            raise OutputTypeError(
                f"{what}: {function.name} is a generator",
                found=f"annotated with {annotation_name(whole)}",
                expected="Iterator[...]",
            )
        returned = Returned(True)
    if kind == "map":
        if function.generator or typing.get_origin(whole) is Iterator or whole is Iterator:
            raise OutputTypeError(
                f"{what} makes one row of each, but {function.name} returns many", action="use flat_map instead"
            )
        return False, whole if is_known(whole) else MISSING
    if kind == "flat_map":
        if returned.many is False:
            raise OutputTypeError(
                f"{what} needs a function that returns an iterable",
                found=f"{function.name} is annotated with {annotation_name(whole)}",
                expected="Iterator[...], Iterable[...] or list[...]",
                action="use map for one row of each",
            )
        return True, returned.item
    if len(outputs) == 1 and returned.many and not function.generator and outputs[0][1] is not None:
        # "words array<string>" with -> list[str]: the list is the value.
        if _type_or_none(whole) == outputs[0][1]:
            return False, whole
    return returned.many, returned.item


def _type_or_none(annotation: Any) -> DataType | None:
    try:
        return from_annotation(annotation)
    except OutputTypeError:
        return None


def _output_type(name: str, given: DataType | None, annotation: Any, function: UserFunction, what: str) -> DataType:
    if given is None:
        if not is_known(annotation):
            raise OutputTypeError(
                f"the type of output {name!r} of {what} is not known",
                found=f"{function.name} ({function.location}) has no return annotation that says it",
                expected="an annotation such as -> Iterator[str], or a type with the output",
                action=f"write the output as '{name} string', or annotate the function",
            )
        return from_annotation(annotation)
    annotated = _type_or_none(annotation) if is_known(annotation) else None
    if annotated is not None and not _fits(annotated, given):
        raise OutputTypeError(
            f"output {name!r} of {what} has two types",
            found=f"{annotated.simpleString()} by the annotation of {function.name}",
            expected=f"{given.simpleString()} by the outputs",
        )
    return given


def _fits(annotated: DataType, given: DataType) -> bool:
    """Tells whether values of the annotated type can be values of the given one."""
    if type(annotated) is type(given):
        return True
    if isinstance(annotated, INTEGRAL):
        return isinstance(given, INTEGRAL + FRACTIONAL + (DecimalType,))
    if isinstance(annotated, FRACTIONAL):
        return isinstance(given, FRACTIONAL)
    return isinstance(annotated, _INSTANT) and isinstance(given, _INSTANT)


# --- failures on their way back ----------------------------------------------------------

_log = logging.getLogger("trident.failures")
_ADDRESS = re.compile(r"0x[0-9a-fA-F]+")


class UsersTraceback(Exception):
    """The frames of a user's function that raised on a worker; the cause of the error that says so, for its text."""

    def __str__(self) -> str:
        return f"\nYour function (most recent call last):\n{self.args[0]}"


def translate_failure(exc: BaseException, attempt: object) -> BaseException:
    """Returns what a failure of a Spark job means, when user code caused it.

    Returns:
        a UserFunctionError or FailedException with ``attempt`` set when a
        user's function raised on a worker, a ClusterProblem when a worker could
        not import what the function is made of; else exc itself. Raise it with
        ``raise found from found.__cause__``: its cause is the user's part of the
        traceback, and Spark's own, which is pages, goes to the debug log.
    """
    report = None if isinstance(exc, (FailedException, UserFunctionError)) else find_report(exc)
    if report is None:
        lacks = None if isinstance(exc, TridentError) else search_causes(exc, _NOT_THERE)
        return exc if lacks is None else _not_importable(lacks, exc, attempt)
    error = users_error(report, f"attempt {attempt}")
    if isinstance(error, UserFunctionError) and not report.get("may_pass"):
        identity_text = f"{report['operation']} {report['location']} {report['place']} {report['error']}"
        error.fingerprint = _ADDRESS.sub("0x", identity_text)
    error.attempt = str(attempt)
    _log.debug("what Spark says of the failure of %s", attempt, exc_info=exc)
    return error


# A module that the workers do not have, or have as it was before.
_NOT_THERE = re.compile(
    r"(?:ModuleNotFoundError: No module named|AttributeError: Can't get attribute '[^'\n]+' on <module) '([^'\n]+)'"
)
_IMPORTS = (
    "a module of yours: import it in the script, from a folder in sys.path, before the topology starts; it is sent to "
    "a cluster then. A package: install it in the Python of every host, or send an environment with python_archive=…"
)


def _not_importable(found: re.Match[str], exc: BaseException, attempt: object) -> ClusterProblem:
    module = found[1]
    error = ClusterProblem(
        f"a Python worker cannot import {module}, which attempt {attempt} needs",
        found=found[0],
        expected=f"{module} as it is in the process that started the topology",
        action=_IMPORTS,
    )
    error.fingerprint = found[0]
    _log.debug("what Spark says of the failure of %s", attempt, exc_info=exc)
    return error


def users_error(
    report: Mapping[str, Any], where: str, action: str = "correct the function or the data"
) -> FailedException | UserFunctionError:
    """The error that a worker's report of a user's function stands for; its cause is the user's traceback."""
    error: FailedException | UserFunctionError
    operation, location = report["operation"], report["location"]
    action = _IMPORTS if _NOT_THERE.match(report["error"]) else action
    if report["kind"] == FAILED:
        error = FailedException(f"{report['error']} (raised by {operation} at {location}, {where})")
    else:
        error = UserFunctionError(
            f"{operation} failed at {location} in {where} {report['place']}: {report['error']}",
            operation=operation,
            location=location,
            found=report.get("found"),
            expected=report.get("expected"),
            action=action,
        )
    error.__cause__ = UsersTraceback(report["frames"]) if report.get("frames") else None
    return error
