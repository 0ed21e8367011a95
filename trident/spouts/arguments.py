"""Checks arguments of spouts when they are given, and metadata of batches when they are read back."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from trident.coordinators.errors import SourceError, TopologyError, TridentError, described
from trident.coordinators.stored_json import Record, Unreadable, as_record
from trident.spouts.contracts import Json

Refusal = type[TridentError]


def whole(name: str, value: Any, least: int, error: Refusal = TopologyError) -> int:
    """A whole number.

    Raises:
        TridentError: of the type ``error``: it is none, or below ``least``.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        found = f"{name.split()[0]}={described(value)}"
        raise error(f"{name} cannot be used", found=found, expected=f"a whole number from {least} on")
    return value


def seconds(name: str, value: Any, zero: bool = True, error: Refusal = TopologyError) -> float:
    """A time in seconds, finite; ``zero`` says whether it may be 0. Raises as :func:`whole`."""
    usable = isinstance(value, (int, float)) and not isinstance(value, bool)
    try:
        usable = usable and math.isfinite(float(value)) and (value >= 0 if zero else value > 0)
    except OverflowError:
        usable = False
    if not usable:
        raise error(
            f"{name} cannot be used",
            found=f"{name.split()[0]}={described(value)}",
            expected="seconds, a finite number from 0 on" if zero else "seconds, a finite number over 0",
        )
    return float(value)


def flag(name: str, value: Any, error: Refusal = TopologyError) -> bool:
    """True or False; a text such as "false" would be true. Raises as :func:`whole`."""
    if not isinstance(value, bool):
        raise error(f"{name} cannot be used", found=described(value), expected="True or False")
    return value


def path(name: str, value: Any, error: Refusal = TopologyError) -> str:
    """A path as text. Raises as :func:`whole`."""
    try:
        text = os.fspath(value)
    except TypeError:
        text = None
    if not isinstance(text, str) or not text or "\0" in text:
        raise error(f"{name} cannot be used", found=described(value), expected="a path")
    return text


def options(name: str, value: Any) -> dict[str, Any]:
    """Spark's options by name; None means none.

    Raises:
        TopologyError: they are no mapping from names.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise TopologyError(
            f"the options of {name} cannot be used", found=described(value), expected="a mapping from names to values"
        )
    return dict(value)


def foreign_metadata(metadata: Json, spout: str, expected: str) -> SourceError:
    """The error for metadata that this kind of spout did not write."""
    return SourceError(
        f"the metadata of a batch was not written by {spout}",
        found=repr(metadata)[:200],
        expected=expected,
        action="give the stream another tx_id, or begin again with `trident reset NAME`",
    )


def is_whole(value: Any, least: int = 1) -> bool:
    """Tells whether a value is a whole number from ``least`` on."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def whole_of(metadata: Json, key: str, least: int, spout: str, expected: str) -> int:
    """A whole number that metadata holds under a key.

    Raises:
        SourceError: it holds none.
    """
    value: Any = metadata.get(key) if isinstance(metadata, dict) else None
    if is_whole(value, least):
        return value
    raise foreign_metadata(metadata, spout, expected)


def read_metadata(metadata: Json, kind: type[Record], spout: str) -> Record:
    """The metadata of a batch as the record that a kind of spout stores.

    Raises:
        SourceError: another spout wrote it.
    """
    try:
        return as_record(metadata, kind)
    except Unreadable as problem:
        expected = f"an object with {', '.join(one.name for one in fields(kind))} ({problem})"
        raise foreign_metadata(metadata, spout, expected) from None


def read_commit_data(commit_data: Json, kind: type[Record], spout: str) -> Record:
    """The commit data of a decided attempt as the record that a kind of spout stores.

    Raises:
        SourceError: it is no such record.
    """
    try:
        return as_record(commit_data, kind)
    except Unreadable:
        raise SourceError(f"this is not the commit data of {spout}", found=repr(commit_data)[:200]) from None
