"""Lists the objects below a path in a store: what is new, with flat memory, in the background.

A path is listed as a whole again and again: at each look where it has few objects, else at most every
``full_listing_secs``. Between two of these listings a store that can begin a listing at a name is asked for what
follows the greatest one. So objects whose names sort last are found at once, all others by the next whole listing.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from fnmatch import fnmatchcase
from typing import NamedTuple

from trident.coordinators.errors import SourceError
from trident.coordinators.threads import DaemonPool
from trident.spouts.files.ledger import FoundFile, LedgerBook, LedgerEntry, Mark, Position, length_after
from trident.spouts.files.tasks import tag_of
from trident.states.core import storage
from trident.states.core.storage import Stat

# So many objects of a listing are looked at in one step; and no listing goes on while so many files wait.
STEP_OBJECTS, MOST_WAITING = 10_000, 20_000
# A page takes a store less than a second. After so long without an answer a listing is given up.
ANSWER_SECS = 120.0
_MAGIC = re.compile(r"[*?[]")
# A whole listing of more than this many pages is one of many objects.
_FEW_PAGES = 1


def found_object(path: str) -> FoundFile | None:
    """An object as it is now; None when there is none."""
    found = storage.stat_file(path)
    if found is None or not found.is_file:
        return None
    return FoundFile(path, found.size, found.mtime_ns, tag=tag_of(found))


def folder_of_url(path: str) -> str:
    """The folder with which a glob begins; any other path itself."""
    return split_glob(path)[0]


def split_glob(path: str) -> tuple[str, str]:
    """Folder and pattern below it; no pattern where the path is no glob."""
    root = "/".join(path.split("/")[:3])
    parts = path[len(root) + 1 :].split("/")
    plain = next((number for number, part in enumerate(parts) if _MAGIC.search(part)), len(parts))
    return "/".join([root, *parts[:plain]]).rstrip("/"), "/".join(parts[plain:])


def fits(name: str, pattern: str) -> bool:
    """Tells whether a name below a glob's folder fits: ``*`` within a part of it, ``**`` any number of parts.

    As on a disk a folder that fits stands for the files in it, unless the pattern has a ``**``.
    """
    parts = pattern.split("/")
    return _fits(name.split("/"), parts) or ("**" not in parts and _fits(name.split("/")[:-1], parts))


def _fits(names: Sequence[str], parts: Sequence[str]) -> bool:
    if not parts:
        return not names
    if parts[0] == "**":
        return any(_fits(names[at:], parts[1:]) for at in range(len(names) + 1))
    return bool(names) and fnmatchcase(names[0], parts[0]) and _fits(names[1:], parts[1:])


class Listed(NamedTuple):
    """An object of a listing."""

    name: str
    stat: Stat


class _Pass:
    """One listing, of which each step gives some objects; the store is asked by a thread of its own.

    Args:
        to_end: each look waits for it, so that none without new files is taken for the end.
    """

    def __init__(self, folder: str, after: str, deep: bool, step_objects: int, to_end: bool = False) -> None:
        self._step_objects, self.to_end = step_objects, to_end
        self.began_ns, self.began = time.time_ns(), time.monotonic()
        self.pages_seen, self.ended = 0, False
        self._pages = storage.pages(folder, after, deep)
        self._pool = DaemonPool(1, "trident-listing")
        self._asked_at = 0.0
        self._future: Future[list[Listed]] | None = None
        self._folder = folder

    def step(self, waits: bool) -> list[Listed] | None:
        """The objects of the next step; None: it is under way still.

        Args:
            waits: for it, unless it takes longer than a store may take.

        Raises:
            OSError: the store refuses.
            SourceError: it does not answer.
        """
        if self._future is None:
            self._asked_at = time.monotonic()
            self._future = self._pool.submit(self._read)
        left = self._asked_at + ANSWER_SECS - time.monotonic()
        try:
            found = self._future.result(max(0.0, left) if waits else 0.0)
        except FutureTimeout:
            if not waits and left > 0:
                return None
            raise SourceError(
                f"the listing of {self._folder} has no answer",
                found=f"none in {ANSWER_SECS:.0f} s",
                expected="a page of names within seconds",
                action="see that the store is there; it is listed again",
            ) from None
        self._future = None
        return found

    def pause(self, secs: float) -> float:
        """So long, at least, no other one of its kind begins once this has ended."""
        return max(secs, 10 * (time.monotonic() - self.began)) if self.pages_seen > _FEW_PAGES else 0.0

    def end(self) -> None:
        self.ended = True
        self._pool.shutdown(wait=False)

    def _read(self) -> list[Listed]:
        found: list[Listed] = []
        for page in self._pages:
            self.pages_seen += 1
            found += (Listed(*each) for each in page)
            # Of many pages nothing may be left: of a folder's those of the folders below are listed too.
            if len(found) >= self._step_objects or time.monotonic() > self._asked_at + ANSWER_SECS / 2:
                return found
        self.end()
        return found


class ObjectPath:
    """One path of a spout: a folder, an object, or a glob.

    Args:
        changed: called with a file that was read, and with what is there in its place.
        step_objects: at a look so many objects are looked at, about.
    """

    def __init__(
        self,
        path: str,
        full_listing_secs: float,
        remember_secs: float,
        hidden: Callable[[str], bool],
        changed: Callable[[LedgerEntry, FoundFile], None],
        step_objects: int = STEP_OBJECTS,
    ) -> None:
        self.path, self._step_objects = path, step_objects
        self.folder, self._pattern = split_glob(path)
        self._deep = bool(self._pattern)
        self._is_object: bool | None = None
        self._secs, self._remember_ns = full_listing_secs, int(remember_secs * 1e9)
        self._hidden, self._changed = hidden, changed
        self._whole: _Pass | None = None
        self._tail: _Pass | None = None
        self._next_whole = self._next_tail = 0.0
        self._greatest = ""
        self._seen_forgotten = 0  # in the whole listing that is under way
        self._forgotten_since = 0  # its begin
        self._bound = 0  # so many forgotten files there can be, by the last whole listing
        self._bound_by: Mark | None = None  # the mark that this holds of
        self._in_order = False
        self._written_anew: dict[str, int] = {}  # files of the ledger that have another time by now
        self._was_listed = False  # as a whole, by this process
        self.reached: Mark | None = None  # as far as listings have got, here

    def check(self) -> None:
        """Makes sure that the store can be listed.

        Raises:
            OSError: it cannot; on HDFS the folder is not there.
        """
        if not self._names_object():
            next(iter(storage.pages(self.folder, "", self._deep)), None)

    def _names_object(self) -> bool:
        if self._is_object is None:
            there = None if self._pattern else storage.stat_file(self.folder)
            # In a bucket a name can be both; then the path is the folder, whatever is written at its name later.
            is_file = there is not None and there.is_file
            self._is_object = is_file and not any(storage.pages(self.folder, "", True))
        return self._is_object

    @property
    def is_waited_for(self) -> bool:
        """Tells whether a listing is under way that each look waits for."""
        return self._whole is not None and self._whole.to_end

    def give_up(self) -> None:
        """Objects that were listed and are not in the ledger are listed again: they count as not seen."""
        for listing in (self._whole, self._tail):
            if listing is not None:
                listing.end()
        self._whole = self._tail = self.reached = None
        self._greatest, self._next_whole, self._was_listed = "", 0.0, False

    def new_files(self, book: LedgerBook, position: int, waits: bool, to_end: bool = False) -> list[FoundFile]:
        """Some objects that have no number yet.

        Args:
            waits: lists the whole path anew; none are found only where it has none.
            to_end: so do the next looks until the listing ends, while no file waits to be read.

        Raises:
            OSError, SourceError: it cannot be listed; an object has changed; one came that is too old.
        """
        if self._names_object():
            file = found_object(self.path)
            return [] if file is None else self._new(book, position, [(self.path, file)])
        self.reached = self.reached or book.marks.get(self.path, Mark())
        found: list[FoundFile] = []
        if waits and self._whole is not None:
            self._whole.end()
            self._whole = None
        if self._whole is None and (waits or time.monotonic() >= self._next_whole):
            self._whole = _Pass(self.folder, "", self._deep, self._step_objects, to_end)
            self._most_forgotten(book)
            self._seen_forgotten = self._forgotten_since = 0
            # HDFS lists the files of a folder where the folder comes, and "ü" before "a": later names may be smaller.
            self._in_order = storage.storage_for(self.path).lists_after
            self.reached = self.reached._replace(next=self._whole.began_ns - self._remember_ns, cursor="")
        elif self._begins_tail():
            self._tail = _Pass(self.folder, self._greatest, self._deep, self._step_objects)
        waits = waits or (self.is_waited_for and not length_after(book, Position(position, 0)))
        while self._whole is not None and not found:
            listed = self._whole.step(waits)
            if listed is None:
                break
            found += self._taken(book, position, listed, whole=True)
            if self._whole.ended:
                self._end_whole(book, self._whole)
            elif not waits:
                break
        if self._tail is not None:
            listed = self._tail.step(False)
            if listed is not None:
                known = {file.path for file in found}
                new = [one for one in self._taken(book, position, listed, whole=False) if one.path not in known]
                if self._tail.ended:
                    # Pages without anything new are of the folders below.
                    self._next_tail = time.monotonic() + (0.0 if new else self._tail.pause(0.0))
                    self._tail = None
                found += new
        return found

    def _begins_tail(self) -> bool:
        # Not before the path was listed once as a whole: the greatest name is known then.
        may = self._was_listed and self._greatest and self._tail is None and time.monotonic() >= self._next_tail
        return bool(may) and storage.storage_for(self.path).lists_after

    def _taken(self, book: LedgerBook, position: int, listed: Sequence[Listed], whole: bool) -> list[FoundFile]:
        fitting, mark = [], book.marks.get(self.path)
        for name, stat in listed:
            if any(map(self._hidden, name.split("/"))) or not fits(name, self._pattern or "*"):
                continue
            path = f"{self.folder}/{name}"
            if not stat.size and path not in book.numbers:
                continue
            if path not in book.numbers and mark is not None and mark.knows(name, stat.mtime_ns):
                self._seen_forgotten += whole
                continue
            fitting.append((path, FoundFile(path, stat.size, stat.mtime_ns, tag=tag_of(stat))))
        found = self._new(book, position, fitting)
        if listed:
            last = listed[-1].name
            if whole and self.reached is not None:
                self._in_order = self._in_order and last > self.reached.cursor
                self.reached = self.reached._replace(cursor=last if self._in_order else "")
            self._greatest = max(self._greatest, *(one.name for one in listed))
        return found

    def _new(self, book: LedgerBook, position: int, files: Sequence[tuple[str, FoundFile]]) -> list[FoundFile]:
        found = []
        for path, file in files:
            number = book.numbers.get(path)
            if number is None:
                found += [file] if file.size else []
                continue
            entry = book.entry(number)
            if file.mtime_ns != entry.mtime_ns:
                self._written_anew[path] = file.mtime_ns
            if number < position and number not in book.skipped:
                if entry.tag is not None and (entry.size, entry.tag) != (file.size, file.tag):
                    self._changed(entry, file)
        return found

    def _end_whole(self, book: LedgerBook, listing: _Pass) -> None:
        self._next_whole = time.monotonic() + listing.pause(self._secs)
        self._whole, self._was_listed = None, True
        mark, seen, most = book.marks.get(self.path, Mark()), self._seen_forgotten, self._most_forgotten(book)
        self._bound = min(most, seen + self._forgotten_since)
        if self.reached is not None:
            self.reached = Mark(self.reached.next)
        if seen > most:
            raise SourceError(
                f"the input path {self.path} has objects that are older than those that were read, and were never seen",
                found=f"{seen} objects from before {_when(max(mark.floor, mark.next))}",
                expected=f"at most {most}, which were read and are forgotten since",
                action="write them anew, which gives them the time of now: their age says no more whether they were "
                "read; FileSpout(…, remember_secs=…) says how long a file may take to appear",
            )

    def _most_forgotten(self, book: LedgerBook) -> int:
        mark = book.marks.get(self.path, Mark())
        if mark != self._bound_by:  # another process has forgotten files, or it was not known whether this one has
            self._bound_by, self._bound, self._forgotten_since = mark, mark.files, mark.files
        return self._bound

    def forgets(self, entry: LedgerEntry) -> bool:
        """Tells whether listings have got so far that a file of this path need not be remembered.

        One that was uploaded once more since it was discovered has another time, and is known by that.
        """
        name = entry.path[len(self.folder) + 1 :]
        if self.reached is None or not (self._was_listed or name <= self.reached.cursor):
            return False
        return self.reached.knows(name, max(entry.mtime_ns, self._written_anew.get(entry.path, 0)))

    def can_mark(self, book: LedgerBook) -> bool:
        """Tells whether all that the ledger's mark of this path knows is known by what was listed since."""
        before, now = book.marks.get(self.path), self.reached
        if before is None or now is None:
            return now is not None
        further = now.next >= before.next and now.cursor >= before.cursor
        return now.floor >= before.floor and (now.floor >= before.next or further)

    def forgotten(self, book: LedgerBook, count: int) -> Mark:
        """The mark with which so many files of this path are forgotten."""
        self._bound = self._most_forgotten(book) + count
        self._forgotten_since += count
        self._written_anew = {one: time_ns for one, time_ns in self._written_anew.items() if one in book.numbers}
        self._bound_by = (self.reached or Mark())._replace(files=self._bound)
        return self._bound_by


