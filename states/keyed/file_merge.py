"""The native MERGE of a keyed state: files of the plain table rewritten by a process beside, and one commit.

It is a MERGE as Delta's own would be: of exactly the planned transactions, with P in the same commit, at the version
behind the one that was read or not at all. So of two that read the same P one is refused, whichever is the zombie.
"""

from __future__ import annotations

import contextlib
import json
import logging
import pickle
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from trident.coordinators import faults
from trident.coordinators.errors import CommitConflict, TableError
from trident.coordinators.identities import up_to
from trident.states.core import storage
from trident.states.core.binding import WHOLE_VALUES, kept_schema
from trident.states.core.control import DOMAIN
from trident.states.core.copyable import arrow_schema, why_not_copied
from trident.states.core.descriptor import StateDescriptor
from trident.states.core.imports import import_path
from trident.states.core.place import Place
from trident.states.core.tables import CHANGE_FEED, UPTO_COLUMN
from trident.states.delta import history
from trident.states.delta.delta_log import DeltaLog, LogTables, follow
from trident.states.delta.kernel import KernelEngine, TableSnapshot, TxnAlreadyApplied
from trident.states.delta.kernel_files import LiveFile
from trident.states.delta.staging import fsync_folders
from trident.states.keyed.compaction import MergePlan
from trident.states.keyed.merge_files import CHANGES_FOLDER as CHANGES
from trident.states.keyed.merge_files import FOLDER, InFile, MergedFiles, MergeJob
from trident.states.keyed.merge_rows import MergedMeanwhile, RowMerge, why_not
from trident.states.keyed.tables import adopted_version, column_names, greatest_txid, least_txid

# Sends native MERGEs to their worker process: one for all states of this process, one MERGE at a time.


_CHECK_SECS = 0.1
# By the path that it is given: Python's own would begin with the working folder, whose files are the user's.
_WORKER = "import sys; sys.path[:] = sys.argv[1:]; from trident.states.keyed.merge_worker import main; main()"


class WorkerEnded(Exception):
    """The process ended before it answered."""


class Cancelled(Exception):
    """The MERGE was given up; what it has written is in no table."""


