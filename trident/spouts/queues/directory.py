"""The directory of a DirectoryQueueSpout: which messages are in it, whole copies of them, and how they leave it."""

from __future__ import annotations

import os
import shutil
import stat
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from trident.coordinators import faults
from trident.coordinators.errors import SourceError
from trident.coordinators.transactions import TransactionAttempt
from trident.spouts.files.listing import leads_nowhere

CLAIM = faults.register("directory.claim", "moving a consumed file out of the directory that is used as a queue")
REMOVE = faults.register("directory.remove", "deleting a consumed file, or moving it to done/")

DONE = ("delete", "move")
# In the directory itself, so that a rename into it is one step.
HIDDEN = ".trident-queue"
COPY_BYTES = 1 << 20  # in one read
# File systems keep times in steps of up to 10 ms: within one a change of the same size would not show.
TIME_STEP_SECS = 0.02


class FileMessage(NamedTuple):
    """A file's identity as a message; in commit data a list in this order."""

    name: str
    size: int
    mtime_ns: int
    inode: int


class DirectoryQueue:
    """The directory: the messages in it, and how consumed files leave it."""

    def __init__(self, folder: Path, done: str, min_age_secs: float = 0.0) -> None:
        self.folder, self._done, self._min_age_secs = folder, done, min_age_secs
        self.hidden = folder / HIDDEN
        self.id = self._identify()

    def _identify(self) -> str:
        """Makes the hidden folder with a random id, once: the directory is known again by it."""
        hidden = self.hidden
        try:
            if not self.folder.is_dir():
                raise NotADirectoryError("no such folder")
            hidden.mkdir(exist_ok=True)
            name = hidden / "id"
            if not name.exists():
                new = hidden / f"id-{uuid.uuid4().hex}"
                new.write_text(uuid.uuid4().hex)
                try:
                    os.link(new, name)  # whole, and by one process only
                except FileExistsError:
                    pass
                new.unlink()
            return name.read_text()
        except OSError as error:
            raise SourceError(
                f"the directory {self.folder} cannot be used as a queue",
                found=str(error),
                expected="a folder that exists, in which files may be renamed",
                action="make it, or correct the path",
            ) from error

    def messages(self) -> Iterator[FileMessage]:
        """The files that are there, in no order; an empty one is no message: its owner may just have opened it."""
        try:
            with os.scandir(self.folder) as items:
                for item in items:
                    if item.name.startswith(("_", ".")):
                        continue
                    try:
                        status = os.stat(item.path)
                    except FileNotFoundError:
                        continue  # taken back since it was listed
                    except OSError as error:
                        if leads_nowhere(item.path, error):
                            continue
                        raise
                    old_enough = not self._min_age_secs or time.time() - status.st_mtime >= self._min_age_secs
                    if stat.S_ISREG(status.st_mode) and status.st_size and old_enough:
                        yield message_of(item.name, status)
        except OSError as error:
            raise SourceError(f"the directory {self.folder} cannot be listed", found=str(error)) from error

    def copy(self, message: FileMessage, target: Path) -> bool:
        """Copies the message; False, and no copy, when it is not there any more or changes meanwhile."""
        try:
            with open(self.folder / message.name, "rb") as file, open(target, "xb") as copy:
                before = os.fstat(file.fileno())
                if message_of(message.name, before) != message:
                    raise FileNotFoundError("another message by now")
                shutil.copyfileobj(file, copy, COPY_BYTES)
                after = os.fstat(file.fileno())
                # ctime too: the modification time can be set back.
                same = message_of(message.name, after) == message and before.st_ctime_ns == after.st_ctime_ns
                if same and copy.tell() == message.size:
                    return True
        except FileNotFoundError:
            pass
        except OSError as error:
            raise SourceError(
                f"the file {self.folder / message.name} cannot be read",
                found=str(error),
                action="correct its permissions or take it out of the directory",
            ) from error
        target.unlink(missing_ok=True)
        return False

    def take_away(self, attempt: TransactionAttempt, messages: Sequence[FileMessage], id: str) -> None:
        """Deletes consumed files or moves them to done/; another message of that name stays. May be repeated."""
        try:
            found = (self.folder / HIDDEN / "id").read_text()
        except OSError as error:
            found = str(error)
        if found != id:  # not mounted, say: there every file looks as if it had been taken away
            raise SourceError(
                f"the directory {self.folder} is not the one that attempt {attempt} has read",
                found=found[:100],
                expected=f"the id {id} in {HIDDEN}/id",
                action="mount it, or bring it back",
            )
        try:
            for number, message in enumerate(messages):
                self._take_away(message, self.folder / HIDDEN / f"{id}-{attempt.txid}-{attempt.attempt_id}-{number}")
        except OSError as error:
            raise SourceError(
                f"a consumed file cannot be taken out of {self.folder}",
                found=str(error),
                action="correct the permissions; it is tried again",
            ) from error

    def _take_away(self, message: FileMessage, claim: Path) -> None:
        place = self.folder / message.name
        # An earlier try may have come this far; its file must not be overwritten by another of that name.
        if not claim.exists():
            try:
                if message_of(message.name, os.stat(place)) != message:
                    return
                with faults.fault_point(CLAIM):
                    os.rename(place, claim)
            except FileNotFoundError:
                return  # taken back, or an earlier try did all of it
        try:
            same = message_of(message.name, os.stat(claim)) == message
            with faults.fault_point(REMOVE):
                if same and self._done == "move":
                    done = self.folder / "done"
                    done.mkdir(exist_ok=True)
                    _move(claim, done / message.name)
                elif same:
                    claim.unlink()
                else:  # replaced between the look and the rename: no batch has read it
                    _move(claim, place)
        except FileNotFoundError:
            if claim.exists():
                raise
            # else another coordinator, deposed but awake, did the same


def message_of(name: str, status: os.stat_result) -> FileMessage:
    return FileMessage(name, status.st_size, status.st_mtime_ns, status.st_ino)


def _move(source: Path, target: Path) -> None:
    """A rename that overwrites nothing: name.2, name.3 … when there is another file of that name."""
    number, place = 1, target
    while True:
        try:
            os.link(source, place)
            break
        except FileExistsError:
            if os.path.samefile(source, place):
                break  # an earlier try was stopped here
            number += 1
            place = target.with_name(f"{target.stem}.{number}{target.suffix}")
    source.unlink()


def wait_for_clock(messages: Sequence[FileMessage]) -> None:
    """Until a change of one of them must change its modification time."""
    ages = [time.time() - message.mtime_ns / 1e9 for message in messages]
    youngest = min((age for age in ages if age >= 0), default=TIME_STEP_SECS)
    if youngest < TIME_STEP_SECS:
        time.sleep(TIME_STEP_SECS - youngest)
