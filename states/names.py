"""Names that become folders, znodes and SQL identifiers are allow-listed here."""

from __future__ import annotations

import re

from trident.coordinators.errors import TableError, TopologyError

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,99}")
# Folders of the framework beside those of the topologies.
_RESERVED = {"topology": ("states", "zookeeper")}
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
        raise TopologyError(f"the {kind} name {name!r} is taken by the framework", action="choose another")
    return name


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