class MergeProcess:
    """The worker process, which is started when a job comes and ends with this one.

    May be used by several threads: their jobs wait for each other.
    """

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._process: "subprocess.Popen[bytes] | None" = None

    @property
    def pid(self) -> int | None:
        """The process that is there, if one is."""
        process = self._process
        return None if process is None or process.poll() is not None else process.pid

    def run(self, job: MergeJob, is_cancelled: Callable[[], bool]) -> MergedFiles:
        """Has a job done; raises what it raised.

        Args:
            is_cancelled: asked all the time; True kills the process.

        Raises:
            Cancelled: it was asked to end.
            WorkerEnded: the process ended, or could not be started.
            Exception: as ``FileMerger.run``.
        """
        while not self._turn.acquire(timeout=_CHECK_SECS):
            if is_cancelled():
                raise Cancelled
        try:
            answer = self._request(job, is_cancelled)
        finally:
            self._turn.release()
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, MergedFiles)
        return answer

    def _request(self, job: MergeJob, is_cancelled: Callable[[], bool]) -> object:
        process = self._started()
        answered = threading.Event()
        killer = threading.Thread(target=_kill_on_cancel, args=(process, is_cancelled, answered), daemon=True)
        killer.start()
        try:
            assert process.stdin is not None and process.stdout is not None
            pickle.dump(job, process.stdin)
            process.stdin.flush()
            return pickle.load(process.stdout)
        except (EOFError, OSError, pickle.UnpicklingError) as error:
            self._forget(process)
            if is_cancelled():
                raise Cancelled from error
            raise WorkerEnded(f"the process that merges ended with code {process.returncode}") from error
        except BaseException:
            self._forget(process)  # an answer that is not waited for must not be the next job's
            raise
        finally:
            answered.set()

    def _started(self) -> "subprocess.Popen[bytes]":
        if self._process is not None and self._process.poll() is None:
            return self._process
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _WORKER, *import_path()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,  # a signal to this process's group, such as Ctrl-C, is for this process to obey
            )
        except OSError as error:
            raise WorkerEnded(f"the process that merges cannot be started: {error}") from error
        return self._process

    def _forget(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = None
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


def _kill_on_cancel(
    process: "subprocess.Popen[bytes]", is_cancelled: Callable[[], bool], answered: threading.Event
) -> None:
    while not answered.wait(_CHECK_SECS):
        if is_cancelled():
            process.kill()
            return


MERGE_PROCESS = MergeProcess()


log = logging.getLogger("trident.compactor")

WRITE = faults.register("compact.write", "writing the files of a native MERGE, by a helper process")

# More of the log is merged by Spark: the process has it all in memory.
LOG_BYTES_MAX, LOG_ROWS_MAX = 256 << 20, 10_000_000


# So many folders of earlier MERGEs, of which it is not known whether a commit names them, each MERGE looks at.
_FOLDERS_MAX = 20


class CannotMerge(Exception):
    """The native MERGE is not for this state, or these tables, and Delta's is."""


class FileMerge:
    """The native MERGEs of one state; used by one thread at a time.

    Args:
        plain, log: the roots of its two tables.
        is_cancelled: asked while files are written; True ends that.
    """

    def __init__(
        self,
        engine: KernelEngine,
        plain: str,
        log_path: str,
        is_cancelled: Callable[[], bool],
        process: MergeProcess = MERGE_PROCESS,
    ) -> None:
        self._engine, self._plain, self._log = engine, plain, log_path
        self._is_cancelled, self._process = is_cancelled, process
        self._tables = LogTables()
        # Folders that may be left over, the newest first; None before the first look.
        self._doubtful: list[str] | None = None

    def bytes_to_move(self, state: StateDescriptor, plan: MergePlan, plain: TableSnapshot) -> tuple[int, int]:
        """How large the files of the table are that a MERGE would rewrite, at the most, and those of the log.

        Raises: as :meth:`merge`.
        """
        self._require_possible(state, plain)
        files, logged = self._files(plain), self._log_files(plan)
        changed = files
        if state.keys and all(file.path.startswith(ordered_folders(state)) for file in files):
            changed = overlapping_files(files, logged, state.keys[0])
        return sum(file.size for file in changed), sum(file.size for file in logged)

    def merge(
        self,
        state: StateDescriptor,
        plan: MergePlan,
        plain: TableSnapshot,
        marker: Mapping[str, object],
        engine_info: str,
    ) -> tuple[TableSnapshot, MergedFiles]:
        """Carries out a plan.

        Args:
            state: with all columns that its tables have.
            plain: the version of the plan.
            marker: says in the commit whose MERGE it is.

        Returns:
            The table behind it, and what was done.

        Raises:
            CannotMerge, MergeFailed, WorkerEnded: nothing was done; Delta's MERGE can.
            NotMergeable, FileUnreadable: nothing was done, nor can it be.
            CommitConflict: another compactor merged meanwhile; nothing was changed.
            CommitOutcomeUnknown: load the table again to know.
            TableError: it failed; nothing was changed.
        """
        merge = self._require_possible(state, plain)
        files, logged = self._files(plain), self._log_files(plan)
        size, rows = sum(file.size for file in logged), sum(file.num_records or 0 for file in logged)
        if size > LOG_BYTES_MAX or rows > LOG_ROWS_MAX:
            raise CannotMerge(f"{rows} rows in {size} bytes of its log wait")
        self._drop_leftovers(state, plain.version)
        folder = f"{ordered_folders(state)[0]}{plain.version + 1}-{uuid.uuid4().hex[:8]}"
        job = MergeJob(
            merge,
            Place(self._plain),
            Place(self._log),
            tuple(InFile(file.path, file.size) for file in files),
            tuple(InFile(file.path, file.size) for file in logged),
            plan.after,
            plan.upto,
            folder,
            ordered_folders(state),
            _change_folder(folder) if plain.properties.get(CHANGE_FEED) == "true" else "",
        )
        try:
            done = self._written(job)
        except BaseException:
            self._delete(folder)  # no commit was tried
            raise
        try:
            return self._committed(state, plan, plain, files, done, marker, engine_info), done
        except (CommitConflict, TxnAlreadyApplied):
            self._delete(folder)  # the commit was refused for certain
            raise
        except BaseException:
            # A log entry may name the files: the next MERGE asks it.
            self._doubtful = [folder.rpartition("/")[2], *(self._doubtful or [])]
            raise

    def _written(self, job: MergeJob) -> MergedFiles:
        if not (job.log_files or job.forgets):
            return MergedFiles((), (), 0, 0)  # P moves alone
        try:
            with faults.fault_point(WRITE):
                done = self._process.run(job, self._is_cancelled)
                for files, folder in ((done.written, job.folder), (done.changes, job.change_folder)):
                    if files:
                        fsync_folders(Place(self._plain), folder)
        except MergedMeanwhile as error:
            raise _overtaken(self._plain, error, f"a table merged up to {job.after}") from error
        except Cancelled as error:
            raise TableError(f"the MERGE into {self._plain} was given up") from error
        return done

    def _committed(
        self,
        state: StateDescriptor,
        plan: MergePlan,
        plain: TableSnapshot,
        files: Sequence[LiveFile],
        done: MergedFiles,
        marker: Mapping[str, object],
        engine_info: str,
    ) -> TableSnapshot:
        replaced = set(done.replaced)
        removed = [file for file in files if file.path in replaced]
        metrics = {
            "numSourceRows": done.keys,
            "numOutputRows": sum(file.num_records for file in done.written),
            "numTargetFilesRemoved": len(removed),
            "numTargetFilesAdded": len(done.written),
            "numTargetBytesRemoved": sum(file.size for file in removed),
            "numTargetBytesAdded": sum(file.size for file in done.written),
            "executionTimeMs": int(done.secs * 1000),
        }
        txn, note = (state.merge_app, plan.upto), json.dumps({"trident": dict(marker)})
        try:
            return self._engine.replace_files(
                plain, removed, done.written, done.changes, txn, engine_info, note, metrics
            )
        except CommitConflict as error:
            raise _overtaken(self._plain, error, f"version {plain.version}") from error

    # --- the tables -----------------------------------------------------------------------------------------

    def _require_possible(self, state: StateDescriptor, plain: TableSnapshot) -> RowMerge:
        """How rows of the state merge.

        Raises:
            CannotMerge: not here.
        """
        reason = self._why_not(state, plain)
        if reason is not None:
            raise CannotMerge(reason)
        aggregator = None if state.merging in WHOLE_VALUES else state.aggregator
        schema = arrow_schema(state.schema)
        adopted = adopted_version(plain.schema_json) is not None
        return RowMerge(schema, tuple(state.keys), aggregator, state.sequence, state.retention, adopted)

    def _why_not(self, state: StateDescriptor, plain: TableSnapshot) -> str | None:
        if not plain.takes_python_entries:
            return (
                "its table has features of Delta that are left to Delta, or is on a file system that Spark alone reads"
            )
        if plain.partition_columns or plain.properties.get("delta.appendOnly", "false") == "true":
            return "its table is partitioned, or appended to only"
        strange = set(column_names(plain)) ^ {*kept_schema(state.schema, state.merging).names, UPTO_COLUMN}
        if strange:
            return f"its table has columns that are not the state's, or lacks some: {sorted(strange)}"
        # A state without keys has one row, which no copy has, and which can be merged.
        reason = why_not_copied(state.schema, state.keys or ("",))
        if reason is not None:
            return reason
        aggregator = None if state.merging in WHOLE_VALUES else (state.aggregator or "")
        return why_not(arrow_schema(state.schema), state.keys, aggregator)

    def _files(self, plain: TableSnapshot) -> list[LiveFile]:
        """The files of the plain table at the version that was read."""
        found = self._tables.load(self._plain)
        if found.why_not_rows is not None:
            raise CannotMerge(f"its table has {found.why_not_rows}")
        if (found.version, found.entry) != (plain.version, plain.entry):
            raise _overtaken(self._plain, f"it is at version {found.version}", f"version {plain.version}")
        return list(found.files.values())

    def _log_files(self, plan: MergePlan) -> list[LiveFile]:
        """The files of the log that have rows of a plan, in the order of their transactions."""
        since = history.find_version_by_control(self._log, DOMAIN, plan.after)
        if since is None:
            files = list(DeltaLog(self._log).at(plan.log_version).files.values())
        else:
            files = list(follow(DeltaLog(self._log).commits(since + 1, plan.log_version)).values())
        return [file for file in files if greatest_txid(file) > plan.after and least_txid(file) <= plan.upto]

    def _drop_leftovers(self, state: StateDescriptor, version: int) -> None:
        """Deletes what MERGEs have written that were killed before their commit, or lost it.

        A folder is named by the version that its files were to come with: if that version's entry has none of them,
        none ever will. Folders that were there at the first look are gone through over some MERGEs, each once: a table
        has as many of them as it had MERGEs since its last VACUUM.
        """
        base = storage.join(self._plain, "data", state.incarnation)
        if self._doubtful is None:
            self._doubtful = sorted(filter(_is_version, storage.list_names(base)), key=_version_of, reverse=True)
        old = [name for name in self._doubtful if _version_of(name) <= version][:_FOLDERS_MAX]
        for name in old:
            with suppress(TableError):  # cleaned up: VACUUM knows
                commit = DeltaLog(self._plain).commit(_version_of(name))
                folder = f"data/{state.incarnation}/{name}"
                ours = (f"{folder}/", f"{_change_folder(folder)}/")
                if not any(path.startswith(ours) for path in (*commit.adds, *commit.changes)):
                    self._delete(folder)
            self._doubtful.remove(name)

    def _delete(self, folder: str) -> None:
        """Deletes the files of a MERGE that none will ever name."""
        for each in (_change_folder(folder), folder):
            storage.try_delete(storage.join(self._plain, each))


def _change_folder(folder: str) -> str:
    """For the changes of a MERGE, by the folder of its files."""
    return f"{CHANGES}/{folder.rpartition('/')[2]}"


def _is_version(folder: str) -> bool:
    return folder.startswith(FOLDER) and folder.removeprefix(FOLDER).partition("-")[0].isdigit()


def _version_of(folder: str) -> int:
    return int(folder.removeprefix(FOLDER).partition("-")[0])


def ordered_folders(state: StateDescriptor) -> tuple[str, ...]:
    """The beginnings of the paths of files that native MERGEs of a state have written; its next files have the first.

    The others are older than a rollback, which puts files of then into the table again.
    """
    return tuple(f"data/{incarnation}/{FOLDER}" for incarnation in up_to(state.incarnation))


def _overtaken(path: str, found: object, expected: str) -> CommitConflict:
    return CommitConflict(
        f"another compactor merged into {path} meanwhile",
        found=found,
        expected=expected,
        action="nothing was changed; the MERGE is planned anew",
    )


@dataclass(frozen=True)
class _Range:
    """The statistics of a column in a file.

    Attributes:
        low, high: the bounds of its values; None where they are not known.
        values, nulls: whether the column may have values, and nulls.
    """

    low: Any
    high: Any
    values: bool
    nulls: bool

    @classmethod
    def of(cls, file: LiveFile, column: str) -> _Range:
        stats: Any = file.stats or {}
        low, high, nulls = (stats.get(part, {}).get(column) for part in ("minValues", "maxValues", "nullCount"))
        known = low is not None and high is not None
        return cls(
            low if known else None, high if known else None, nulls is None or nulls != file.num_records, nulls != 0
        )

    def meets(self, other: _Range) -> bool:
        """Tells whether a value may be in both."""
        if not self.values or not other.values:
            return False
        return self.low is None or other.low is None or bool(self.low <= other.high and other.low <= self.high)


def overlapping_files(files: Sequence[LiveFile], logged: Sequence[LiveFile], column: str) -> list[LiveFile]:
    """Those files of a table in the order of its keys that have the range of a key of the log, as far as is known.

    Args:
        column: the first key column. Its nulls lie behind all values: in the files that have one, else in the last.
    """
    ranges, new = ([_Range.of(file, column) for file in some] for some in (files, logged))
    met = [any(one.meets(other) for other in new) for one in ranges]
    if any(one.nulls for one in new):
        last = max((one.high for one in ranges if one.high is not None), default=None)
        has_nulls = any(one.nulls for one in ranges)
        places = [one.nulls if has_nulls else one.high is None or one.high == last for one in ranges]
        met = [one or other for one, other in zip(met, places, strict=True)]
    return [file for file, meets in zip(files, met, strict=True) if meets]
