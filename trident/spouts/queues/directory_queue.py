"""A directory as a queue, and its spout: files may change until they are committed (docs/semantics.md 3)."""

from __future__ import annotations

import os
import shutil
import stat
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Union

from pyspark.sql.types import StructType

from trident.coordinators import faults
from trident.coordinators.errors import SourceError, TopologyError
from trident.coordinators.identities import TransactionAttempt
from trident.spouts import contracts as spout_arguments
from trident.spouts.contracts import Backlog, Emitted, Json, SpoutContext, SpoutKind, read_commit_data
from trident.spouts.files.format import FORMATS, RowFormat
from trident.spouts.files.ledger import FileRange, LedgerEntry
from trident.spouts.files.listing import is_dangling_link
from trident.spouts.files.parquet import count_rows
from trident.spouts.files.reading import FileReader, check_readable
from trident.spouts.live_attempts import Intake, SharedIntake, TakingCoordinator, TakingEmitter, given_up, limit_of
from trident.states.core import storage
from trident.states.core.place import Place
from trident.udf.types import as_schema

# The directory of a DirectoryQueueSpout: which messages are in it, whole copies of them, and how they leave it.


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
                        if is_dangling_link(item.path, error):
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

    def take_away(
        self, attempt: TransactionAttempt, messages: Sequence[FileMessage], id: str, incarnation: str
    ) -> None:
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
            # Claims that an earlier incarnation has left are not this attempt's.
            of_attempt = f"{id}-{incarnation}-{attempt.txid}-{attempt.attempt_id}"
            for number, message in enumerate(messages):
                self._take_away(message, self.folder / HIDDEN / f"{of_attempt}-{number}")
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


# A directory used as a queue: its files may be taken back or changed until they are committed (docs/semantics.md 3).
#
# A file is a message, and *which* message it is, says its name together with its
# size, modification time and inode: a file that was changed is another message.
# Opaque: an attempt emits the files that are there when it is emitted.
#
# An attempt first copies its files, one by one, into a folder of this stream, and
# uses a copy only if the file was the same message before and after. So a batch
# never holds half of one version and half of another, whatever happens to the
# directory while Spark reads, or when a task runs again. The staged rows count. Where
# the warehouse is in a store that folder is in the hidden one of the directory.
#
# The events that can happen to a file, and their results:
#
# ====================================  ===========================================================
# deleted before or during the copy     it is left out: taken back
# deleted after that                    it counts if the attempt is decided; too late
# changed before or during the copy     left out this time; the new content is a message
# changed after that, attempt dies      only the new content counts
# changed after that, attempt decided   both count, the old content and the new, each once: the
#                                       new content stays where it is and is the next message
# ====================================  ===========================================================
#
# So a file must be written elsewhere and moved in; one that is appended to in
# place counts again as a whole. ``min_age_secs`` keeps young files out.
#
# ``commit`` takes the consumed files away: it renames each into a hidden folder
# beside them, and looks then whether it is the message that was consumed. If its owner
# replaced it in the last moment it is put back. Looking first and deleting then
# could delete a message that no batch has read. Each step can be repeated in
# another process: the name in the hidden folder follows from the attempt. A writer
# that keeps a file open beyond its commit writes into a file that has gone.
#
# Files in live attempts are not emitted again (:mod:`trident.spouts.live_attempts`). A
# crash needs no clean-up: the files are still there; files of a decided attempt
# are gone before the next process emits, since the framework finishes the decision first.


MAX_FILES = "max_files"
COPIES = "copies-"


