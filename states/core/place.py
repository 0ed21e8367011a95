"""Where something is stored: a path of this machine, or a URL of a store that machines share."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Mapping
from functools import total_ordering
from urllib.parse import unquote, urlsplit

from trident.coordinators.errors import ConfigError, TridentError
from trident.states.core import storage
from trident.states.core.storage import AnyPath as AnyPath


@total_ordering
class Place:
    """A file or folder, by its absolute path or by ``SCHEME://HOST-OR-BUCKET/PATH``; a value, like a ``PurePath``.

    ``os.fspath`` and ``str`` give its text, which is what the storage module, Spark and Delta are given. A place that
    is sent to another process takes the settings of its store with it.

    Args:
        place: an absolute path, a ``file:`` URL, or a URL of a store; a place.

    Raises:
        ValueError: it is relative.
    """

    __slots__ = ("_text",)

    def __init__(self, place: AnyPath) -> None:
        if type(place) is Place:
            self._text: str = place._text
            return
        text = os.fspath(place)
        if text.startswith("file:"):
            text = unquote(urlsplit(text).path)
        root = _root_of(text)
        path = text[len(root) :] or "/"
        if not path.startswith("/"):
            raise ValueError(f"{text!r} is not absolute")
        path = posixpath.normpath(path)
        path = path[1:] if path.startswith("//") else path
        self._text = root if root and path == "/" else root + path

    @property
    def is_local(self) -> bool:
        """Tells whether it is on this machine's file system, as far as its name tells."""
        return self._text[0] == "/"

    @property
    def root(self) -> str:
        """Scheme and bucket, or name service; empty for a path of this machine."""
        return "" if self._text[0] == "/" else _root_of(self._text)

    @property
    def name(self) -> str:
        above, _, name = self._text.rpartition("/")
        return "" if above[-1:] == "/" else name

    @property
    def parent(self) -> Place:
        text, _, name = self._text.rpartition("/")
        return _placed(text or "/") if name and text[-1:] != "/" else self

    @property
    def parents(self) -> tuple[Place, ...]:
        """Those above it, the nearest first."""
        found = [self]
        while found[-1].parent != found[-1]:
            found.append(found[-1].parent)
        return tuple(found[1:])

    def __truediv__(self, below: AnyPath) -> Place:
        text = below if isinstance(below, str) else os.fspath(below)
        above = "" if self._text == "/" else self._text
        if "/" not in text and text not in ("", ".", ".."):
            return _placed(f"{above}/{text}")
        if text.startswith("/") or "://" in text:
            raise ValueError(f"{text!r} is not below {self}")
        return Place(f"{above}/{text}")

    def relative_to(self, above: AnyPath) -> str:
        """The path from a place above it.

        Raises:
            ValueError: it is not below that place.
        """
        other = Place(above)
        if self == other:
            return "."
        inside = other._text.rstrip("/") + "/"
        if not self._text.startswith(inside):
            raise ValueError(f"{self} is not below {other}")
        return self._text[len(inside) :]

    def __fspath__(self) -> str:
        return self._text

    __str__ = __fspath__

    def __repr__(self) -> str:
        return f"Place({self._text!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Place) and self._text == other._text

    def __lt__(self, other: Place) -> bool:
        return self._text < other._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __reduce__(self) -> tuple[object, ...]:
        root = self.root
        return _arrived, (self._text, dict(storage.settings_of(root)) if root else {})


def _placed(text: str) -> Place:
    """The place of a text that is known to be one: no parts to take out."""
    place = object.__new__(Place)
    place._text = text
    return place


def _root_of(text: str) -> str:
    scheme, colon, rest = text.partition("://")
    return f"{scheme}://{rest.partition('/')[0]}" if colon and "/" not in scheme else ""


def _arrived(text: str, settings: Mapping[str, str]) -> Place:
    place = Place(text)
    if settings:
        storage.configure(place.root, settings)
    return place


def reached_stores() -> tuple[Place, ...]:
    """The stores that this process was told how to reach: sent along with a task, they have it reach them too."""
    return tuple(Place(root) for root in storage.configured_roots())


def named_place(text: AnyPath) -> Place:
    """The place that a path or a URL of a user's names; a relative path is taken from the working folder."""
    named = os.fspath(text)
    return Place(named if _root_of(named) or named.startswith("file:") else os.path.abspath(named))


def warehouse_place(warehouse: AnyPath) -> Place:
    """The place that a setting or an argument names; a relative path is taken from the working folder.

    Raises:
        ConfigError: it is a URL of a kind that the framework cannot keep files in, or holds credentials.
    """
    if isinstance(warehouse, Place):
        return warehouse
    text = os.fspath(warehouse)
    if text.startswith("file:"):
        text = unquote(urlsplit(text).path)
    scheme, colon, rest = text.partition("://")
    if not colon:
        return Place(os.path.realpath(text))
    return store_place(text, "a warehouse", "set `warehouse`")


def store_place(url: str, what: str, action: str, kind: type[TridentError] = ConfigError) -> Place:
    """The place that a URL of a store names.

    Args:
        what: is to be there, for messages: "a warehouse".
        kind: of the error.

    Raises:
        TridentError: it is of a kind that the framework cannot keep files in, or holds credentials.
    """
    scheme, _, rest = url.partition("://")
    if scheme not in SCHEMES or not rest.partition("/")[0]:
        raise kind(
            f"{url!r} is no place for {what}",
            found=f"scheme {scheme!r}" if scheme not in SCHEMES else "no host and no bucket",
            expected=", ".join(["a path", "file:///PATH", *(_URLS[each] for each in SCHEMES)]),
            action=action,
        )
    if "@" in rest.partition("/")[0]:  # and nothing of it is shown
        raise kind(
            f"the URL of {what} holds no credentials",
            found=f"{scheme}://…@{rest.partition('/')[0].rpartition('@')[2]}",
            expected=_URLS[scheme],
            action=f"{action} without them; docs/storage.md says where a store's credentials come from",
        )
    return Place(url)


_URLS = {"hdfs": "hdfs://HOST:PORT/PATH", "s3a": "s3a://BUCKET/PREFIX"}
SCHEMES: tuple[str, ...] = ("hdfs", "s3a")
