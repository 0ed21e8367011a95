"""Znodes as values: their names, the operations of a multi, their sizes and limits, the error of a refused one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Union

from trident.coordinators.errors import ConfigError, CoordinationError, ValueTooLarge

VALUE_BYTES_MAX = 512 * 1024

# The servers' default jute.maxbuffer is 1,048,575 bytes for a whole request.
MULTI_BYTES_MAX = 1_000_000

_OP_OVERHEAD_BYTES = 96

_OPS_AT_ONCE = 2_000


class Znode(NamedTuple):
    """A znode's facts beside its data; ``znode_version`` counts its writes from 0."""

    znode_version: int
    ephemeral_owner: int
    children_count: int


@dataclass(frozen=True)
class Create:
    """Creates a znode; its parent must exist. ``owner`` is named when the value is too large."""

    path: str
    value: bytes = b""
    ephemeral: bool = False
    owner: str = ""


@dataclass(frozen=True)
class SetData:
    """Replaces a znode's data if its znode version is the one given."""

    path: str
    value: bytes
    znode_version: int
    owner: str = ""


@dataclass(frozen=True)
class Delete:
    """Deletes a znode without children if its znode version is the one given (−1: any)."""

    path: str
    znode_version: int = -1


@dataclass(frozen=True)
class Check:
    """Refuses the multi unless the znode version is the one given; ``fence``: then as Deposed."""

    path: str
    znode_version: int
    fence: bool = False


Op = Union[Create, SetData, Delete, Check]


class MultiRefused(CoordinationError):
    """A multi was refused because of one of its operations; nothing of it happened.

    Attributes:
        reason: kazoo's name of the error, such as ``"BadVersionError"``.
    """

    def __init__(self, op: Op, reason: str) -> None:
        super().__init__(
            f"ZooKeeper refused {type(op).__name__} of znode {op.path}",
            found=reason,
            expected=f"znode version {op.znode_version}" if hasattr(op, "znode_version") else "no such znode",
        )
        self.op, self.reason = op, reason


# The characters that ZooKeeper refuses in a path (all that UTF-16 writes as surrogates, too), and those that no screen
# shows: marks of direction, joiners, blanks without width.
_NOT_IN_NAMES = re.compile(
    "[/\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\uf8ff\ufeff\ufff0-\uffff\U00010000-\U0010ffff]"
)

NAME_BYTES_MAX = 1024


def check_name(name: str, what: str) -> str:
    """A name that can be one part of a znode's path."""
    good = isinstance(name, str) and name not in ("", ".", "..") and not _NOT_IN_NAMES.search(name)
    if not good or len(name.encode()) > NAME_BYTES_MAX:
        raise ConfigError(
            f"{what} cannot be the name of a znode",
            found=repr(name)[:200],
            expected=f'text of at most {NAME_BYTES_MAX} bytes, not "." or "..", without "/", control characters,'
            " surrogates and characters for private use",
        )
    return name


def check_multi(ops: Sequence[Op], what: str = "", reserve: int = 0) -> None:
    """Checks that writes that belong together fit into one request, and each value into its znode.

    Args:
        what: what they do, for the message.
        reserve: bytes that must be left, for what is not known yet.
    """
    for op in ops:
        value = op.value if isinstance(op, (Create, SetData)) else b""
        if len(value) > VALUE_BYTES_MAX:
            raise ValueTooLarge(
                f"the value of {getattr(op, 'owner', '') or 'a znode'} is too large for ZooKeeper (znode {op.path})",
                found=f"{len(value):,} bytes",
                expected=f"at most {VALUE_BYTES_MAX:,} bytes",
                action="keep the data elsewhere and only a reference to it in the metadata",
            )
    total, by_owner = 0, dict[str, int]()
    for op in ops:
        size = multi_bytes([op])
        total += size
        owner = getattr(op, "owner", "") or "coordination"
        by_owner[owner] = by_owner.get(owner, 0) + size
    if total > MULTI_BYTES_MAX - reserve:
        most = sorted(by_owner.items(), key=lambda item: -item[1])
        shown = ", ".join(f"{owner} {size:,}" for owner, size in most[:5])
        raise ValueTooLarge(
            f"{len(ops)} writes that belong together{what} are too large for ZooKeeper",
            found=f"{total:,} bytes: {shown}" + (", …" if len(most) > 5 else ""),
            expected=f"at most {MULTI_BYTES_MAX - reserve:,} bytes over all streams of a batch group",
            action="keep positions in the metadata, not data; have fewer partitions in a batch; or keep streams that"
            " need not meet in batch groups, or topologies, of their own",
        )


def multi_bytes(ops: Sequence[Op]) -> int:
    """About how many bytes operations take in a request; never fewer than they do."""
    return sum(
        len(op.path.encode()) + (len(op.value) if isinstance(op, (Create, SetData)) else 0) + _OP_OVERHEAD_BYTES
        for op in ops
    )


def parts_of(ops: Sequence[Op]) -> Iterator[list[Op]]:
    """Runs of writes that need not happen together, each of which fits into one request."""
    part: list[Op] = []
    size = 0
    for op in ops:
        more = multi_bytes([op])
        if part and (size + more > MULTI_BYTES_MAX // 2 or len(part) >= _OPS_AT_ONCE):
            yield part
            part, size = [], 0
        part.append(op)
        size += more
    if part:
        yield part