class DirectoryQueueSpout:
    """The files of a directory, each in one committed transaction, which then deletes it or moves it to ``done/``.

    The rules are in the module's description. Names that begin with ``_`` or
    ``.`` and folders are left alone. The oldest files come first, by modification time.
    The directory must be on a local disk, or be ``shared``, and is read by one stream alone.

    Formats and their rows are those of FileSpout: text (one field ``value``), csv, json (lines), parquet.

    Args:
        folder: the directory; must exist when the topology starts.
        format: "text", "csv", "json" or "parquet".
        schema: a StructType or DDL text; needed except for text.
        max_files: of one batch.
        max_bytes: about how many bytes a batch has at most; at least one file.
        done: "delete" or "move".
        min_age_secs: files that were modified more recently are left alone.
        options: Spark's options for the format.
        shared: the directory is the same one, under the same path, on every host that may run the
            coordinator (NFS, CephFS, …), and a rename in it is atomic. A Spark cluster needs it: a standby on
            another host would read, and acknowledge in, another directory.

    Raises:
        TopologyError: an argument cannot be used.
    """

    kind = SpoutKind.OPAQUE

    def __init__(
        self,
        folder: Union[str, "os.PathLike[str]"],
        format: str = "text",
        schema: Union[str, "StructType", None] = None,
        max_files: int = 1_000,
        max_bytes: int = 256 << 20,
        done: str = "move",
        min_age_secs: float = 0.0,
        options: Mapping[str, Any] | None = None,
        shared: bool = False,
    ) -> None:
        if format not in FORMATS:
            raise TopologyError(
                "the format of a DirectoryQueueSpout is unknown", found=repr(format), expected=", ".join(FORMATS)
            )
        if done not in DONE:
            raise TopologyError("done is unknown", found=repr(done), expected=" or ".join(DONE))
        spout_arguments.whole("max_files of a DirectoryQueueSpout", max_files, 1)
        spout_arguments.whole("max_bytes of a DirectoryQueueSpout", max_bytes, 1)
        min_age_secs = spout_arguments.seconds("min_age_secs of a DirectoryQueueSpout", min_age_secs)
        spout_arguments.flag("shared of a DirectoryQueueSpout", shared)
        if format == "text" and schema is None:
            schema = "value string"
        self._schema = as_schema(schema, f"DirectoryQueueSpout({format})")
        if format == "text" and [field.dataType.simpleString() for field in self._schema.fields] != ["string"]:
            raise TopologyError(
                "text has one field", found=self._schema.simpleString(), expected="no schema, or one string field"
            )
        self.row_format = RowFormat(format, self._schema, spout_arguments.options("a DirectoryQueueSpout", options))
        text = spout_arguments.path("the folder of a DirectoryQueueSpout", folder)
        self.folder, self.done = Path(os.path.abspath(os.path.expanduser(text))), done
        self.max_files, self.max_bytes, self.min_age_secs = max_files, max_bytes, min_age_secs
        self.bound_to_one_host = (
            False
            if shared
            else ("if all hosts have this one directory, at the same path, say so: DirectoryQueueSpout(…, shared=True)")
        )
        # Copies lie in it then: the stream's folder is no path.
        self.folders_with_remote_warehouse = (str(self.folder),)
        self._intake = SharedIntake(lambda context: _Intake(self, context))

    @property
    def output_schema(self) -> "StructType":
        return self._schema

    def get_coordinator(self, context: SpoutContext) -> TakingCoordinator:
        """Raises SourceError when the directory does not exist."""
        return TakingCoordinator(self._intake.of(context), MAX_FILES, self.max_files)

    def get_emitter(self, context: SpoutContext) -> "DirectoryEmitter":
        """Raises SourceError when the directory does not exist."""
        return DirectoryEmitter(self, self._intake.of(context))


@dataclass
class _Taken:
    """The files of a live attempt, and where their copies are."""

    messages: list[FileMessage]
    copies: Path