def _when(moment_ns: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(moment_ns / 1e9))


class ObjectListing:
    """The paths of a spout, as :class:`trident.spouts.files.listing.FileListing` for a disk."""

    def __init__(self, paths: Sequence[ObjectPath]) -> None:
        self._paths = {path.path: path for path in paths}
        self._again, self._to_end, self._waits = True, False, False

    def refresh(self) -> None:
        """The next look lists everything anew; from there on one that finds nothing has seen all of it."""
        self._again = self._to_end = True

    def new_files(self, book: LedgerBook, position: int) -> list[FoundFile]:
        """Some of the objects that have no number yet, each path's in the order (mtime, path)."""
        if len(book) - position >= MOST_WAITING:
            return []
        again, to_end, found = self._again, self._to_end, dict[str, FoundFile]()
        self._waits = to_end or any(path.is_waited_for for path in self._paths.values())
        self._again = self._to_end = False  # before the look: a refresh() during it asks for another
        for path in self._paths.values():
            new = path.new_files(book, position, again, to_end)
            found |= {file.path: file for file in sorted(new, key=lambda one: (one.mtime_ns, one.path))}
        return list(found.values())

    def give_up(self) -> None:
        """The next look begins all listings anew: what the last one gave is not in the ledger."""
        if self._waits:
            self.refresh()
        for path in self._paths.values():
            path.give_up()

    def forgettable(self, book: LedgerBook, before: int) -> tuple[int, Mapping[str, Mark]] | None:
        """Before which file all may be forgotten, and the marks by which they are known then; None: none may.

        Args:
            before: files with smaller numbers are done.
        """
        if not all(path.can_mark(book) for path in self._paths.values()):
            return None
        goal = 0
        following_ones = [*book.segments[1:], *([len(book) + 1] if book.closed else [])]
        for number, following in zip(book.segments, following_ones):
            if following > before:
                break
            if not all(map(self._forgets, book.entries[number - book.first_number : following - book.first_number])):
                break
            goal = following
        if goal <= book.first_number:
            return None
        gone = [path for entry in book.entries[: goal - book.first_number] for path in self._of(entry)]
        marks = {path: one.forgotten(book, gone.count(one)) for path, one in self._paths.items()}
        return goal, {**book.marks, **marks}

    def _of(self, entry: LedgerEntry) -> Iterator[ObjectPath]:
        yield from (path for path in self._paths.values() if entry.path.startswith(f"{path.folder}/"))

    def _forgets(self, entry: LedgerEntry) -> bool:
        paths = list(self._of(entry))  # none: of a path that is not looked at now, whose files are remembered
        return bool(paths) and all(path.forgets(entry) for path in paths)
