"""Names that become folders, znodes and SQL identifiers are allow-listed here."""

from __future__ import annotations

import re
from collections.abc import Collection

from trident.coordinators.errors import TableError, TopologyError

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,99}")
# Folders of the framework beside those of the topologies; its znodes beside those of streams and batch groups.
_RESERVED = {"topology": ("states", "zookeeper"), "stream": ("identity", "incarnation", "live")}
STREAMS_FOLDER = "streams"
# What a batch group has in its folder.
GROUP_FOLDERS = frozenset({"manifests", "states", "boundaries", "ledgers"})
_STATE = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,99}")


def check_name(kind: str, name: object) -> str:
    """Returns the name when it may be used, for "topology", "stream" or "state".

    A state's name is also a table's: no "-" in it, and no "__", which this
    framework uses for the tables that it adds.

    Raises:
        TopologyError: the name is not of the form.
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
            f"the {kind} name {name!r} is taken by the framework", expected=f"not {', '.join(_RESERVED[kind])}",
            action="choose another",
        )  # fmt: skip
    return name


def check_streams_apart(names: Collection[str]) -> None:
    """Streams of one topology whose folders would be one.

    ``<w>/_trident/<topology>/`` has a folder for each batch group, named after a
    stream, and the folder ``streams`` with one for each stream.

    Raises:
        TopologyError: naming both.
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
    """Returns a relative path that was read from a file when it leads nowhere but below its root.

    Raises:
        TableError: it is absolute, goes up, or is no path.
    """
    parts = path.split("/") if isinstance(path, str) else [""]
    if any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise TableError(
            f"{what} leads out of its folder, or is no path", found=repr(path)[:200],
            expected="a relative path with / between its parts, none of them empty, . or ..",
            action="somebody has written to the warehouse; bring the file back from a back-up",
        )  # fmt: skip
    return str(path)