class _Intake(Intake[_Taken]):
    """Gives files to attempts and copies them."""

    def __init__(self, spout: DirectoryQueueSpout, context: SpoutContext) -> None:
        super().__init__(context)
        self._max_bytes = spout.max_bytes
        self.directory = DirectoryQueue(spout.folder, spout.done, spout.min_age_secs)
        self._copies = self._place_of_copies(context)
        # Fixed width: the order of the names is that of the epochs.
        self._mine = self._copies / f"{context.options.get('epoch') or 0:012d}-{uuid.uuid4().hex}"
        self._started = False

    def _place_of_copies(self, context: SpoutContext) -> Path:
        """In the stream's folder; where that is in a store, beside the files: Spark reads copies by paths."""
        stored = Place(context.state_folder)
        if stored.is_local:
            return Path(stored) / "copies"
        # Of each incarnation its own: epochs begin anew with it.
        return self.directory.hidden / f"{COPIES}{context.incarnation}"

    # --- for the coordinator ------------------------------------------------------------------

    def ready(self, more_than: int) -> bool:
        held = self._held()
        free = (message for message in self.directory.messages() if message not in held)
        return any(number >= more_than for number, _ in enumerate(free))

    def backlog(self) -> Backlog:
        held = self._held()
        sizes = [message.size for message in self.directory.messages() if message not in held]
        return Backlog(files=len(sizes), bytes=sum(sizes))

    def _held(self) -> set[FileMessage]:
        return {message for taken in self._live.all() for message in taken.messages}

    # --- for the emitter ------------------------------------------------------------------------

    def take(self, attempt: TransactionAttempt, most: int) -> tuple[list[FileMessage], Path]:
        """The messages that the attempt has, and the folder with their copies, under the files' names."""
        with self._live.lock:
            self._give_back(self._live.enter(attempt))
            chosen = self._choose(most)
            copies = self._folder(attempt)
            # Its own from here on, also while they are copied.
            self._live.keep(attempt, _Taken(chosen, copies))
        wait_for_clock(chosen)
        copied = [message for message in chosen if self.directory.copy(message, copies / message.name)]
        with self._live.lock:
            taken = self._live.get(attempt)
            if taken is None:
                raise given_up(attempt)
            taken.messages = copied  # the others are free again: they are other messages by now
        return copied, copies

    def _choose(self, most: int) -> list[FileMessage]:
        held = self._held()
        free = [message for message in self.directory.messages() if message not in held]
        free.sort(key=lambda message: (message.mtime_ns, message.name))
        chosen: list[FileMessage] = []
        size = 0
        for message in free[:most]:
            size += message.size
            if chosen and size > self._max_bytes:
                break
            chosen.append(message)
        return chosen

    def _folder(self, attempt: TransactionAttempt) -> Path:
        if not self._started:
            # Copies of processes before: they are of no more use. Those of a successor are its own.
            for name in storage.list_names(self._copies):
                if name[:12] <= self._mine.name[:12]:
                    storage.try_delete(self._copies / name)
            for name in storage.list_names(self.directory.hidden):  # the directory is one stream's alone
                if name.startswith(COPIES) and name != self._copies.name:
                    storage.try_delete(self.directory.hidden / name)
            self._started = True
        folder = self._mine / f"{attempt.txid}-{attempt.attempt_id}"
        storage.make_folder(folder, self._copies.parent)
        return folder

    def committed(self, attempt: TransactionAttempt) -> None:
        taken = self._live.committed(attempt)
        self._give_back([taken] if taken else [])

    def close(self) -> None:
        self._live.close()
        storage.try_delete(self._mine)

    def _give_back(self, taken: Sequence[_Taken]) -> None:
        for one in taken:
            storage.try_delete(one.copies)


@dataclass(frozen=True)
class _TakenFiles:
    """The commit data: the directory's id, and the files that were taken."""

    directory: str
    files: list[FileMessage]


class DirectoryEmitter(TakingEmitter[_Taken]):
    """Emits copies of files; commit_data: as :class:`_TakenFiles`."""

    _intake: _Intake

    def __init__(self, spout: DirectoryQueueSpout, intake: _Intake) -> None:
        super().__init__(intake)
        self._spout = spout
        self._reader = FileReader(intake.context.spark, spout.row_format) if intake.context.spark is not None else None

    def emit_batch(self, attempt: TransactionAttempt, metadata: Json) -> Emitted:
        messages, copies = self._intake.take(attempt, limit_of(metadata, MAX_FILES, self._spout.max_files))
        if not messages:
            return Emitted([], partitions=1)
        assert self._reader is not None, "emitting needs a Spark session"
        emitted = self._reader.read([self._range(copies / message.name) for message in messages])
        commit_data: Json = {"directory": self._intake.directory.id, "files": [list(message) for message in messages]}
        return replace(emitted, commit_data=commit_data)

    def _range(self, copy: Path) -> FileRange:
        check_readable(str(copy), self._spout.row_format)
        status = os.stat(copy)
        is_parquet = self._spout.row_format.name == "parquet"
        rows = count_rows(str(copy), self._spout.output_schema) if is_parquet else None
        entry = LedgerEntry(1, str(copy), status.st_size, status.st_mtime_ns, rows)
        return FileRange(entry, 0, entry.length)

    def commit(self, attempt: TransactionAttempt, commit_data: Json) -> None:
        taken = read_commit_data(commit_data, _TakenFiles, "a DirectoryQueueSpout")
        self._intake.directory.take_away(attempt, taken.files, taken.directory, self._intake.context.incarnation)
        # Only now: a file that is still there must not be emitted again.
        self._intake.committed(attempt)
