"""Sends native MERGEs to their worker process: one for all states of this process, one MERGE at a time."""

from __future__ import annotations

import contextlib
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable

from trident.states.core.import_path import import_path
from trident.states.keyed.merge_files import MergedFiles, MergeJob

_LOOK_SECS = 0.1
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
        while not self._turn.acquire(timeout=_LOOK_SECS):
            if is_cancelled():
                raise Cancelled
        try:
            answer = self._asked(job, is_cancelled)
        finally:
            self._turn.release()
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, MergedFiles)
        return answer

    def _asked(self, job: MergeJob, is_cancelled: Callable[[], bool]) -> object:
        process = self._started()
        answered = threading.Event()
        killer = threading.Thread(target=_kill_when, args=(process, is_cancelled, answered), daemon=True)
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


def _kill_when(process: "subprocess.Popen[bytes]", is_cancelled: Callable[[], bool], answered: threading.Event) -> None:
    while not answered.wait(_LOOK_SECS):
        if is_cancelled():
            process.kill()
            return


MERGE_PROCESS = MergeProcess()
