"""The kinds of value that a setting can have: how text is read, and what is allowed."""

from __future__ import annotations

import ipaddress
import json
import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_HOST = r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+)(?::[0-9]{1,5})?"
_LISTEN = r"(?:(?:(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+):)?[0-9]{1,5})?"
# No file, host or user has it in its name: a NUL, and half of a surrogate pair that no byte stands for.
_NOT_IN_TEXT = re.compile("[\0\ud800-\udc7f\udd00-\udfff]")
_CLASS = r"[^\W\d]\w*(?:\.[^\W\d]\w*)*:[^\W\d]\w*(?:\.[^\W\d]\w*)*"
ZNODE = r"(?:/(?!\.{1,2}(?:/|$))[A-Za-z0-9_.-]+)+"
HOSTS = rf"{_HOST}(?:\s*,\s*{_HOST})*(?:{ZNODE}/?)?"


@dataclass(frozen=True)
class Kind:
    """A type of setting: its description, and how a value becomes the stored one.

    Attributes:
        wanted: what an error says was expected.
        read: takes a Python value or text, returns the value; raises ValueError, TypeError, KeyError or
            ArithmeticError for an impossible one.
        optional: None (and the text "none") is allowed.
    """

    wanted: str
    read: Callable[[Any], Any]
    optional: bool = False
    unit: str = ""

    @property
    def expected(self) -> str:
        return f"{self.wanted}, or none" if self.optional else self.wanted

    def accept(self, value: Any) -> Any:
        if self.optional and (value is None or (isinstance(value, str) and value.strip().lower() == "none")):
            return None
        return self.read(value)


def whole(minimum: int, *, optional: bool = False) -> Kind:
    """A whole number of at least ``minimum``."""

    def read(value: Any) -> int:
        number = int(value.strip().replace("_", "")) if isinstance(value, str) else value
        if isinstance(number, bool) or not isinstance(number, int) or number < minimum:
            raise ValueError
        return number

    return Kind(f"a whole number, at least {minimum}", read, optional)


def seconds(*, zero: bool, optional: bool = False) -> Kind:
    """A time in seconds; ``zero``: 0 is allowed."""

    def read(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float, str)):
            raise ValueError
        number = float(value)
        if not math.isfinite(number) or number < 0 or (number == 0 and not zero):
            raise ValueError
        return number

    return Kind("a number of seconds, " + ("0 or more" if zero else "more than 0"), read, optional, unit="s")


def flag() -> Kind:
    """True or false, also as yes/no, on/off, 1/0."""
    words = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}

    def read(value: Any) -> bool:
        if isinstance(value, str):
            return words[value.strip().lower()]
        if not isinstance(value, bool):
            raise TypeError
        return value

    return Kind("true or false", read)


def choice(*allowed: str, optional: bool = False) -> Kind:
    """One of a few words."""

    def read(value: Any) -> str:
        if value not in allowed:
            raise ValueError
        return value

    return Kind("one of " + ", ".join(allowed), read, optional)


def text(*, optional: bool = False, pattern: str = r"(?s).*\S.*", expected: str = "text that is not empty") -> Kind:
    """Text, or a path, that matches the whole of ``pattern``."""

    def read(value: Any) -> str:
        if isinstance(value, os.PathLike):
            value = os.fspath(value)
        if not isinstance(value, str) or not re.fullmatch(pattern, value) or _NOT_IN_TEXT.search(value):
            raise ValueError
        return value

    return Kind(expected, read, optional)


def classes() -> Kind:
    """Classes as ``module:Class``, one behind the other with commas, or as a list of such texts."""

    def read(value: Any) -> tuple[str, ...]:
        names = value.split(",") if isinstance(value, str) else list(value)
        if not all(isinstance(name, str) for name in names):
            raise ValueError
        found = tuple(name.strip() for name in names if name.strip())
        if not all(re.fullmatch(_CLASS, name) for name in found):
            raise ValueError
        return found

    return Kind("module:Class, module:Class; or a list of such texts", read)


def listen() -> Kind:
    """Where to listen: a port, host:port, or "" for nowhere."""

    def read(value: Any) -> str:
        value = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
        if not isinstance(value, str) or not re.fullmatch(_LISTEN, value.strip()):
            raise ValueError
        if value.strip() and listen_address(value.strip())[1] > 65535:
            raise ValueError
        return value.strip()

    return Kind('a port, host:port, or "" for none', read)


def listen_address(text: str) -> tuple[str, int]:
    """Host and port of a :func:`listen` text; a port alone is on the loopback address."""
    host, _, port = text.rpartition(":")
    return host.strip("[]") or "127.0.0.1", int(port)


def is_loopback(host: str) -> bool:
    """Tells whether only this machine can reach the address. Names are not looked up: only "localhost" is known."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def path(*, optional: bool = False) -> Kind:
    """A file or folder; ``~`` is the user's home, since shells do not expand it behind ``=``."""
    plain = text(optional=optional, expected="a path")
    return Kind(plain.wanted, lambda value: os.path.expanduser(plain.read(value)), optional)


def spark_conf() -> Kind:
    """Spark settings: a mapping; or text, "spark.a=1; spark.b=2" or a JSON object. Stored as sorted pairs."""

    def read(value: Any) -> tuple[tuple[str, str], ...]:
        if isinstance(value, str):
            value = _conf_of_text(value)
        items = dict(value).items()  # a mapping, or pairs
        made = []
        for key, one in items:
            if not isinstance(key, str) or not re.fullmatch(r"spark\.[A-Za-z0-9_.:-]+", key):
                raise ValueError
            if one is None or isinstance(one, (list, tuple, dict)):
                raise ValueError
            made.append((key, str(one).lower() if isinstance(one, bool) else str(one)))
        return tuple(sorted(made))

    return Kind('spark.key=value, several of them with ";" between, or a JSON object; in Python a dict', read)


def _conf_of_text(text: str) -> dict[str, Any]:
    if text.lstrip().startswith("{"):
        found = json.loads(text)
        if not isinstance(found, dict) or any(isinstance(one, (dict, list)) for one in found.values()):
            raise ValueError
        return found
    made = {}
    for entry in text.split(";"):
        key, equals, value = entry.partition("=")
        if entry.strip():
            if not equals:
                raise ValueError
            made[key.strip()] = value.strip()
    return made
