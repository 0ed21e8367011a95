"""Checks the names that become folders, znodes and SQL identifiers, against what is allowed in them."""

from __future__ import annotations

import re
from collections.abc import Collection
from operator import index
from typing import Any

from trident.coordinators.errors import ConfigError, ForeignTable, TableError, TopologyError, described

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,99}")
# Folders of the framework beside those of the topologies; its znodes beside those of streams and batch groups.
_RESERVED = {"topology": ("states", "zookeeper"), "stream": ("identity", "incarnation", "live")}
STREAMS_FOLDER = "streams"
# The folders within a batch group's folder.
GROUP_FOLDERS = frozenset({"manifests", "states", "boundaries", "ledgers"})
_STATE = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,99}")


def check_name(kind: str, name: object) -> str:
    """Returns the name when it may be used, for "topology", "stream" or "state".

    A state's name is also a table's: no "-" in it, and no "__", which this
    framework uses for the tables that it adds.
    """
    pattern = _STATE if kind == "state" else _NAME
    if not isinstance(name, str) or not pattern.fullmatch(name) or (kind == "state" and "__" in name):
        extra = ", without '__'" if kind == "state" else " or -"
        raise TopologyError(
            f"the {kind} name cannot be used",
            found=repr(name),
            expected=f"a letter, then at most 99 letters, digits, _{extra}",
        )
    if name in _RESERVED.get(kind, ()):
        raise TopologyError(
            f"the {kind} name {name!r} is taken by the framework",
            expected=f"not {', '.join(_RESERVED[kind])}",
            action="choose another",
        )
    return name


def backquoted(name: str) -> str:
    """A column's or table's name in an expression of Spark, whatever characters are in it."""
    return "`" + name.replace("`", "``") + "`"


def folded(name: str) -> str:
    """The name as Spark compares it: two are one name to it exactly where this is equal.

    Spark compares columns by Java's ``equalsIgnoreCase``, character by character by upper and by lower case, and in
    places by ``toLowerCase``: to it ``ſ`` is ``s``, and ``ı``, ``İ`` and ``i`` are one.
    """
    return "".join(map(_folded, name.lower().replace("i\u0307", "i")))  # İ in lower case is i and a dot


def _folded(character: str) -> str:
    # Java's are one character each; Python's upper case of ß is two.
    upper = character.upper()
    lower = upper.lower() if len(upper) == 1 else character
    return lower if len(lower) == 1 else character


def check_flag(value: object, what: str) -> None:
    """A setting that is yes or no: a text such as "false" would be taken for yes."""
    if not isinstance(value, bool):
        raise ConfigError(f"{what} is impossible", found=described(value), expected="True or False")


def check_streams_apart(names: Collection[str]) -> None:
    """Streams of one topology whose folders would be one.

    ``<w>/_trident/<topology>/`` has a folder for each batch group, named after a
    stream, and the folder ``streams`` with one for each stream.
    """
    inside = sorted(GROUP_FOLDERS & set(names))
    if STREAMS_FOLDER in names and inside:
        raise TopologyError(
            f"the streams {STREAMS_FOLDER!r} and {inside[0]!r} cannot be in one topology: the folder of the second "
            "would be one of the first's batch group",
            found=f"_trident/<topology>/{STREAMS_FOLDER}/{inside[0]} for both",
            expected="names whose folders are two",
            action="choose another name for one of them",
        )


def check_inside(what: str, path: object) -> str:
    """Returns a relative path that was read from a file when it leads nowhere but below its root."""
    parts = path.split("/") if isinstance(path, str) else [""]
    if any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise TableError(
            f"{what} leads out of its folder, or is no path",
            found=repr(path)[:200],
            expected="a relative path with / between its parts, none of them empty, . or ..",
            action="another program has written to the warehouse; bring the file back from a back-up",
        )
    return str(path)


def other_owner(path: object, owner: tuple[str, str], own: tuple[str, str], txid: int | None) -> ForeignTable:
    """The error for a state whose table another topology, or another batch group of this one, writes.

    Args:
        path: of the table.
        owner, own: topology and batch group.
        txid: up to which the table has transactions; None: not known.
    """
    name = str(path).rpartition("/")[2].partition("__")[0]
    upto = "" if txid is None else f", with transactions up to {txid}"
    if owner[0] == own[0]:
        return ForeignTable(
            f"the table {path} belongs to another batch group of topology {own[0]!r}",
            found=f"{'/'.join(owner)}{upto}",
            expected="/".join(own),
            action="give the state of one of them another name: a table is written by one group. Streams that meet "
            "(merge, join) are one group",
        )
    return ForeignTable(
        f"the table {path} belongs to another topology, {owner[0]!r}: a state's name is its table's in the warehouse, "
        "and a table has one owner",
        found=f"{'/'.join(owner)}{upto}",
        expected="/".join(own),
        action=f"give the state {name!r} of this topology another name, or this topology a warehouse of its own; or, "
        f"if {owner[0]!r} and its tables are wanted no more, `trident reset {owner[0]} --drop-tables`. "
        f"`trident repair {own[0]}` names every such table and changes nothing",
    )


def checked_txid(txid: Any) -> int:
    """A transaction's number as a user gives it.

    Raises:
        ConfigError: it is none.
    """
    try:
        number = 0 if isinstance(txid, bool) else index(txid)
    except TypeError:
        number = 0
    if number < 1:
        raise ConfigError("this is no transaction", found=described(txid), expected="a txid: 1, 2, 3…")
    return number
