"""The one strict reader of JSON that this framework has stored: in files, in znodes, in a table's log, in metadata.

A stored file may have been damaged: by a disk, an editor, a program that took
its folder for its own. Whatever is there, the outcome is a value or one kind of
error with a reason for people; never a reader that hangs on a FIFO, an error of
Python's own, or a value that cannot be written down again.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import stat
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Protocol, TypeVar

# In the metadata of a field that versions before this one did not write: a stored object may lack it.
MAY_BE_MISSING = "may be missing"


class _Dataclass(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Any]]


Record = TypeVar("Record", bound=_Dataclass)

_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)
_SHOWN = 200


class Unreadable(ValueError):
    """Something stored cannot be read; the caller says which file it is and what to do.

    Attributes:
        found: what is there, shortened.
    """

    def __init__(self, reason: str, found: object = None) -> None:
        super().__init__(reason)
        self.found = found


def read_stored(path: str | os.PathLike[str], start: int = 0) -> bytes:
    """The bytes of a regular file, from ``start`` on.

    Raises:
        FileNotFoundError, NotADirectoryError: it is not there.
        Unreadable: it is something else than a file, or cannot be read.
    """
    try:
        # A FIFO without a writer would block an ordinary open for ever.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            mode = os.fstat(handle).st_mode
            if not stat.S_ISREG(mode):
                kind = next((name for is_kind, name in _KINDS if is_kind(mode)), "something else")
                raise Unreadable(f"it is {kind}, not a file", kind)
            with open(handle, "rb", closefd=False) as file:
                file.seek(start)
                return file.read()
        finally:  # also of a folder, which the second open refuses without closing it
            os.close(handle)
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:
        raise Unreadable(error.strerror or str(error), type(error).__name__) from error
    except ValueError as error:
        if isinstance(error, Unreadable):
            raise
        raise Unreadable(str(error), repr(os.fspath(path))) from error  # a NUL in the path


def parse_stored(data: bytes | str, *, halves: bool = False) -> Any:
    """The value that JSON text stands for, strictly.

    Args:
        data: the text.
        halves: take text with half of a surrogate pair: of a user's value, which is his.

    Raises:
        Unreadable: it is not UTF-8 or not JSON, a key is given twice, a number is none (NaN), it is nested too deep,
            or it has half of a surrogate pair, which could not be written down again.
    """
    try:
        text = data.decode("utf-8") if isinstance(data, bytes) else data
        value = json.loads(text, object_pairs_hook=_without_doubles, parse_constant=_refuse_constant)
        if not halves and "\\u" in text:  # only so written can it get through what UTF-8 allows
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise Unreadable("it is nested too deep", shown(data)) from None
    except UnicodeEncodeError:
        raise Unreadable("it has half of a surrogate pair", shown(data)) from None
    except ValueError as error:
        raise Unreadable(str(error), shown(data)) from error
    return value


def as_record(value: Any, kind: type[Record], schema: int | None = None) -> Record:
    """The record that a stored JSON object stands for, strictly: every key is there and no other, each of its type.

    The defaults of a record are for Python code; stored, every key is there, but one that is ``MAY_BE_MISSING``. A
    record that has a ``problem()`` is asked what contradicts itself.

    Args:
        value: as :func:`parse_stored` gives it.
        kind: a dataclass; its fields may be dataclasses, NamedTuples, tuples and mappings.
        schema: what the key "schema" beside the fields must be; None where there is none.

    Raises:
        Unreadable: something about it is not exactly as expected.
    """
    if not isinstance(value, dict):
        raise Unreadable("it is no JSON object", shown(repr(value)))
    found = dict(value)
    if schema is not None:
        given = found.pop("schema", None)
        if type(given) is not int or given != schema:
            raise Unreadable(f'"schema" is {given!r}, not {schema}', f"schema {given!r}")
    import msgspec  # optional: executors of a cluster, which read files too, do not have it

    try:
        record = msgspec.convert(found, kind, strict=True, str_keys=True)
    except msgspec.ValidationError as problem:
        raise Unreadable(str(problem), shown(repr(value))) from None
    difference = _difference(found, record, "$")
    contradiction = record.problem() if hasattr(record, "problem") else None
    wrong: str | None = difference or contradiction
    if wrong:
        raise Unreadable(wrong, shown(repr(value)))
    for name in _fields_of(kind):
        if name not in found:  # msgspec leaves the default to the class, where plain() would not see it
            object.__setattr__(record, name, getattr(record, name))
    return record


def plain(record: Any) -> Any:
    """A record as values that JSON has."""
    import msgspec  # optional: as above

    return msgspec.to_builtins(record, str_keys=True, enc_hook=_as_dict)


def _as_dict(value: Any) -> dict[Any, Any]:
    # A read-only view of a dict (MappingProxyType) is a Mapping that msgspec does not know.
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} cannot be stored")


def _difference(given: Any, record: Any, where: str) -> str | None:
    """The first key that only one of a JSON value and the record made of it has."""
    if given is record:
        return None  # text, numbers, and values of any kind, such as ten thousand receipts: taken over as they are
    pairs: Iterable[tuple[object, Any, Any]] = ()
    if dataclasses.is_dataclass(record):
        kind: Any = type(record)
        fields = _fields_of(kind)
        for key in sorted(given.keys() ^ fields.keys()):
            if key in given:
                return f"the key `{where}.{key}` is unknown"
            if not fields[key].metadata.get(MAY_BE_MISSING):
                return f"the key `{where}.{key}` is missing"
        pairs = ((key, one, getattr(record, key)) for key, one in given.items())
    elif isinstance(record, Mapping):
        pairs = zip(given, given.values(), record.values())
    elif isinstance(record, (list, tuple)):
        pairs = zip(range(len(record)), given, record)
    for key, one, of in pairs:
        if one is not of:  # most are taken over: a path is made only where it may be told
            place = f"{where}.{key}" if isinstance(key, str) else f"{where}[{key}]"
            if found := _difference(one, of, place):
                return found
    return None


@functools.cache
def _fields_of(kind: type) -> dict[str, dataclasses.Field[Any]]:
    return {known.name: known for known in dataclasses.fields(kind)}


def shown(data: bytes | str) -> str:
    """The beginning of it, for an error."""
    return repr(data) if len(data) <= _SHOWN else f"{data[:_SHOWN]!r}… ({len(data)} in all)"


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key is given twice")
    return result


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
