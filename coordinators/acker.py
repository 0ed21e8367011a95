"""Tells when tuple trees are complete: Storm's acker, pure, without I/O (docs/semantics.md 6).

A tree is a number: the XOR of the ids of all its tuples, each of which is told
twice, once when it is made and once when it is acknowledged. So the number is
zero when nothing is left to be acknowledged, whatever the size of the tree and
whatever the order of the messages; by chance it is zero earlier with a
probability of about 2⁻⁶⁴ a message. Source: Storm's "Guaranteeing message
processing".

Nothing here reads a clock or does I/O: times are arguments, what has become of
a root is what a call returns.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from trident.coordinators.errors import ConfigError

_MASK = (1 << 64) - 1
_FAILED = 1 << 31
_SMALLEST = 8


class Verdict(Enum):
    """The fate of a root."""

    ACKED = "acked"
    FAILED = "failed"
    TIMED_OUT = "timed out"


@dataclass(frozen=True)
class Ended:
    """A root that is settled; its spout is told, nothing is kept of it."""

    root: int
    spout: int
    verdict: Verdict


class _Trees:
    """Root → (value, owner): three arrays with open addressing, 20 bytes a place.

    The place of a root is its lowest bits (ids are random), or the next free
    one. An entry that is removed is filled by moving later ones up, so there
    are no gaps to search through.

    Attributes:
        roots, values: 64 bits each.
        owners: 0 in a free place; else 1 + the spout's number + 1, or 1 when it
            is not known yet; the highest bit says that the root has failed.
    """

    __slots__ = ("roots", "values", "owners", "length")

    def __init__(self, places: int = _SMALLEST) -> None:
        self.length = 0
        self._allocate(places)

    def _allocate(self, places: int) -> None:
        self.roots = array("Q", bytes(8 * places))
        self.values = array("Q", bytes(8 * places))
        self.owners = array("I", bytes(4 * places))

    def find(self, root: int) -> int:
        """The place of a root, or -1 - the place where it would be."""
        roots, owners = self.roots, self.owners
        places = len(roots)
        place = root % places
        while owners[place]:
            if roots[place] == root:
                return place
            place += 1
            if place == places:
                place = 0
        return -1 - place

    def insert(self, root: int, value: int, owner: int) -> None:
        if (self.length + 1) * 5 > len(self.roots) * 4:  # at most 80 % full
            self._grow()
        place = -1 - self.find(root)
        self.roots[place], self.values[place], self.owners[place] = root, value, owner
        self.length += 1

    def remove(self, place: int) -> None:
        roots, values, owners = self.roots, self.values, self.owners
        places = len(roots)
        hole, place = place, (place + 1) % places
        while owners[place]:
            # An entry moves up unless its own place lies behind the hole.
            if (place - roots[place]) % places >= (place - hole) % places:
                roots[hole], values[hole], owners[hole] = roots[place], values[place], owners[place]
                hole = place
            place = (place + 1) % places
        owners[hole] = 0
        self.length -= 1

    def _grow(self) -> None:
        entries = list(self.entries())
        self._allocate(len(self.roots) * 3 // 2)
        self.length = 0
        for entry in entries:
            self.insert(*entry)

    def entries(self) -> Iterator[tuple[int, int, int]]:
        for root, value, owner in zip(self.roots, self.values, self.owners):
            if owner:
                yield root, value, owner

    @property
    def nbytes(self) -> int:
        return 20 * len(self.roots)


class Acker:
    """The ledger of roots that are pending.

    Every call says with ``now`` (seconds, any origin, never less than before)
    when it is made, and returns the roots that it settled. Messages may come in
    any order: those of a root before its ``init`` are kept. A root that has failed
    never completes, also when its number is zero.

    A root that is not settled for ``timeout_secs`` is given up at the end of
    that time or up to ``timeout_secs / (buckets - 1)`` later: roots are kept in
    buckets by age, the oldest of which is emptied whole.

    Memory: 20 bytes for a place of the tables, of which 53 to 80 % are in use:
    25 to 38 bytes a pending root (below 8 roots the smallest table), and
    nothing that depends on the tuples of its tree.
    """

    def __init__(self, timeout_secs: float = 30.0, buckets: int = 2, now: float = 0.0) -> None:
        if not timeout_secs > 0 or buckets < 2:
            raise ConfigError(
                "an acker cannot give up roots so",
                found=f"timeout_secs={timeout_secs!r}, buckets={buckets!r}",
                expected="a number of seconds above 0, and at least 2 buckets",
            )
        self._period = timeout_secs / (buckets - 1)
        self._buckets = [_Trees() for _ in range(buckets)]  # the newest first
        self._rotates_at = now + self._period

    def __len__(self) -> int:
        """Counts how many roots are pending."""
        return sum(bucket.length for bucket in self._buckets)

    @property
    def nbytes(self) -> int:
        """Bytes of the tables."""
        return sum(bucket.nbytes for bucket in self._buckets)

    def init(self, root: int, value: int, spout: int) -> Ended | None:
        """A spout has emitted a root.

        Args:
            root: a random id of 64 bits, given once.
            value: the XOR of the ids of the tuples that it was emitted as; 0 when no task takes it: settled at once.
            spout: which spout is told, 0 to 2³¹ - 3.
        """
        return self._add(root, value, spout + 2)

    def ack(self, root: int, value: int) -> Ended | None:
        """A tuple was acknowledged: ``value`` is its id XOR the ids of the tuples that were anchored to it."""
        return self._add(root, value, 1)

    def fail(self, root: int) -> Ended | None:
        """A tuple of the root's tree has failed."""
        return self._add(root, 0, 1 | _FAILED)

    def reset_timeout(self, root: int) -> None:
        """The root's time begins anew; a root that is not pending is left alone."""
        newest = self._buckets[0]
        for bucket in self._buckets[1:]:
            place = bucket.find(root)
            if place >= 0:
                entry = root, bucket.values[place], bucket.owners[place]
                bucket.remove(place)
                newest.insert(*entry)
                return

    def advance(self, now: float) -> list[Ended]:
        """Returns what has timed out by now. To be called about once a second."""
        ended: list[Ended] = []
        # After a long pause every bucket is emptied once, not once for every period of the pause.
        late = int((now - self._rotates_at) // self._period) + 1 if now >= self._rotates_at else 0
        for _ in range(min(late, len(self._buckets))):
            oldest = self._buckets.pop()
            self._buckets.insert(0, _Trees())
            for root, _value, owner in oldest.entries():
                spout = (owner & ~_FAILED) - 2
                if spout >= 0:  # else the spout is not known: the message of its init was lost
                    ended.append(Ended(root, spout, Verdict.TIMED_OUT))
        self._rotates_at += late * self._period
        return ended

    def _add(self, root: int, value: int, owner: int) -> Ended | None:
        for bucket in self._buckets:
            place = bucket.find(root)
            if place >= 0:
                value ^= bucket.values[place]
                known = bucket.owners[place]
                owner = max(known & ~_FAILED, owner & ~_FAILED) | ((known | owner) & _FAILED)
                break
        else:
            bucket, place = self._buckets[0], -1
        if owner & ~_FAILED > 1 and (owner & _FAILED or not value):
            if place >= 0:
                bucket.remove(place)
            failed = owner & _FAILED
            return Ended(root, (owner & ~_FAILED) - 2, Verdict.FAILED if failed else Verdict.ACKED)
        if place >= 0:
            bucket.values[place], bucket.owners[place] = value, owner
        else:
            bucket.insert(root, value, owner)
        return None


class Ackers:
    """Several ledgers that share the roots by their ids; with none, a root is acknowledged when it is emitted."""

    def __init__(self, count: int = 1, timeout_secs: float = 30.0, buckets: int = 2, now: float = 0.0) -> None:
        if count < 0:
            raise ConfigError("the number of ackers is out of range", found=repr(count), expected="0 or more")
        self._ackers = [Acker(timeout_secs, buckets, now) for _ in range(count)]

    def __len__(self) -> int:
        """Counts how many roots are pending."""
        return sum(len(acker) for acker in self._ackers)

    @property
    def nbytes(self) -> int:
        """Bytes of all tables."""
        return sum(acker.nbytes for acker in self._ackers)

    @property
    def tracking(self) -> bool:
        return bool(self._ackers)

    def init(self, root: int, value: int, spout: int) -> Ended | None:
        return self._of(root).init(root, value, spout) if self._ackers else Ended(root, spout, Verdict.ACKED)

    def ack(self, root: int, value: int) -> Ended | None:
        return self._of(root).ack(root, value) if self._ackers else None

    def fail(self, root: int) -> Ended | None:
        return self._of(root).fail(root) if self._ackers else None

    def reset_timeout(self, root: int) -> None:
        if self._ackers:
            self._of(root).reset_timeout(root)

    def advance(self, now: float) -> list[Ended]:
        return [ended for acker in self._ackers for ended in acker.advance(now)]

    def _of(self, root: int) -> Acker:
        # The upper half: the lower bits are the place within an acker's table.
        return self._ackers[(root >> 32) % len(self._ackers)]
