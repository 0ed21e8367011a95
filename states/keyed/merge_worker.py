"""The process that does native MERGEs for a coordinator's: niced, on one core, without Spark and without users' code.

It takes one job after the other from its standard input and answers on its standard output, pickled, and ends with its
parent. It holds nothing that matters: its files count once the parent has committed them.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import signal
import sys
from functools import partial
from typing import BinaryIO

import pyarrow as pa

from trident.states.keyed.merge_files import Abandoned, FileMerger, FileUnreadable, MergeFailed
from trident.states.keyed.merge_rows import MergedMeanwhile, NotMergeable

# A tenth of what a process of the usual priority gets where all want the same core.
NICE = 10


def serve(jobs: BinaryIO, answers: BinaryIO, merger: FileMerger) -> None:
    """Does jobs until there are no more; an answer is a result, or the exception in its place."""
    while True:
        try:
            job = pickle.load(jobs)
        except EOFError:
            return
        try:
            answer: object = merger.run(job)
        except (FileUnreadable, NotMergeable, MergedMeanwhile, MergeFailed, Abandoned) as error:
            answer = error
        except Exception as error:  # perhaps one that cannot be pickled
            answer = MergeFailed(f"{type(error).__name__}: {error}")
        del job
        gc.collect()
        pa.default_memory_pool().release_unused()
        with contextlib.suppress(BrokenPipeError):
            pickle.dump(answer, answers)
            answers.flush()


def main() -> None:
    """Serves the parent over standard input and output."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the parent ends in order, and this with it
    with contextlib.suppress(OSError):
        os.nice(NICE)
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    parent = os.getppid()
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # a print must not become an answer
    serve(sys.stdin.buffer, answers, FileMerger(is_wanted=partial(_is_parent, parent)))


def _is_parent(process: int) -> bool:
    return os.getppid() == process
