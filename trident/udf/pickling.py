"""Checks that a user's function can travel to the workers, and finds the part of it that cannot."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Iterator, Mapping
from typing import Any

from pyspark import cloudpickle

from trident.coordinators.errors import TopologyError

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
