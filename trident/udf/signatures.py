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
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql.types import DataType, DecimalType, TimestampNTZType, TimestampType

from trident.coordinators.causes import search_causes
from trident.coordinators.errors import (
    ClusterProblem,
    FailedException,
    OutputTypeError,
    TopologyError,
    TridentError,
    UserFunctionError,
)
from trident.udf.pickling import check_serialisable as check_serialisable
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
from trident.udf.vectorised import vectorised
from trident.workers.lifecycle import owner_of
from trident.workers.reports import FAILED, find_report

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
    "cleanup": "it is called behind the last row of a Spark task",
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
        told = f"{report['operation']} {report['location']} {report['place']} {report['error']}"
        error.fingerprint = _ADDRESS.sub("0x", told)
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
